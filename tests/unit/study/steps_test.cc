// SPDX-License-Identifier: Apache-2.0
// Studies of steps of micro-batches: what-if, sweep, min and sensitivity plan as place does.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/base/error.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/steps/step_plan.h"
#include "baechi/plan/steps/step_request.h"
#include "baechi/study/device_worth.h"
#include "baechi/study/least.h"
#include "baechi/study/next_steps.h"
#include "baechi/study/sensitivity.h"
#include "baechi/study/sweep.h"
#include "baechi/study/what_if.h"
#include "baechi/verify/check_schedule.h"
#include "unit/graphs.h"
#include "unit/plan/training_graph.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

StepRequest of_micro_batches(std::vector<std::uint32_t> numbers,
                             std::optional<std::int64_t> mini_batch = {}) {
  StepRequest request{.search = {.budget = 0.02}};
  request.micro_batches = std::move(numbers);
  request.mini_batch = mini_batch;
  return request;
}

ClusterSpec four_devices(Bytes capacity = Bytes(1000)) {
  return byte_per_ns(4, CommunicationMode::kDuplex, Time(0), capacity).spec();
}

std::vector<OpGraph> at_sizes(std::initializer_list<std::int64_t> batches) {
  std::vector<OpGraph> graphs;
  for (const std::int64_t batch : batches) graphs.push_back(training(batch));
  return graphs;
}

const ScenarioOutcome& named(const std::vector<ScenarioOutcome>& told, const std::string& name) {
  const auto at = std::ranges::find(told, name, &ScenarioOutcome::name);
  REQUIRE(at != told.end());
  return *at;
}

TEST_CASE("studies of steps: what-if plans as place does, and scales the mini-batch") {
  const std::vector<OpGraph> sizes = at_sizes({1, 8});
  const StepRequest request = of_micro_batches({}, 8);
  const auto told =
      run_scenarios(sizes, standard_scenarios(sizes, four_devices(), request), request);
  const StepPlan planned = make_step_plan(at_sizes({1, 8}), Cluster(four_devices()), request);
  const Plan& plan = std::get<Plan>(planned.result);
  CHECK(named(told, "as it is").makespan == plan.makespan());
  CHECK(named(told, "as it is").micro_batches == plan.micro_batches);
  CHECK(plan.micro_batches > 1);
  CHECK(named(told, "as it is").batch_size == 8);
  CHECK(named(told, "twice the batch").batch_size == 16);
  CHECK(*named(told, "twice the batch").makespan > plan.makespan());
  CHECK(*named(told, "half the batch").makespan < plan.makespan());
  CHECK(*named(told, "one gpu fewer").makespan > plan.makespan());
  CHECK(*named(told, "one more gpu").makespan <= plan.makespan());
}

TEST_CASE("studies of steps: a mini-batch that numbers do not divide is no scenario, or a reason") {
  const OpGraph graph = training(1);
  const StepRequest request = of_micro_batches({4});
  for (const Scenario& scenario : standard_scenarios(graph, four_devices(), request))
    CHECK(scenario.name != "half the batch");
  const auto told = run_scenarios(
      graph, {{"now", four_devices()}, {"six", four_devices(), 6}, {"twelve", four_devices(), 12}},
      request);
  CHECK(told[0].batch_size == 4);
  CHECK(told[0].micro_batches == 4);
  CHECK(told[1].reason.find("4 does not divide the mini-batch of 6") != std::string::npos);
  CHECK(told[2].makespan.has_value());
  CHECK_THROWS_AS(run_scenarios(graph, {{"now", four_devices()}}, of_micro_batches({3}, 8)),
                  InputError);
  CHECK_THROWS_AS(run_scenarios(graph, {{"now", four_devices()}}, of_micro_batches({}, 8)),
                  InputError);
}

TEST_CASE("studies of steps: the present plan is an offer where planning anew finds nothing") {
  const OpGraph graph = training(8);
  const StepRequest ample = of_micro_batches({4});
  const ScenarioRun base = run_scenario(graph, {"now", four_devices()}, ample);
  REQUIRE(base.plan.has_value());
  StepRequest poor = ample;
  poor.search.method = "single";
  const ScenarioRun again = run_scenario(graph, {"same", four_devices()}, poor, &*base.plan);
  CHECK(again.outcome.method == kPresentPlan);
  CHECK(again.outcome.makespan == base.outcome.makespan);
  CHECK(again.outcome.micro_batches == 4);
  const Unrolled step = step_of(graph, ample, 4);
  CHECK(check_schedule(step.graph, Cluster(four_devices()), again.plan->schedule).empty());
}

TEST_CASE("studies of steps: a plan with second runs is one of another graph, and no offer") {
  const OpGraph graph = training(8);
  StepRequest request = of_micro_batches({4});
  request.recompute = Recompute::kAll;
  const ScenarioRun again = run_scenario(graph, {"now", four_devices()}, request);
  REQUIRE(again.plan.has_value());
  REQUIRE_FALSE(again.plan->recomputed.empty());
  StepRequest poor = of_micro_batches({4});
  poor.search.method = "single";
  const ScenarioRun same = run_scenario(graph, {"same", four_devices()}, poor, &*again.plan);
  CHECK(same.outcome.method == "single");
  const std::vector<ScenarioOutcome> told = next_steps(graph, *again.plan, nullptr);
  CHECK(named(told, "twice the memory").makespan.has_value());
}

