// SPDX-License-Identifier: Apache-2.0
#include "baechi/verify/check_plan.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "baechi/plan/planner.h"
#include "baechi/plan/steps/step_plan.h"
#include "unit/plan/one_size.h"
#include "unit/plan/training_graph.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

const Cluster& two() {
  static const Cluster cluster = byte_per_ns(2, CommunicationMode::kDuplex, Time(0));
  return cluster;
}

Plan some_plan() {
  const OpGraph graph = training(4);
  const CostModel costs(graph, two());
  return std::get<Plan>(make_plan(costs, {.method = "m-etf", .bounds = true}));
}

std::vector<std::string> after(const std::function<void(Plan&)>& change) {
  Plan plan = some_plan();
  change(plan);
  return check_plan(training(4), plan);
}

TEST_CASE("verify: every figure that a plan claims is counted again") {
  CHECK(after([](Plan&) {}).empty());
  const DeviceId first(0);
  const auto found = [&](const std::function<void(Plan&)>& change, const std::string& words) {
    const std::vector<std::string> said = after(change);
    REQUIRE(said.size() == 1);
    CHECK(said.front().find(words) != std::string::npos);
  };
  found([&](Plan& plan) { plan.devices[first].peak += Bytes(1); }, "peaks at ");
  found([&](Plan& plan) { plan.devices[first].peak_at += Time(1); }, "peaks first at ");
  found([&](Plan& plan) { plan.devices[first].peak_op.reset(); }, "peaks with ");
  found([&](Plan& plan) { plan.devices[first].busy += Time(1); }, "is busy for ");
  found([&](Plan& plan) { plan.devices[first].sent += Bytes(1); }, "sends ");
  found([&](Plan& plan) { plan.devices[first].received += Bytes(1); }, "receives ");
  found([&](Plan& plan) { plan.devices[first].run_peak = Bytes(1001); }, "will hold 1001 bytes");
  CHECK(after([&](Plan& plan) { plan.devices[first].run_peak = Bytes(1000); }).empty());
  found([](Plan& plan) { plan.bounds.front().value = plan.makespan() + Time(1); },
        "bound is above the step time");
  found([](Plan& plan) { plan.methods.front().makespan = Time(1); }, "claims a step of 1 ns");
  found([](Plan& plan) { plan.devices.resize(1); }, "tells of 1 devices, its cluster has 2");
}

TEST_CASE("verify: a step of micro-batches is checked against the graph of one") {
  StepRequest request{.search = {.budget = 0.02}};
  request.micro_batches = {3};
  const StepPlan made = step_plan_of(training(4), two(), request);
  const Plan& plan = std::get<Plan>(made.result);
  CHECK(check_plan(training(4), made.step.graph, plan).empty());
  // The right schedule of another graph's micro-batches.
  CHECK_FALSE(check_plan(training(5), made.step.graph, plan).empty());
  CHECK(why_wrong(nullptr, made.step.graph, plan).empty());
  const OpGraph other = training(5);
  CHECK(why_wrong(&other, made.step.graph, plan)
            .starts_with("the plan is wrong: micro-batches: operator 'f0@0' takes another time"));
}

}  // namespace
}  // namespace baechi::testing
