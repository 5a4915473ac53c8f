// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/recompute_steps.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/graph/recomputation.h"
#include "baechi/graph/recosted.h"
#include "baechi/io/plan/plan_file.h"
#include "baechi/io/step/open_plan.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/plan/recompute/recompute.h"
#include "baechi/plan/request/answer.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/steps/step_plan.h"
#include "baechi/report/text/explanation_text.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/study/explain.h"
#include "baechi/study/second_run_facts.h"
#include "baechi/verify/check_plan.h"
#include "property/effort.h"
#include "unit/graph/training_sketches.h"
#include "unit/graphs.h"
#include "unit/plan/one_size.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

Cluster some_devices(std::size_t count, Bytes capacity) {
  return byte_per_ns(count, CommunicationMode::kDuplex, Time(0), capacity);
}

StepPlan planned_steps(const OpGraph& graph, const Cluster& cluster, std::uint32_t micro_batches,
                       Recompute recompute, bool suggest = false) {
  StepRequest request{.search = {.budget = 0.02}};
  request.recompute = recompute;
  request.micro_batches = {micro_batches};
  request.search.suggest = suggest;  // advice takes more plans
  return step_plan_of(graph, cluster, request);
}

// What one device holds that runs micro-batch after micro-batch, each backward at once.
Bytes need_of_steps(const OpGraph& graph, std::uint32_t micro_batches) {
  const StepPlan made =
      planned_steps(graph, some_devices(1, Bytes(1'000'000)), micro_batches, Recompute::kNone);
  const Unrolled& step = made.step;
  DeviceOrder lists(1);
  for (std::uint32_t m = 0; m < micro_batches; ++m)
    for (const OpId op : graph.topological_order()) lists[kGpu0].push_back(step.copy(op, m));
  const Cluster cluster = some_devices(1, Bytes(1'000'000));
  return simulate(CostModel(step.graph, cluster), {Placement(step.graph.num_ops(), kGpu0), lists})
      .devices[kGpu0]
      .peak;
}

TEST_CASE("recompute: steps of micro-batches fit by second runs, keep every rule, and are read") {
  std::uint64_t only_so = 0;
  for (std::uint64_t seed = 1; seed <= testing::effort(8, 4); ++seed) {
    const OpGraph graph = random_training(seed, 7, seed % 2 == 0);
    const auto micro_batches = static_cast<std::uint32_t>(2 + seed % 3);
    const Bytes need = need_of_steps(graph, micro_batches);
    for (const int percent : {100, 70, 45}) {
      CAPTURE(seed);
      CAPTURE(percent);
      const Cluster cluster = some_devices(1 + seed % 2, Bytes(need.count() * percent / 100));
      const auto step_of = [&](Recompute recompute) -> std::optional<Time> {
        const StepPlan made = planned_steps(graph, cluster, micro_batches, recompute);
        const Plan* plan = std::get_if<Plan>(&made.result);
        if (plan == nullptr) return std::nullopt;
        CHECK(plan->micro_batches == micro_batches);
        for (const NamedBound& bound : plan->bounds) CHECK(bound.value <= plan->makespan());
        if (plan->recomputed.empty()) {
          CHECK(check_plan(made.step.graph, *plan).empty());
          return plan->makespan();
        }
        CHECK(check_plan(graph, made.step.graph, *plan).empty());
        const std::string text = plan_to_json(*plan, made.step);
        const OpenedPlan back = open_plan_text(text, "plan.json", recosted(graph, {}));
        REQUIRE(back.original.has_value());
        CHECK(back.plan.recomputed == plan->recomputed);
        CHECK(check_plan(*back.original, back.step.graph, back.plan).empty());
        CHECK(plan_to_json(back.plan, back.step) == text);
        return plan->makespan();
      };
      const auto none = step_of(Recompute::kNone), every = step_of(Recompute::kAll);
      const auto best = step_of(Recompute::kAuto);
      if (none.has_value() || every.has_value()) REQUIRE(best.has_value());
      if (none.has_value()) CHECK(*best <= *none);
      if (!none.has_value() && best.has_value()) {
        ++only_so;
        if (every.has_value()) CHECK(*best <= *every);
      }
    }
  }
  CHECK(only_so >= testing::effort(4, 4));
}

