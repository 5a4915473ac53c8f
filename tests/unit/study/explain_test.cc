// SPDX-License-Identifier: Apache-2.0
#include "baechi/study/explain.h"

#include <doctest/doctest.h>

#include <string>
#include <variant>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/plan/planner.h"
#include "baechi/report/text/explanation_text.h"
#include "baechi/study/near_names.h"
#include "unit/graph_sketch.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

Plan plan_in_order(const CostModel& costs, const DeviceLists& lists) {
  return plan_of(costs, in_order(costs.graph(), lists), "given", /*bounds=*/true);
}

// One device that is never idle.
TEST_CASE("explain: a device that computes all the time is the bottleneck") {
  const OpGraph graph = GraphSketch().op("a", 5).op("b", 3).build();
  const Cluster cluster = byte_per_ns(2, CommunicationMode::kSequential);
  const CostModel costs(graph, cluster);
  const PlanExplanation told = explain_plan(graph, cluster, plan_in_order(costs, {{"a", "b"}, {}}));
  CHECK(told.bottleneck == Bottleneck::kDeviceLoad);
  CHECK(told.busiest == DeviceId(0));
  CHECK(told.segments.size() == 1);
}

// a 0-2, ten bytes 2-12, b 12-14.
TEST_CASE("explain: a step that mostly sends is bound by communication") {
  const OpGraph graph = chain({Time(2), Time(2)}, Bytes(10));
  const Cluster cluster = byte_per_ns(2, CommunicationMode::kSequential);
  const CostModel costs(graph, cluster);
  const Plan plan = plan_of(costs, {Placement{DeviceId(0), DeviceId(1)}, std::nullopt}, "x", true);
  const PlanExplanation told = explain_plan(graph, cluster, plan);
  CHECK(told.bottleneck == Bottleneck::kCommunication);
  CHECK(told.segments.size() == 3);
  const std::string text = explanation_text({graph, cluster, plan}, told);
  CHECK(text.find("bound by communication: 10 ns (71%)") != std::string::npos);
}

// gpu:0  a 0-6; gpu:1  b 0-4, c 4-8, after which d takes 2: c could have run at once, d needs all.
TEST_CASE("explain: waiting for devices that are not always busy is sharing them") {
  const OpGraph graph = GraphSketch()
                            .ops({{"a", 2}, {"b", 4}, {"c", 1}, {"d", 4}})
                            .tensors({{"c", 0, {"d"}}, {"a", 0, {"d"}}})
                            .build();
  const Cluster cluster = byte_per_ns(2, CommunicationMode::kSequential);
  const CostModel costs(graph, cluster);
  const Plan plan = plan_in_order(costs, {{"a", "d"}, {"b", "c"}});
  const PlanExplanation told = explain_plan(graph, cluster, plan);
  CHECK(plan.makespan() == Time(9));
  CHECK(told.path.total(CriticalUse::kDeviceWait) == Time(4));
  CHECK(told.path.total(CriticalUse::kCompute) == Time(5));
  CHECK(told.bottleneck == Bottleneck::kDependencies);
}

TEST_CASE("explain: memory is told by group, the largest holder first") {
  OpGraphBuilder builder("grouped");
  const OpId a = timed(builder, {.name = "a", .permanent = Bytes(10)}, Time(1));
  const OpId b = timed(builder, {.name = "b", .permanent = Bytes(30)}, Time(1));
  const OpId c = timed(builder, {.name = "c", .permanent = Bytes(25)}, Time(1));
  builder.add_to_group(a, "g");
  builder.add_to_group(c, "g");
  const OpGraph graph = std::move(builder).build();
  const Cluster cluster = byte_per_ns(1, CommunicationMode::kSequential, Time(0), Bytes(66));
  const CostModel costs(graph, cluster);
  const Plan plan = plan_of(costs, {Placement(3, DeviceId(0)), std::nullopt}, "x", false);
  const PlanExplanation told = explain_plan(graph, cluster, plan);
  const DevicePeak& peak = told.peaks[DeviceId(0)];
  REQUIRE(peak.holders.size() == 2);
  CHECK(peak.holders[0] == MemoryHolder{.op = a, .num_ops = 2, .permanent = Bytes(35)});
  CHECK(peak.holders[1] == MemoryHolder{.op = b, .num_ops = 1, .permanent = Bytes(30)});
  CHECK(peak.permanent == Bytes(65));
  CHECK(told.full == std::vector<DeviceId>{DeviceId(0)});
}

