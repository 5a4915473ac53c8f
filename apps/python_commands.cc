// SPDX-License-Identifier: Apache-2.0
// baechi estimate, doctor and calibrate (Paper 4.1): their options. The Python package, which has
// the frameworks, does the work.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apps/arguments.h"
#include "apps/system.h"
#include "baechi/base/error.h"

namespace baechi::cli {
namespace {

// Ends in the `main` of a module with these arguments, whose exit code is that of the command.
[[noreturn]] void run_python(const std::string& command, const std::string& module,
                             const std::vector<std::string>& arguments) {
  std::vector<std::string> words{
      installed_python(), "-c",
      "import os, sys\n"
      "try:\n"
      "    from " +
          module +
          " import main\n"
          "except ImportError as error:\n"
          "    sys.stderr.write(f'baechi: " +
          command +
          ": {sys.executable}: {error}: it needs the '\n"
          "        'Python package baechi (pip install baechi[torch])\\n')\n"
          "    sys.exit(2)\n"
          "try:\n"
          "    code = main(sys.argv[1:])\n"
          "    sys.stdout.flush()\n"
          "except BrokenPipeError:\n"  // nobody reads on: head, a pager that ends
          "    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())\n"
          "    code = 1\n"
          "sys.exit(code)\n"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const std::string why = become(words);
  throw InputError(command, "it needs Python with the package baechi (pip install baechi): " +
                                words.front() + ": " + why);
}

// NAME=VALUE for each option that was given.
std::vector<std::string> given(const std::map<std::string, std::string>& values,
                               const RunContext& context) {
  std::vector<std::string> words;
  for (const auto& [name, value] : values)
    if (!value.empty()) words.push_back(name + "=" + value);
  if (context.json) words.emplace_back("json=1");
  return words;
}

Run declare_estimate(OptionSet& set) {
  auto values = std::make_shared<std::map<std::string, std::string>>();
  const auto add = [&](const std::string& names, const std::string& name, const char* type,
                       const std::string& help) {
    return set.add(names, (*values)[name], help).type_name(type);
  };
  add("model", "model", "MODEL",
      "config.json of transformers or diffusers, or the folder with it; or module:function, a "
      "Python "
      "function that returns a PyTorch model and example inputs")
      .required();
  add("-c,--cluster", "cluster", "CLUSTER",
      "The cluster, as for place: 1x24GiB+host, 2xrtx3090, 1xrtx4090+host:64GiB")
      .required();
  add("--batch", "batch", "N", "Samples per step (default 1)");
  add("--length", "length", "N",
      "Tokens per text (default 2048, or the most that the model takes), or frames per video (81)");
  add("--size", "size", "N",
      "Side of each picture in pixels (default: what the model was made for)");
  add("--lora", "lora", "RANK", "Train only adapters of this rank");
  add("--quantize", "quantize", "NAME",
      "Format of the frozen weights, with --lora (default: that of --precision)")
      .one_of({"nf4", "int8", "fp8"});
  add("--optimizer", "optimizer", "NAME",
      "Optimizer, which decides how much state each trained weight has (default adamw: in 32 bits)")
      .one_of({"adamw", "adamw-bf16", "adamw-8bit", "sgd"});
  add("--precision", "precision", "NAME", "Precision of the arithmetic (default bf16)")
      .one_of({"bf16", "fp16", "tf32", "fp32"});
  add("--device", "device", "PRESET",
      "Which card a plain 24GiB is (default rtx4090); generate --list-devices lists the presets");
  add("--budget", "budget", "TIME", "How long each search may take, as for place (default 500ms)");
  auto inference = std::make_shared<bool>(false), alone = std::make_shared<bool>(false);
  set.add_flag("--inference", *inference, "Estimate one forward pass, not a training step");
  set.add_flag("--alone", *alone, "Skip the plans for one more card and a faster host link");
  return [=](const RunContext& context) -> ExitCode {
    if (*inference) (*values)["inference"] = "1";
    if (*alone) (*values)["compare"] = "0";
    run_python("estimate", "baechi.estimates.__main__", given(*values, context));
  };
}

Run declare_doctor(OptionSet& /*set*/) {
  return [](const RunContext& context) -> ExitCode {
    run_python("doctor", "baechi.doctor", given({}, context));
  };
}

// The options, for --help; what they mean and their defaults is Python's.
struct CalibrateArguments {
  bool torch = false, tensorflow = false;
  std::string devices, largest, repeats, output, into, plot, samples;

  std::vector<std::string> arguments() const {
    std::vector<std::string> words;
    if (torch) words.emplace_back("--torch");
    if (tensorflow) words.emplace_back("--tensorflow");
    const auto add = [&](const char* name, const std::string& value) {
      if (!value.empty()) words.push_back(name + value);
    };
    add("--devices=", devices);
    add("--largest=", largest);
    add("--repeats=", repeats);
    add("--output=", output);
    add("--into=", into);
    add("--plot=", plot);
    add("--samples=", samples);
    return words;
  }
};

Run declare_calibrate(OptionSet& set) {
  auto options = std::make_shared<CalibrateArguments>();
  CalibrateArguments& o = *options;
  set.add_flag("--torch", o.torch, "Copy with PyTorch");
  set.add_flag("--tensorflow", o.tensorflow, "Copy with TensorFlow");
  set.add("--devices", o.devices, "Devices by the framework's names (default: all accelerators)")
      .type_name("A,B,...");
  set.add("--largest", o.largest, "Size of the largest copy, such as 64MiB (default: 512MiB)")
      .type_name("SIZE");
  set.add("--repeats", o.repeats, "Number of timed copies per size (default: 20)").type_name("N");
  set.add("-o,--output", o.output, "Cluster file to write (default: standard output)")
      .type_name("FILE");
  set.add("--into", o.into, "Write the links into this cluster file and keep the rest of it")
      .type_name("FILE");
  set.add("--plot", o.plot, "Draw the copies and the fitted lines in this file")
      .type_name("FILE.svg");
  set.add("--samples", o.samples, "Write all measurements to this file").type_name("FILE.json");
  return [options](const RunContext&) -> ExitCode {
    run_python("calibrate", "baechi.calibrate", options->arguments());
  };
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

extern const Command kCalibrateCommand{
    .name = "calibrate",
    .summary =
        "Measure the links between this machine's devices, for a cluster file (needs Python)",
    .examples =
        "baechi calibrate --torch -o cluster.json --plot links.svg\n"
        "baechi calibrate --torch --devices cuda:0,cuda:1 --largest 64MiB --into cluster.json",
    .declare = declare_calibrate,
};

}  // namespace baechi::cli
