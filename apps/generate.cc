// SPDX-License-Identifier: Apache-2.0
// baechi generate: graphs of models and of synthetic shapes, with costs of named devices.
#include "baechi/generate/generate.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/arguments.h"
#include "apps/console.h"
#include "apps/progress.h"
#include "baechi/base/error.h"
#include "baechi/base/short_text.h"
#include "baechi/bounds/graph_facts.h"
#include "baechi/cost/device_presets.h"
#include "baechi/generate/with_variables.h"
#include "baechi/io/graph/write_graph.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/place/sequential_peak.h"

namespace baechi::cli {
namespace {

struct GenerateArguments {
  std::string model;
  std::string output;
  std::string devices;
  std::string precision;
  bool training = false, inference = false, shared_embedding = false, project_at_once = false,
       variables = false;
  bool list = false, list_devices = false;
  GenerateRequest request;
};

GenerateRequest request_of(const GenerateArguments& options, const CancelFlag* cancel) {
  GenerateRequest request = options.request;
  request.cancel = cancel;
  if (!options.devices.empty()) request.kinds = parse_costed_kinds(options.devices);
  if (options.training || options.inference) request.training = options.training;
  if (options.shared_embedding) request.shared_embedding = true;
  if (options.project_at_once) request.project_at_once = true;
  if (!options.precision.empty()) {
    request.precision = find_precision(options.precision);
    if (!request.precision.has_value())
      throw InputError("--precision " + options.precision, "known: fp32, tf32, fp16, bf16");
  }
  return request;
}

std::string padded(std::string_view name) {
  constexpr std::size_t kColumn = 14;
  return std::string(name) + std::string(kColumn - std::min(kColumn - 1, name.size()), ' ');
}

// "batch length" -> "--batch --length"
std::string as_options(std::string_view names) {
  std::string text;
  bool begins = true;
  for (const char c : names) {
    if (begins) text += "--";
    text += c;
    begins = c == ' ';
  }
  return text;
}

void list_models(bool json_wanted) {
  std::string text;
  JsonWriter json(text);
  json.objects(all_generators(), [&](const GeneratorEntry& entry) {
    json.field("name", entry.name);
    json.field("summary", entry.summary);
    json.field("options", entry.options);
  });
  json.finish();
  if (!json_wanted) {
    text.clear();
    for (const GeneratorEntry& entry : all_generators())
      text += padded(entry.name) + std::string(entry.summary) + "\n" + padded("") +
              as_options(entry.options) + "\n";
  }
  print_result(text);
}

void list_presets(bool json_wanted) {
  std::string text;
  JsonWriter json(text);
  json.objects(all_device_presets(), [&](const DevicePreset& preset) {
    json.field("name", preset.name);
    json.field("description", preset.description);
    json.field("fp32_flops", preset.effective_flops(Precision::kFp32));
    json.field("fp16_flops", preset.effective_flops(Precision::kFp16));
    json.field("memory_bandwidth", preset.effective_bandwidth());
    json.field("capacity", preset.capacity.count());
  });
  json.finish();
  if (!json_wanted) {
    text.clear();
    for (const DevicePreset& preset : all_device_presets())
      text += padded(preset.name) + std::string(preset.description) + "\n";
  }
  print_result(text);
}

// What one device would take, for the words or the JSON after the graph has been written.
void report(const GenerateArguments& options, const OpGraph& graph, bool json_wanted) {
  const GraphFacts facts = graph_facts(graph);
  const Bytes peak =
      sequential_peak(graph, graph.topological_order(), graph.memory_mode() == MemoryMode::kRetain)
          .bytes;
  if (!json_wanted) {
    print_words(graph.name() + ": " + count_text(facts.num_ops) + " operators, " +
                count_text(facts.num_edges) + " edges; one device " + short_text(facts.work) +
                " and " + short_text(peak) + ", longest path " + short_text(facts.critical_path));
    return;
  }
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  json.field("output", options.output);
  json.field("name", graph.name());
  json.field("operators", facts.num_ops);
  json.field("edges", facts.num_edges);
  json.field("groups", facts.num_groups);
  json.field("work_ns", facts.work.count());
  json.field("critical_path_ns", facts.critical_path.count());
  json.field("permanent_bytes", facts.permanent.count());
  json.field("one_device_peak_bytes", peak.count());
  json.end_object();
  json.finish();
  print_result(text);
}

ExitCode run_generate(const GenerateArguments& options, const RunContext& context) {
  if (options.list) return list_models(context.json), ExitCode::kOk;
  if (options.list_devices) return list_presets(context.json), ExitCode::kOk;
  if (options.model.empty()) throw InputError("generate", "which graph? --list names them");
  refuse_terminal(options.output, options.model + ".json");
  const Progress progress("generating " + options.model);
  OpGraph graph = generate_graph(options.model, request_of(options, context.cancel));
  if (options.variables) graph = with_variables(graph);
  throw_if_cancelled(context.cancel);
  const std::string document = graph_to_json(graph);
  throw_if_cancelled(context.cancel);
  write_result(options.output, document);
  const bool to_file = !options.output.empty() && options.output != "-";
  if (to_file || !context.json) report(options, graph, context.json);
  return ExitCode::kOk;
}

template <class Integer>
void add_number_option(OptionSet& set, const std::string& name, const std::string& words,
                       std::optional<Integer>& into, std::uint64_t least = 1) {
  set.add(
         name,
         [name, least, &into](const std::string& text) {
           constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<Integer>::max());
           into = static_cast<Integer>(parse_whole_number(name, text, least, kMost));
         },
         words)
      .type_name("N");
}

Run declare_generate(OptionSet& set) {
  auto options = std::make_shared<GenerateArguments>();
  GenerateRequest& request = options->request;
  set.add("model", options->model, "The graph to generate; --list lists all").type_name("MODEL");
  add_number_option(set, "--batch", "Mini-batch size", request.batch);
  add_number_option(set, "--micro-batches",
                    "Divide the mini-batch into N micro-batches; the graph is that of one",
                    request.micro_batches);
  add_number_option(set, "--length", "Tokens per sequence", request.length);
  add_number_option(set, "--layers", "Number of layers (of encoder and of decoder)",
                    request.layers);
  add_number_option(set, "--operators", "Number of operators in a synthetic graph",
                    request.operators);
  add_number_option(set, "--seed", "Seed for the costs of a synthetic graph", request.seed, 0);
  set.add("--device", options->devices,
          "Devices to estimate times for: PRESET,... or KIND=PRESET,... (default gpu=rtx2080)")
      .type_name("DEVICES");
  set.add("--precision", options->precision,
          "Precision of the arithmetic: fp32, tf32, fp16 or bf16")
      .type_name("NAME");
  set.add_flag("--training", options->training,
               "Generate a training step where a model's default is a forward pass");
  set.add_flag("--inference", options->inference,
               "Generate a forward pass where a model's default is a training step")
      .excludes("--training");
  set.add_flag("--shared-embedding", options->shared_embedding,
               "For transformer: one embedding matrix for source, target and output; the paper has "
               "three");
  set.add_flag("--project-at-once", options->project_at_once,
               "For gnmt: project all steps onto the vocabulary at once, as the paper's published "
               "model does");
  set.add_flag(
      "--variables", options->variables,
      "For llama, moe, unet and two-tower: make weights and optimizer state variables, which "
      "place --residency may keep on a host");
  set.add_flag("--list", options->list, "List the graphs and the options they have");
  set.add_flag("--list-devices", options->list_devices, "List the device presets");
  add_output_option(set, options->output);
  return [options](const RunContext& context) { return run_generate(*options, context); };
}

}  // namespace

extern const Command kGenerateCommand{
    .name = "generate",
    .summary =
        "Generate the graph of a known model, or a synthetic one, with costs for named devices",
    .examples =
        "baechi generate --list\n"
        "baechi generate gnmt --length 40 --batch 128 -o gnmt.json\n"
        "baechi generate inception-v3 --batch 32 --device gpu=rtx2080,cpu=cpu -o inception.json\n"
        "baechi generate llama --device rtx3090,rtx4090 -o llama.json\n"
        "baechi generate layered --operators 100000 --seed 7 -o layered.json",
    .declare = declare_generate,
};

}  // namespace baechi::cli