TEST_CASE("studies of steps: sweep tells the number of every point") {
  const std::vector<OpGraph> sizes = at_sizes({1, 8});
  const auto points = sweep(sizes, four_devices(), {.devices = {1, 4}, .methods = {}},
                            of_micro_batches({1, 4, 8}, 8));
  REQUIRE(points.size() == 2);
  CHECK(points[0].outcome.micro_batches == 1);  // every operator takes 1 besides its samples
  CHECK(points[1].outcome.micro_batches > 1);
  CHECK(*points[1].outcome.makespan < *points[0].outcome.makespan);
}

TEST_CASE("studies of steps: min's plans are of the step, and fit") {
  const OpGraph graph = training(8);
  const auto parts = least_memory(graph, four_devices(), of_micro_batches({8}, 8));
  REQUIRE(parts.has_value());
  CHECK(parts->plan.micro_batches == 8);
  for (const PlanDevice& device : parts->plan.devices) CHECK(device.peak <= parts->capacity);
  CHECK(parts->impossible_below <= parts->capacity);
  const Unrolled step = step_of(graph, of_micro_batches({8}, 8), 8);
  CHECK(check_schedule(step.graph, Cluster(parts->plan.cluster), parts->plan.schedule).empty());
  const auto fewest = fewest_devices(graph, four_devices(Bytes(100)), 8, of_micro_batches({8}, 8));
  REQUIRE(fewest.has_value());
  CHECK(fewest->plan.micro_batches == 8);
}

// An operator with an output of 200 for one sample, which no device has room for, and of 100 for two.
// Of these nothing rules a plan out, and yet there is none: two devices have room for ten of the
// outputs of 16 that nobody reads, each, and there are 21 (too many to try all placements).
OpGraph less_for_more_samples(std::int64_t batch) {
  OpGraphBuilder builder("proof");
  builder.set_batch_size(batch);
  const auto add = [&](const std::string& name, std::int64_t bytes) {
    const OpId op = timed(builder, {.name = name}, Time(10));
    builder.add_output(op, Bytes(bytes));
  };
  add("large", 300 - 100 * batch);
  for (int i = 0; i < 21; ++i) add("o" + std::to_string(i), 8 * batch);
  return std::move(builder).build();
}

TEST_CASE("studies of steps: what one number rules out is not ruled out for the others") {
  std::vector<OpGraph> sizes;
  for (const std::int64_t batch : {1, 2}) sizes.push_back(less_for_more_samples(batch));
  const ClusterSpec cluster =
      byte_per_ns(2, CommunicationMode::kDuplex, Time(0), Bytes(170)).spec();
  const auto proved = [&](std::vector<std::uint32_t> numbers) {
    StepRequest request = of_micro_batches(std::move(numbers), 2);
    request.search.method = "m-etf";
    request.search.budget = 0.001;
    const ScenarioRun run = run_scenario(sizes, {"now", cluster}, request);
    REQUIRE_FALSE(run.outcome.makespan.has_value());
    return run.outcome.proved;
  };
  CHECK_FALSE(proved({1}));
  CHECK(proved({2}));
  CHECK_FALSE(proved({1, 2}));
}

TEST_CASE("studies of steps: devices' worth and sensitivity are those of the step") {
  const OpGraph graph = training(8);
  const StepRequest request = of_micro_batches({4});
  const DevicesWorth worth = devices_worth(graph, four_devices(), request);
  CHECK(worth.micro_batches == 4);
  for (const DeviceWorth& device : worth.devices) CHECK(*device.step_without >= *worth.step);
  CHECK(*worth.step <= *run_scenario(graph, {"now", four_devices()}, request).outcome.makespan);
  const auto exact =
      sensitivity(graph, Cluster(four_devices()), request, {.fraction = 0, .samples = 2});
  const auto& told = std::get<Sensitivity>(exact);
  CHECK(told.true_micro_batches == 4);
  CHECK(told.steps->max == told.true_makespan);
}

TEST_CASE("studies: what is stopped answers with what it has by then") {
  const std::vector<OpGraph> sizes = at_sizes({8});
  CancelFlag flag;
  StepRequest request{.search = {.budget = 0.001}};
  request.search.place.cancel = &flag;
  const std::vector<Scenario> scenarios(4, {"as it is", four_devices()});
  std::size_t begun = 0;
  const auto stop_at_third = [&](const auto&) {
    if (++begun == 3) flag.request();
  };
  CHECK(run_scenarios(sizes, scenarios, request, stop_at_third).size() == 2);
  CHECK_THROWS_AS(run_scenarios(sizes, scenarios, request), Cancelled);
  CHECK_THROWS_AS(least_memory(sizes, four_devices(), request), Cancelled);
  CHECK_THROWS_AS(sensitivity(sizes, Cluster(four_devices()), request,
                              {.fraction = 0.2, .samples = 2, .cancel = &flag}),
                  Cancelled);

  CancelFlag other;
  request.search.place.cancel = &other;
  const Grid grid{.memory = {kFullSpeed}, .devices = {1, 2, 3, 4}, .methods = {"m-etf"}};
  const auto stop = [&](const GridPoint& point) {
    if (point.devices == 2) other.request();
  };
  CHECK(sweep(sizes, four_devices(), grid, request, stop).size() == 2);

  CancelFlag third;
  request.search.place.cancel = &third;
  const auto stop_without_second = [&](const std::string& name) {
    if (name == "without " + four_devices().devices[1].name) third.request();
  };
  const DevicesWorth worth = devices_worth(sizes, four_devices(), request, stop_without_second);
  CHECK(worth.step.has_value());
  CHECK(worth.devices.size() == 1);
}

}  // namespace
}  // namespace baechi::testing
