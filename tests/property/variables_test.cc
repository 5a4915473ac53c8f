// SPDX-License-Identifier: Apache-2.0
// Steps of micro-batches with variables, some of which micro-batches change: the simulator, the
// bounds and the planner against the oracle and the verifier.
#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/bounds/lower_bounds.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/graph/recosted.h"
#include "baechi/graph/unroll.h"
#include "baechi/io/plan/plan_file.h"
#include "baechi/io/step/open_plan.h"
#include "baechi/plan/steps/step_plan.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_plan.h"
#include "baechi/verify/check_schedule.h"
#include "baechi/verify/check_variables.h"
#include "property/effort.h"
#include "unit/brute_force.h"
#include "unit/graphs.h"
#include "unit/plan/one_size.h"
#include "unit/simulate/random_placement.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

std::string first_of(const std::vector<std::string>& sentences) {
  return sentences.empty() ? "" : sentences.front();
}

RandomDag with_variables(std::size_t max_ops) {
  RandomDag limits{.min_ops = 2, .max_ops = max_ops, .edge_chance = 0.5, .cpu_chance = 0.5};
  limits.variable_chance = 0.4;
  limits.write_chance = 0.7;
  limits.random_chance = 0.3;
  return limits;
}

TEST_CASE("variables: every replay of a step keeps the order of micro-batches where it counts") {
  std::size_t checked = 0, written = 0;
  for (std::uint64_t seed = 0; seed < effort(3000); ++seed) {
    CAPTURE(seed);
    Random random(seed ^ 0x0a81ab1e);
    const OpGraph graph = random_dag(seed, with_variables(9));
    const Unrolled step = unroll(graph, 2 + static_cast<std::uint32_t>(random.below(3)));
    const Cluster cluster = varied_cluster(seed, random);
    const CostModel costs(step.graph, cluster);
    const std::optional<Placement> placement = random_placement(costs, random);
    if (!placement.has_value()) continue;
    PlacedGraph placed{*placement, std::nullopt};
    if (random.chance(0.5)) placed.order = random_order(costs, *placement, random);
    const Schedule schedule = simulate(costs, placed).schedule;
    REQUIRE(first_of(check_schedule(step.graph, cluster, schedule, {.capacities = false})) == "");
    REQUIRE(first_of(check_carried(step, cluster, schedule)) == "");
    ++checked;
    if (!step.writes.empty()) ++written;
  }
  CHECK(checked > effort(2000));
  CHECK(written > effort(1000));
}

TEST_CASE("variables: no bound of a step with them exceeds its exact optimum") {
  std::size_t solved = 0, written = 0;
  for (std::uint64_t seed = 0; seed < effort(3000); ++seed) {
    CAPTURE(seed);
    const OpGraph graph = random_dag(seed, with_variables(4));
    const Unrolled step = unroll(graph, 2);
    if (step.graph.num_ops() > 7 || step.per_micro_batch == 0) continue;
    const Cluster cluster = random_cluster(seed, Bytes(seed % 3 == 0 ? 40 : 1'000'000));
    const std::optional<Optimum> best = optimal_makespan(step.graph, cluster);
    if (!best.has_value()) continue;
    const CostModel costs(step.graph, cluster);
    const Trace trace = simulate(costs, best->placed);
    REQUIRE(trace.schedule.makespan == best->makespan);
    REQUIRE(first_of(check_carried(step, cluster, trace.schedule)) == "");
    for (const NamedBound& bound : lower_bounds(costs)) {
      CAPTURE(bound.name);
      REQUIRE(bound.value.count() <= best->makespan.count());
    }
    ++solved;
    if (!step.writes.empty()) ++written;
  }
  CHECK(solved > effort(1000));
  CHECK(written > effort(300));
}

