// SPDX-License-Identifier: Apache-2.0
// baechi explain: why a step takes as long as it does, and why an operator is where it is.
#include "baechi/study/explain.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/arguments.h"
#include "apps/command_line.h"
#include "apps/console.h"
#include "apps/planning.h"
#include "apps/replays.h"
#include "baechi/base/error.h"
#include "baechi/bounds/lower_bounds.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/report/text/explanation_text.h"
#include "baechi/study/near_names.h"
#include "baechi/verify/check_plan.h"

namespace baechi::cli {
namespace {

struct ExplainArguments {
  SizesArgument sizes;
  std::string plan, op;
  ClusterArgument cluster;
  std::optional<ExecutionOrder> order;
};

// The plan as it would run on the cluster and in the order that it is asked about: replayed when
// one of them is another.
Plan plan_on(const Plan& plan, ExecutionOrder order, const CostModel& costs,
             const RunContext& context) {
  const Cluster& cluster = costs.cluster();
  if (cluster.spec() == plan.cluster && order == plan.order) return plan;
  if (cluster.num_devices() != plan.cluster.devices.size())
    throw InputError("--cluster", "the plan is for " + std::to_string(plan.cluster.devices.size()) +
                                      " devices, the cluster has " +
                                      std::to_string(cluster.num_devices()));
  return replayed(plan, costs, order, context.cancel);
}

// Of a step of several micro-batches; on the cluster and in the order of `plan`.
std::optional<PipelineExplanation> pipeline_of(const Unrolled& step, const Plan& plan,
                                               const ExplainArguments& options,
                                               const RunContext& context) {
  if (plan.micro_batches == 1) return std::nullopt;
  const std::vector<OpGraph> sizes = load_sizes(options.sizes, context);
  return PipelineExplanation{.bubbles = find_bubbles(step, Cluster(plan.cluster), plan.schedule),
                             .limit = pipeline_limit(plan),
                             .next = next_steps(sizes, plan, context.cancel),
                             .scaled = sizes.size() == 1 && sizes.front().batch_size().has_value()};
}

ExitCode explain(const ExplainArguments& options, const RunContext& context) {
  const auto [step, given, original] = load_plan(options.plan, options.sizes.graph, context);
  const OpGraph& graph = step.graph;
  refuse_order(given, options.order);
  require_right(original.has_value() ? &*original : nullptr, step, given, options.plan,
                {.capacities = false});
  const Cluster cluster = load_cluster(options.cluster, given.cluster);
  const CostModel costs(graph, cluster);
  Plan plan = plan_on(given, options.order.value_or(given.order), costs, context);
  if (plan.bounds.empty() && plan.recomputed.empty() && plan.residency.empty() &&
      !plan.replicas.any())
    plan.bounds = lower_bounds(costs, context.cancel);
  const std::optional<PipelineExplanation> pipeline =
      options.op.empty() ? pipeline_of(step, plan, options, context) : std::nullopt;
  const Explained explained{graph, cluster, plan, pipeline.has_value() ? &*pipeline : nullptr};

  std::string text;
  if (options.op.empty()) {
    const PlanExplanation told = explain_plan(step, cluster, plan);
    text = context.json ? explanation_json(explained, told) : explanation_text(explained, told);
  } else {
    const OperatorExplanation told =
        explain_operator(costs, plan, find_operator(graph, options.op), context.cancel);
    text = context.json ? explanation_json(explained, told) : explanation_text(explained, told);
  }
  context.json ? print_result(text) : print_text(text);
  const std::optional<DeviceId> full = first_over(plan);
  if (!full.has_value()) return ExitCode::kOk;
  print_words("baechi: " + options.plan + ": " + over_words(plan, *full));
  return ExitCode::kDoesNotFit;
}

Run declare_explain(OptionSet& set) {
  auto options = std::make_shared<ExplainArguments>();
  add_graph_argument(set, options->sizes.graph);
  set.add("plan", options->plan, "The plan file").required().check(check_path).type_name("PLAN");
  set.add("--op", options->op,
          "Explain why this operator is on its device: start, finish, memory and step time on "
          "every other one")
      .check([](const std::string& name) {
        return name.empty() ? "the operator's name is empty" : std::string();
      })
      .type_name("NAME");
  add_sizes_option(set, options->sizes);
  add_cluster_options(set, options->cluster, /*required=*/false);
  add_order_option(set, options->order);
  return [options](const RunContext& context) { return explain(*options, context); };
}

}  // namespace

extern const Command kExplainCommand{
    .name = "explain",
    .summary =
        "Explain why a step takes that long, what holds the memory, why an operator is where it is",
    .examples =
        "baechi explain model.json plan.json\n"
        "baechi explain model.json plan.json --op encoder/layer_3/attention\n"
        "baechi explain model.json plan.json --cluster 4x8GiB --link 5us,50GB/s --json",
    .declare = declare_explain,
};

}  // namespace baechi::cli
