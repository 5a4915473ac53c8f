// SPDX-License-Identifier: Apache-2.0
// baechi export: a plan as the settings of other programs.
#include <memory>
#include <string>
#include <vector>

#include "apps/arguments.h"
#include "apps/command_line.h"
#include "apps/console.h"
#include "apps/model_output.h"
#include "baechi/base/error.h"
#include "baechi/base/short_text.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/io/plan/plan_file.h"
#include "baechi/report/export/exports.h"
#include "baechi/report/text/plan_text.h"

namespace baechi::cli {
namespace {

struct ExportArguments {
  GraphArgument graph;
  std::string plan, to, form, output;
};

// Needs the model itself, not only its graph.
constexpr const char* kOnnx = "onnx";

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const ExportFormat& format : export_formats())
    if (names.empty() || names.back() != format.name) names.emplace_back(format.name);
  names.emplace_back(kOnnx);
  return names;
}

std::string format_help() {
  std::string text = "What to write:";
  for (const ExportFormat& format : export_formats())
    text += "\n" + std::string(format.name) +
            (format.form.empty() ? ": " : " --form " + std::string(format.form) + ": ") +
            std::string(format.summary);
  return text + "\n" + kOnnx + ": the ONNX model that GRAPH is, with a device on every node";
}

// What no such file says: how long a step takes without the plan's order.
void show_step(const OpGraph& graph, const Plan& plan, const ExportArguments& options, bool json) {
  const bool replays = plan.micro_batches == 1;  // a step of several has its planned order only
  const OrderlessStep step =
      replays ? orderless_step(graph, plan)
              : OrderlessStep{plan.makespan(), "a step of " + std::to_string(plan.micro_batches) +
                                                   " micro-batches takes " +
                                                   short_text(plan.makespan()) +
                                                   " in the order of the plan, of which this "
                                                   "keeps the placement alone"};
  if (!json) return print_words(step.words);
  std::string text;
  JsonWriter writer(text);
  writer.begin_object();
  writer.field("output", options.output);
  writer.field("format", options.to);
  writer.field("order", execution_order_name(plan.order));
  writer.field("makespan", plan.makespan().count());
  if (replays) writer.field("makespan_without_order", step.makespan.count());
  writer.end_object();
  writer.finish();
  print_result(text);
}

ExitCode export_plan(const ExportArguments& options, const RunContext& context) {
  const bool json = context.json && options.output != "-" && !options.output.empty();
  if (options.to == kOnnx) {
    if (!options.form.empty()) throw InputError("--form", "'onnx' has no forms");
    const SourceText model = read_model(options.graph.path, ModelFormat::kOnnx);
    const OpGraph graph = load_graph(options.graph, context);
    const Plan plan = read_plan(options.plan, graph);
    warn_of_wrong(options.plan, nullptr, graph, plan);
    write_result(options.output, placed_model(model, ModelFormat::kOnnx, graph, plan));
    show_step(graph, plan, options, json);
    return ExitCode::kOk;
  }
  const ExportFormat& format = find_export_format(options.to, options.form);
  const OpenedPlan opened = load_plan_to_show(options.plan, options.graph, context);
  const Unrolled& step = opened.step;
  check_can_tell(format, opened.plan);
  if (step.micro_batches == 1)
    write_result(options.output, format.write(step.graph, opened.plan));
  else
    write_result(options.output,
                 write_export(format, step, load_graph(options.graph, context), opened.plan));
  if (format.placement_alone) show_step(step.graph, opened.plan, options, json);
  return ExitCode::kOk;
}

Run declare_export(OptionSet& set) {
  auto options = std::make_shared<ExportArguments>();
  add_graph_argument(set, options->graph);
  set.add("plan", options->plan, "The plan file").required().check(check_path).type_name("PLAN");
  set.add("--to", options->to, format_help())
      .required()
      .one_of(format_names(), gone_export_formats());
  set.add("--form", options->form, "What --to torch-pipelining writes (default: schedule)")
      .one_of({"schedule", "split-spec", "module-fqns"});
  add_output_option(set, options->output);
  return [options](const RunContext& context) { return export_plan(*options, context); };
}

}  // namespace

extern const Command kExportCommand{
    .name = "export",
    .summary =
        "Write a plan for another program: device_map, ONNX, TensorFlow, Megatron, vLLM, llama.cpp",
    .examples =
        "baechi export model.json plan.json --to device-map -o device_map.json\n"
        "baechi export model.json plan.json --to llama-cpp\n"
        "baechi export model.json plan.json --to csv -o plan.csv",
    .declare = declare_export,
};

}  // namespace baechi::cli