// Layers of a weight, running averages that the forward changes, dropout, a gradient by the input
// and one by the weight, and an update. Each layer's weight is read by three operators.
OpGraph training_with_variables(std::uint64_t seed, int layers) {
  Random random(seed);
  OpGraphBuilder builder("training with variables");
  const auto drawn = [&](std::int64_t most) { return random.between(1, most); };
  const auto add = [&](const std::string& name, std::int64_t time, OperatorSpec spec) {
    spec.name = name;
    return timed(builder, spec, Time(time));
  };
  const auto variable = [&](const std::string& name, std::int64_t bytes) {
    const OpId op = builder.add_operator({.name = name, .variable = true});
    builder.add_output(op, Bytes(bytes));
    return op;
  };
  std::vector<OpId> weight, forward, dropout;
  OpId last = add("x", 0, {.name = {}});
  builder.add_output(last, Bytes(4));
  const OpId input = last;
  for (int i = 0; i < layers; ++i) {
    const std::string n = std::to_string(i);
    weight.push_back(variable("w" + n, drawn(40)));
    const OpId mean = variable("mean" + n, 2);
    forward.push_back(add("f" + n, drawn(20), {.name = {}, .temporary = Bytes(drawn(5))}));
    for (const OpId read : {last, weight.back(), mean})
      builder.connect(*builder.output(read, 0), forward.back());
    builder.add_write(forward.back(), mean);
    builder.add_output(forward.back(), Bytes(drawn(20)));
    dropout.push_back(add("d" + n, drawn(3), {.name = {}, .random = true}));
    builder.connect(*builder.output(forward.back(), 0), dropout.back());
    builder.add_output(dropout.back(), Bytes(drawn(20)));
    last = dropout.back();
  }
  for (int i = layers; i-- > 0;) {
    const auto at = static_cast<std::size_t>(i);
    const std::string n = std::to_string(i);
    const OpId made = last;
    const OpId by_input = add("gx" + n, drawn(20), {.name = {}, .forward = forward[at]});
    const OpId by_weight = add("gw" + n, drawn(20), {.name = {}, .forward = forward[at]});
    for (const OpId op : {by_input, by_weight}) builder.connect(*builder.output(made, 0), op);
    builder.connect(*builder.output(weight[at], 0), by_input);
    builder.connect(*builder.output(i > 0 ? dropout[at - 1] : input, 0), by_weight);
    builder.connect(*builder.output(forward[at], 0), by_input);
    builder.add_output(by_input, Bytes(drawn(10)));
    const TensorId gradient = builder.add_output(by_weight, Bytes(drawn(40)));
    const OpId update = add("u" + n, drawn(4), {.name = {}, .backward = true, .per_step = true});
    builder.connect(gradient, update);
    builder.connect(*builder.output(weight[at], 0), update);
    last = by_input;
  }
  return std::move(builder).build();
}

void check_plan_of(std::uint64_t seed, std::uint32_t micro_batches, Recompute recompute,
                   const Cluster& cluster, std::size_t& planned, std::size_t& again) {
  const OpGraph graph = training_with_variables(seed, 2 + static_cast<int>(seed % 4));
  StepRequest request{.search = {.budget = 0.005}};
  request.micro_batches = {micro_batches};
  request.recompute = recompute;
  const StepPlan made = step_plan_of(graph, cluster, request);
  const Plan* plan = std::get_if<Plan>(&made.result);
  if (plan == nullptr) return;
  ++planned;
  if (!plan->recomputed.empty()) ++again;
  REQUIRE(first_of(plan->recomputed.empty() ? check_plan(made.step, *plan)
                                            : check_plan(graph, made.step, *plan)) == "");
  // Its file tells the same plan.
  const std::string text = plan_to_json(*plan, made.step);
  const OpenedPlan back = open_plan_text(text, "plan.json", recosted(graph, {}));
  REQUIRE(back.plan == *plan);
  // A weight counts once where it is, however many read it there.
  for (const OpId op : graph.ops())
    if (graph[op].variable) REQUIRE(plan->schedule.slots[op].end == Time(0));
}

TEST_CASE("variables: plans of training steps with gradients apart, with and without second runs") {
  std::size_t planned = 0, again = 0;
  for (std::uint64_t seed = 0; seed < effort(40); ++seed) {
    CAPTURE(seed);
    const Cluster cluster = byte_per_ns(2 + seed % 2, CommunicationMode::kDuplex, Time(1),
                                        Bytes(90 + 40 * static_cast<std::int64_t>(seed % 7)));
    for (const std::uint32_t micro_batches : {1U, 4U})
      for (const Recompute recompute : {Recompute::kNone, Recompute::kAuto}) {
        CAPTURE(micro_batches);
        check_plan_of(seed, micro_batches, recompute, cluster, planned, again);
      }
  }
  CHECK(planned >= effort(80));
  CHECK(again > effort(2));
}

}  // namespace
}  // namespace baechi::testing
