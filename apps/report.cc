// SPDX-License-Identifier: Apache-2.0
// baechi report: a plan, or two side by side, as one HTML page.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/arguments.h"
#include "apps/command_line.h"
#include "apps/console.h"
#include "apps/replays.h"
#include "baechi/base/error.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/report/html/html_report.h"

namespace baechi::cli {
namespace {

struct ReportArguments {
  GraphArgument graph;
  std::string output;
  std::vector<std::string> plans;
  std::optional<ExecutionOrder> order;
};

ExitCode report(const ReportArguments& options, const RunContext& context) {
  if (context.json && options.output == "-")
    throw InputError("report", "--json and -o - both want standard output");
  std::vector<OpenedPlan> plans;
  std::vector<ReportPlan> shown;
  for (const std::string& path : options.plans) {
    OpenedPlan opened = load_plan_to_show(path, options.graph, context);
    Plan& plan = opened.plan;
    refuse_order(plan, options.order);
    if (options.order.value_or(plan.order) != plan.order) {
      const Cluster cluster(plan.cluster);
      plan = replayed(plan, CostModel(opened.step.graph, cluster), *options.order, context.cancel);
    }
    plans.push_back(std::move(opened));
  }
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (plans[i].plan.replicas != plans[0].plan.replicas)
      throw InputError(options.plans[i],
                       "plans of other replicas cannot be compared on one page: their steps have "
                       "other operators");
    if (plans[i].plan.micro_batches != plans[0].plan.micro_batches)
      throw InputError(options.plans[i],
                       "a step of " + std::to_string(plans[i].plan.micro_batches) +
                           " micro-batches cannot be compared with one of " +
                           std::to_string(plans[0].plan.micro_batches) + " on one page");
    if (plans[i].plan.recomputed != plans[0].plan.recomputed)
      throw InputError(options.plans[i],
                       "plans that run other operators a second time cannot be compared on one "
                       "page: their steps have other operators");
    if (plans[i].plan.residency != plans[0].plan.residency)
      throw InputError(options.plans[i],
                       "plans that keep other tensors on the host cannot be compared on one page: "
                       "their steps have other fetches");
    shown.push_back({&plans[i].plan, options.plans[i]});
  }
  const std::string page = html_report(plans[0].step, shown);
  write_result(options.output, page);
  if (context.json) {
    std::string text;
    JsonWriter json(text);
    json.begin_object();
    json.field("output", options.output);
    json.field("plans", plans.size());
    json.field("bytes", page.size());
    json.end_object();
    json.finish();
    print_result(text);
  } else if (options.output != "-") {
    print_words("wrote " + options.output + ": open it in a browser");
  }
  return ExitCode::kOk;
}

Run declare_report(OptionSet& set) {
  auto options = std::make_shared<ReportArguments>();
  add_graph_argument(set, options->graph);
  set.add("plan", options->plans, "The plan file, or two to compare")
      .required()
      .values(1, 2)
      .check(check_path)
      .type_name("PLAN [PLAN]");
  add_order_option(set, options->order);
  set.add("-o,--output", options->output, "The page to write; - is standard output")
      .required()
      .check(check_path)
      .type_name("FILE");
  return [options](const RunContext& context) { return report(*options, context); };
}

}  // namespace

extern const Command kReportCommand{
    .name = "report",
    .summary = "Show a plan, or two side by side, as one HTML page: timeline, memory, bounds",
    .examples =
        "baechi report model.json plan.json -o report.html\n"
        "baechi report model.json before.json after.json -o compare.html",
    .declare = declare_report,
};

}  // namespace baechi::cli