TEST_CASE("recompute: a step whose second runs are not those of the plan is found out") {
  const OpGraph graph = random_training(2, 7, true);
  const Cluster cluster = some_devices(1, Bytes(need_of_steps(graph, 2).count() * 70 / 100));
  StepPlan made = planned_steps(graph, cluster, 2, Recompute::kAuto);
  REQUIRE(std::holds_alternative<Plan>(made.result));
  Plan plan = std::get<Plan>(made.result);
  REQUIRE(plan.recomputed.size() > 1);
  REQUIRE(check_plan(graph, made.step.graph, plan).empty());
  plan.recomputed.pop_back();
  CHECK_FALSE(check_plan(graph, made.step.graph, plan).empty());
}

// All in flight at once: what each second run makes is dropped for as many micro-batches.
TEST_CASE("recompute: second runs in steps of micro-batches say what they buy and cost") {
  const OpGraph graph = random_training(2, 7, true);
  const std::uint32_t micro_batches = 3;
  const Cluster cluster = some_devices(1, Bytes(1'000'000));
  const StepPlan made = planned_steps(graph, cluster, micro_batches, Recompute::kAll);
  REQUIRE(std::holds_alternative<Plan>(made.result));
  Plan plan = std::get<Plan>(made.result);
  const Unrolled& step = made.step;
  const std::size_t given = graph.num_ops();
  REQUIRE(plan.recomputed.size() > 1);
  // Forward passes first, then the backward passes, or each backward pass at once.
  for (const bool all_at_once : {true, false}) {
    CAPTURE(all_at_once);
    DeviceOrder lists(1);
    const OpGraph one = recomputing(graph, plan.recomputed);
    const auto append = [&](bool backward, std::uint32_t m) {
      for (const OpId op : one.topological_order())
        if (one[op].backward == backward) lists[kGpu0].push_back(step.copy(op, m));
    };
    for (std::uint32_t m = 0; m < micro_batches; ++m) {
      append(false, m);
      if (!all_at_once) append(true, m);
    }
    for (std::uint32_t m = 0; all_at_once && m < micro_batches; ++m) append(true, m);
    const CostModel costs(step.graph, cluster);
    Trace trace = simulate(costs, {Placement(step.graph.num_ops(), kGpu0), lists});
    Plan other = retold(plan, costs, std::move(trace), ExecutionOrder::kPlanned);
    const std::vector<SecondRunFacts> facts = second_run_facts(step, other);
    REQUIRE(facts.size() == plan.recomputed.size());
    for (const SecondRunFacts& fact : facts) {
      CAPTURE(fact.name);
      CHECK(fact.name == std::string(graph[fact.op].name));
      CHECK(fact.run.index() >= given);
      CHECK(fact.time == *graph.times(KindId(0))[fact.op]);
      REQUIRE(fact.gaps.size() == micro_batches);
      CHECK(fact.at_once == (all_at_once ? micro_batches : 1));
      for (std::uint32_t m = 0; m < micro_batches; ++m) {
        CHECK(fact.gaps[m].until == other.schedule.slots[step.copy(fact.run, m)].start);
        CHECK(fact.gaps[m].from >= other.schedule.slots[step.copy(fact.op, m)].end);
        CHECK(fact.gaps[m].from <= fact.gaps[m].until);
      }
    }
    const PlanExplanation told = explain_plan(step, cluster, other);
    CHECK(told.second_runs == facts);
    const std::string text = explanation_text({step.graph, cluster, other}, told);
    CHECK(text.find("run a second time in every micro-batch, ") != std::string::npos);
    CHECK(text.find(all_at_once ? "of up to 3 micro-batches at once not held"
                                : "of one micro-batch at a time not held") != std::string::npos);
    CHECK(text.find(", for 3 x ") != std::string::npos);
  }
}

TEST_CASE("recompute: a refused step of micro-batches says what second runs would bring") {
  const OpGraph graph = random_training(2, 7, true);
  const Cluster cluster = some_devices(1, Bytes(need_of_steps(graph, 2).count() * 70 / 100));
  const StepPlan made = planned_steps(graph, cluster, 2, Recompute::kNone, true);
  REQUIRE(std::holds_alternative<Unplaceable>(made.result));
  CHECK(std::get<Unplaceable>(made.result).step_with_recomputation.has_value());
}

TEST_CASE("recompute: where nothing tells updates apart, steps of micro-batches repeat nothing") {
  const StepPlan made =
      planned_steps(three_layers(), some_devices(1, Bytes(1000)), 2, Recompute::kAll);
  REQUIRE(std::holds_alternative<Plan>(made.result));
  const Plan& plan = std::get<Plan>(made.result);
  CHECK(plan.recomputed.empty());
  CHECK(std::ranges::any_of(plan.notes, [](const std::string& note) {
    return note.find("neither does a gradient") != std::string::npos;
  }));
}

}  // namespace
}  // namespace baechi::testing
