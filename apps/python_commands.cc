// SPDX-License-Identifier: Apache-2.0
// baechi estimate and baechi doctor: their options. What they do is done by the Python package.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "apps/arguments.h"
#include "apps/console.h"
#include "baechi/base/error.h"
#include "baechi/cost/device_presets.h"

namespace baechi::cli {
namespace {

// $BAECHI_PYTHON, which `python -m baechi` sets; or the one beside this command, where pip put both.
std::string python() {
  if (const char* named = std::getenv("BAECHI_PYTHON"); named != nullptr && *named != '\0')
    return named;
  std::error_code error;
  const auto here = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* name : {"python3", "python"})
    if (!error && std::filesystem::exists(here / name, error)) return here / name;
  return "python3";
}

// Ends in `python -m MODULE NAME=VALUE ...`, whose exit code is that of the command.
ExitCode run_python(const std::string& module, const std::map<std::string, std::string>& values,
                    const RunContext& context) {
  std::vector<std::string> words{python(), "-m", module};
  for (const auto& [name, value] : values)
    if (!value.empty()) words.push_back(name + "=" + value);
  if (context.json) words.emplace_back("json=1");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execvp(arguments.front(), arguments.data());
  throw InputError(words.front(),
                   "cannot run it (" + std::generic_category().message(errno) +
                       "): this command needs the Python package, pip install baechi");
}

Run declare_estimate(OptionSet& set) {
  auto values = std::make_shared<std::map<std::string, std::string>>();
  const auto add = [&](const std::string& names, const std::string& name, const char* type,
                       const std::string& help) {
    return set.add(names, (*values)[name], help).type_name(type);
  };
  std::vector<std::string> presets;
  for (const DevicePreset& preset : all_device_presets()) presets.emplace_back(preset.name);
  add("model", "model", "MODEL",
      "config.json of transformers or diffusers, or the folder with it; or module:function, a "
      "Python "
      "function that returns a PyTorch model and example inputs")
      .required();
  add("-c,--cluster", "cluster", "CLUSTER",
      "The cluster, as for place: 1x24GiB+host, 2xrtx3090, 1xrtx4090+host:64GiB")
      .required()
      .suggest(known_clusters());
  add("--batch", "batch", "N", "Samples per step (default 1)");
  add("--length", "length", "N",
      "Tokens per text (default 2048, or the most that the model takes)");
  add("--size", "size", "N",
      "Side of each picture in pixels (default: what the model was made for)");
  add("--lora", "lora", "RANK", "Train only adapters of this rank");
  add("--quantize", "quantize", "NAME",
      "Format of the weights that adapters leave alone: nf4, int8 or fp8")
      .one_of({"nf4", "int8", "fp8"});
  add("--optimizer", "optimizer", "NAME",
      "Optimizer, which decides what each trained weight needs (default adamw: in 32 bits)")
      .one_of({"adamw", "adamw-bf16", "adamw-8bit", "sgd"});
  add("--precision", "precision", "NAME", "Precision of the arithmetic (default bf16)")
      .one_of({"bf16", "fp16", "tf32", "fp32"});
  add("--device", "device", "PRESET",
      "Which card a plain 24GiB is (default rtx4090); generate --list-devices lists the presets")
      .suggest(presets);
  add("--budget", "budget", "TIME", "How long each search may take (default 200ms)");
  auto inference = std::make_shared<bool>(false), alone = std::make_shared<bool>(false);
  set.add_flag("--inference", *inference, "One forward pass, where the default is a training step");
  set.add_flag("--alone", *alone, "Skip the plans for one more card and a faster host link");
  return [=](const RunContext& context) {
    if (*inference) (*values)["inference"] = "1";
    if (*alone) (*values)["compare"] = "0";
    return run_python("baechi.estimates", *values, context);
  };
}

Run declare_doctor(OptionSet& /*set*/) {
  return [](const RunContext& context) { return run_python("baechi.doctor", {}, context); };
}

}  // namespace

extern const Command kEstimateCommand{
    .name = "estimate",
    .summary =
        "Say from a config.json whether a model fits, how fast a step is and what one more card "
        "brings",
    .examples =
        "baechi estimate config.json --cluster 1x24GiB+host --batch 4\n"
        "baechi estimate config.json --cluster 1xrtx3060+host:64GiB --lora 16 --quantize nf4\n"
        "baechi estimate ./FLUX.1-dev --cluster 1x12GiB+host --lora 16 --size 512\n"
        "baechi estimate models:make_llama --cluster 2x24GiB --device rtx3090",
    .declare = declare_estimate,
};

extern const Command kDoctorCommand{
    .name = "doctor",
    .summary =
        "Show what is installed here and what works: versions, compiler, devices, links, pinned "
        "memory",
    .examples =
        "baechi doctor\n"
        "baechi doctor --json",
    .declare = declare_doctor,
};

}  // namespace baechi::cli