// gpu:0 runs a 0-3 and c 3-7, b 0-2 on gpu:1 sends 4 bytes to c 2-6, so c runs 6-10. On gpu:1 c
// starts when a's two bytes are there: 3-5, then 5-9; on gpu:2 both come one after the other.
TEST_CASE("explain: an operator's alternatives, worked out by hand") {
  const OpGraph graph = GraphSketch()
                            .ops({{"a", 3}, {"b", 2}, {"c", 4}})
                            .tensors({{"a", 2, {"c"}}, {"b", 4, {"c"}}})
                            .build();
  const Cluster cluster = byte_per_ns(3, CommunicationMode::kSequential);
  const CostModel costs(graph, cluster);
  const Plan plan = plan_in_order(costs, {{"a", "c"}, {"b"}, {}});
  REQUIRE(plan.makespan() == Time(10));
  const OperatorExplanation told = explain_operator(costs, plan, OpId(2), nullptr);
  CHECK(told.critical);
  CHECK(told.device == DeviceId(0));
  CHECK(told.ready == Time(6));
  REQUIRE(told.alternatives.size() == 3);
  const Alternative &here = told.alternatives[DeviceId(0)], &other = told.alternatives[DeviceId(1)],
                    &empty = told.alternatives[DeviceId(2)];
  CHECK(here.makespan == Time(10));
  CHECK(other.inputs == Time(5));
  CHECK(other.start == Time(5));
  CHECK(other.finish == Time(9));
  CHECK(other.makespan == Time(9));
  CHECK(empty.inputs == Time(6));     // each alone: 3 + 2 and 2 + 4
  CHECK(empty.makespan == Time(12));  // one receives at a time: 2-6, 6-8
  const std::string text = explanation_text({graph, cluster, plan}, told);
  CHECK(text.find("the plan can be better: on gpu:1 the step is 1 ns shorter") !=
        std::string::npos);
}

TEST_CASE("explain: devices that an operator or its group cannot be on, and that run over") {
  OpGraphBuilder builder("obstacles");
  const OpId a = builder.add_operator({.name = "a", .permanent = Bytes(10)});
  const OpId b = builder.add_operator({.name = "b", .permanent = Bytes(8)});
  const OpId c = builder.add_operator({.name = "c", .pin = "gpu:1"});
  builder.set_time(a, "gpu", Time(1));
  builder.set_time(b, "gpu", Time(1));
  builder.set_time(b, "cpu", Time(9));
  builder.set_time(c, "*", Time(1));
  builder.add_to_group(a, "g");
  builder.add_to_group(b, "g");
  const OpGraph graph = std::move(builder).build();
  ClusterSpec spec = equal_devices(3, Bytes(20), Time(1)).spec();
  spec.devices[1].capacity = Bytes(17);
  spec.devices[2].kind = "cpu";
  const Cluster cluster(std::move(spec));
  const CostModel costs(graph, cluster);
  const Plan plan =
      plan_of(costs, {Placement{DeviceId(0), DeviceId(0), DeviceId(1)}, std::nullopt}, "x", false);

  const OperatorExplanation of_b = explain_operator(costs, plan, b, nullptr);
  CHECK(of_b.moves_along == std::vector<OpId>{a});
  CHECK(of_b.alternatives[DeviceId(1)].runs_over == DeviceId(1));
  CHECK(of_b.alternatives[DeviceId(1)].over == Bytes(1));
  CHECK(of_b.alternatives[DeviceId(2)].obstacle ==
        "'a' of its colocation group: no compute time for kind 'cpu'");
  CHECK(explanation_text({graph, cluster, plan}, of_b).find("a device runs out of memory") !=
        std::string::npos);

  const OperatorExplanation of_c = explain_operator(costs, plan, c, nullptr);
  CHECK(of_c.alternatives[DeviceId(0)].obstacle == "pinned to gpu:1");
  CHECK(explanation_text({graph, cluster, plan}, of_c).find("no other device may run it") !=
        std::string::npos);
}

TEST_CASE("explain: no move of an operator is told to break a bound, and staying changes nothing") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = random_dag(seed, {.max_ops = 14, .group_chance = 0.2, .cpu_chance = 0.8});
    const Cluster cluster = random_cluster(seed, Bytes(300));
    const CostModel costs(graph, cluster);
    PlanRequest request;
    request.method = "m-etf";
    request.suggest = false;
    const PlanResult result = make_plan(costs, request);
    const auto* plan = std::get_if<Plan>(&result);
    if (plan == nullptr) continue;
    for (const OpId op : graph.ops()) {
      const OperatorExplanation told = explain_operator(costs, *plan, op, nullptr);
      for (const Alternative& there : told.alternatives) {
        if (!there.obstacle.empty()) continue;
        CHECK(there.start >= there.inputs);
        if (there.device == told.device) CHECK(there.makespan == plan->makespan());
        if (there.runs_over.has_value() || plan->bounds.empty()) continue;
        CHECK(there.peak <= cluster[there.device].capacity);
        CHECK(there.makespan >= plan->bounds.front().value);
      }
    }
  }
}

TEST_CASE("near names: what contains the text comes first, then what is few edits away") {
  const OpGraph graph =
      GraphSketch().op("layer_1/MatMul", 1).op("layer_2/matmul", 1).op("bias", 1).build();
  CHECK(near_names(graph, "MATMUL") ==
        std::vector<std::string>{"layer_1/MatMul", "layer_2/matmul"});
  CHECK(near_names(graph, "biass") == std::vector<std::string>{"bias"});
  CHECK(near_names(graph, "quite another").empty());
  CHECK(near_names(graph, "").empty());
  CHECK(find_operator(graph, "bias") == OpId(2));
  CHECK_THROWS_WITH_AS(find_operator(graph, "bia"),
                       "the graph has no operator 'bia'; near it: 'bias'", InputError);
}

}  // namespace
}  // namespace baechi::testing
