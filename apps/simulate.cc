// SPDX-License-Identifier: Apache-2.0
// baechi simulate: replays a plan's placement, on its own cluster or on another one.
#include <memory>
#include <string>

#include "apps/arguments.h"
#include "apps/command_line.h"
#include "apps/console.h"
#include "apps/replays.h"
#include "baechi/base/error.h"
#include "baechi/base/short_text.h"
#include "baechi/io/plan/plan_file.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/report/text/plan_text.h"
#include "baechi/report/text/text_table.h"
#include "baechi/simulate/settle.h"

namespace baechi::cli {
namespace {

struct SimulateArguments {
  GraphArgument graph;
  std::string plan, output;
  ClusterArgument cluster;
  std::optional<ExecutionOrder> order;
};

// A step of micro-batches in the order that its file tells.
Plan replay(const SimulateArguments& options, const Unrolled& step, const Plan& plan,
            const CostModel& costs, const RunContext& context) {
  if (step.micro_batches == 1)
    return replayed(plan, costs, options.order.value_or(plan.order), context.cancel);
  std::optional<Trace> trace =
      simulate_settled(costs, step,
                       {placement_of(plan.schedule),
                        order_of(plan.schedule, step.graph, costs.cluster().num_devices())},
                       {.cancel = context.cancel});
  if (!trace.has_value())
    throw InputError(options.plan,
                     "on this cluster the plan's order is none that a file can tell: operators "
                     "that take no time change places with every replay");
  return retold(plan, costs, *std::move(trace), plan.order);
}

ExitCode simulate_plan(const SimulateArguments& options, const RunContext& context) {
  const auto [step, plan, original] = load_plan_to_show(options.plan, options.graph, context);
  const OpGraph& graph = step.graph;
  const Cluster cluster = load_cluster(options.cluster, plan.cluster);
  if (cluster.num_devices() != plan.cluster.devices.size())
    throw InputError(options.plan,
                     "the plan is for " + std::to_string(plan.cluster.devices.size()) +
                         " devices, the cluster has " + std::to_string(cluster.num_devices()));
  const CostModel costs(graph, cluster);
  refuse_order(plan, options.order);
  const Plan result = replay(options, step, plan, costs, context);
  const std::optional<DeviceId> full = first_over(result);

  if (!options.output.empty() && !full.has_value())
    write_result(options.output, plan_to_json(result, step));
  if (context.json)
    print_result(plan_to_json(result, step));
  else if (options.output != "-")
    print_text("step " + short_text(result.makespan()) + order_words(result) + "\n\n" +
               devices_text(result, graph));
  if (!full.has_value()) return ExitCode::kOk;
  print_words("baechi: " + options.plan + ": " + over_words(result, *full));
  return ExitCode::kDoesNotFit;
}

Run declare_simulate(OptionSet& set) {
  auto options = std::make_shared<SimulateArguments>();
  add_graph_argument(set, options->graph);
  set.add("plan", options->plan, "The plan file").required().check(check_path).type_name("PLAN");
  add_cluster_options(set, options->cluster, /*required=*/false);
  add_order_option(set, options->order);
  add_output_option(set, options->output);
  return [options](const RunContext& context) { return simulate_plan(*options, context); };
}

}  // namespace

extern const Command kSimulateCommand{
    .name = "simulate",
    .summary = "Replay a plan: when everything happens and what memory it takes",
    .examples =
        "baechi simulate model.json plan.json\n"
        "baechi simulate model.json plan.json --order none\n"
        "baechi simulate model.json plan.json --host-time 2us,10us\n"
        "baechi simulate model.json plan.json --cluster 4x8GiB --link 5us,50GB/s --json",
    .declare = declare_simulate,
};

}  // namespace baechi::cli
