// SPDX-License-Identifier: Apache-2.0
#include "baechi/cost/needed_devices.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/bounds/lower_bounds.h"
#include "baechi/plan/planner.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_plan.h"
#include "unit/graph_sketch.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

using testing::GraphSketch;

ClusterSpec many(std::size_t count) {
  return testing::equal_devices(count, Bytes(1'000), Time(5), Bandwidth(1'000'000'000)).spec();
}

std::vector<std::string> kept_names(const OpGraph& graph, const ClusterSpec& spec) {
  const Cluster cluster(spec);
  const CostModel costs(graph, cluster);
  const auto needed = NeededDevices::of(costs);
  std::vector<std::string> names;
  const CostModel& small = needed != nullptr ? needed->costs() : costs;
  for (const DeviceId device : small.cluster().devices()) {
    names.push_back(small.cluster()[device].name);
    if (needed != nullptr) CHECK(cluster[needed->original(device)].name == names.back());
  }
  return names;
}

TEST_CASE("needed devices: of a run of equal ones the first sixteen, or one per operator") {
  const OpGraph pair = GraphSketch().op("a", 3).op("b", 2).tensor("a", 4, {"b"}).build();
  CHECK(kept_names(pair, many(16)).size() == 16);
  const std::vector<std::string> kept = kept_names(pair, many(1'024));
  REQUIRE(kept.size() == 16);
  CHECK(kept.front() == "gpu:0");
  CHECK(kept.back() == "gpu:15");
  CHECK(kept_names(testing::fork_join(28, Time(1), Bytes(1)), many(200)).size() == 30);
}

TEST_CASE("needed devices: without the slower ones, and without links of kinds that are gone") {
  const OpGraph pair = GraphSketch().op("a", 3).op("b", 2).tensor("a", 4, {"b"}).build();
  ClusterSpec spec = many(5);
  spec.devices[1].speed = spec.devices[3].speed = Speed(500'000);
  const auto kept = [&] {
    const Cluster cluster(spec);
    const CostModel costs(pair, cluster);
    std::vector<std::string> names;
    for (const auto& few : NeededDevices::of_faster_classes(costs)) {
      names.emplace_back();
      for (const DeviceId device : few->costs().cluster().devices())
        names.back() += cluster[few->original(device)].name + " ";
    }
    return names;
  };
  CHECK(kept() == std::vector<std::string>{"gpu:0 gpu:2 gpu:4 "});
  spec.devices[0].speed = Speed(250'000);
  LinkRule rule = spec.links.front();
  rule.scope = LinkScope::kPair;
  rule.from = "gpu:0", rule.to = "gpu:1";
  spec.links.push_back(rule);
  CHECK(kept() == std::vector<std::string>{"gpu:2 gpu:4 ", "gpu:1 gpu:2 gpu:3 gpu:4 "});
  spec.devices[0].kind = "cpu";  // which runs none of it
  rule.scope = LinkScope::kKinds;
  rule.from = "cpu", rule.to = "gpu";
  spec.links.push_back(rule);
  CHECK(kept() == std::vector<std::string>{"gpu:2 gpu:4 "});
  for (Device& device : spec.devices) device.speed = kFullSpeed;
  spec.devices[0].kind = "gpu";
  spec.links.pop_back();
  CHECK(kept().empty());
}

TEST_CASE("needed devices: what tells devices apart ends a run") {
  const OpGraph pair = GraphSketch().op("a", 3).op("b", 2).tensor("a", 4, {"b"}).build();
  const auto count = [&](const auto& change) {
    ClusterSpec spec = many(60);
    change(spec);
    return kept_names(pair, spec).size();
  };
  CHECK(count([](ClusterSpec&) {}) == 16);
  CHECK(count([](ClusterSpec& s) { s.devices[30].capacity = Bytes(999); }) == 33);
  CHECK(count([](ClusterSpec& s) { s.devices[30].speed = Speed(500'000); }) == 33);
  CHECK(count([](ClusterSpec& s) { s.devices[59].kind = "cpu"; }) == 17);
  const auto link = [](ClusterSpec& s, LinkScope scope, bool both_ways) {
    LinkRule rule = s.links.front();
    rule.scope = scope;
    rule.latency = Time(4);
    rule.both_ways = both_ways;
    if (scope == LinkScope::kPair) rule.from = "gpu:30", rule.to = "gpu:31";
    s.links.push_back(rule);
  };
  // Both ways: the ends of the link stand for each other. One way: they do not.
  CHECK(count([&](ClusterSpec& s) { link(s, LinkScope::kPair, true); }) == 34);
  CHECK(count([&](ClusterSpec& s) { link(s, LinkScope::kPair, false); }) == 34);
  // Two hosts of thirty devices, nearer to each other: a run each.
  CHECK(count([&](ClusterSpec& s) {
          for (std::size_t i = 30; i < 60; ++i) s.devices[i].host = "west";
          link(s, LinkScope::kSameHost, true);
        }) == 32);
  // Every device has a wire of its own: none can stand for another.
  CHECK(count([](ClusterSpec& s) { s.links[0].channels = {"wire of {from}"}; }) == 60);
}

TEST_CASE("needed devices: a device with a pin stays, whatever it is equal to") {
  OpGraphBuilder builder;
  testing::timed(builder, {.name = "a", .pin = "gpu:40"}, Time(1));
  const OpGraph graph = std::move(builder).build();
  const std::vector<std::string> kept = kept_names(graph, many(60));
  CHECK(kept.size() == 33);
  CHECK(kept[16] == "gpu:40");
}

TEST_CASE("needed devices: a placement means the same on them and on all devices") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const OpGraph graph = testing::random_dag(seed, {.min_ops = 4, .max_ops = 14});
    ClusterSpec spec = many(50);
    spec.communication = seed % 3 == 0   ? CommunicationMode::kDuplex
                         : seed % 3 == 1 ? CommunicationMode::kSequential
                                         : CommunicationMode::kParallel;
    if (seed % 2 == 0)
      for (std::size_t i = 25; i < 50; ++i) spec.devices[i].speed = Speed(300'000);
    const Cluster cluster(spec);
    const CostModel costs(graph, cluster);
    const auto needed = NeededDevices::of(costs);
    REQUIRE(needed != nullptr);
    PlacedGraph small{Placement(graph.num_ops(), DeviceId(0)), std::nullopt};
    PlacedGraph whole = small;
    for (const OpId op : graph.ops()) {
      small.device[op] = DeviceId(random.below(needed->costs().cluster().num_devices()));
      whole.device[op] = needed->original(small.device[op]);
    }
    const Trace a = simulate(needed->costs(), small), b = simulate(costs, whole);
    CHECK(a.schedule.makespan == b.schedule.makespan);
    for (const OpId op : graph.ops())
      CHECK(a.schedule.slots[op].start == b.schedule.slots[op].start);
    for (const DeviceId device : needed->costs().cluster().devices())
      CHECK(a.devices[device].peak == b.devices[needed->original(device)].peak);
  }
}

TEST_CASE(
    "needed devices: a plan for a thousand devices is right, and as good as one for sixteen") {
  const OpGraph graph = testing::fork_join(6, Time(100), Bytes(8));
  const Cluster whole(many(1'000)), some(many(16));
  const CostModel whole_costs(graph, whole), some_costs(graph, some);
  for (const char* method : {"auto", "m-sct", "partition", "balanced"}) {
    CAPTURE(method);
    PlanRequest request;
    request.method = method;
    request.budget = 0.01;
    const Plan large = std::get<Plan>(make_plan(whole_costs, request));
    const Plan small = std::get<Plan>(make_plan(some_costs, request));
    CHECK(check_plan(graph, large).empty());
    CHECK(large.makespan() == small.makespan());
    CHECK(large.bounds == small.bounds);
    REQUIRE(large.methods.size() == small.methods.size());
    CHECK(large.methods.front().peaks.size() == 1'000);
  }
}

TEST_CASE("needed devices: what methods reached is told of the devices of the whole cluster") {
  const OpGraph graph = testing::fork_join(6, Time(100), Bytes(8));
  ClusterSpec spec = many(60);
  for (std::size_t i = 0; i < 40; ++i) spec.devices[i].speed = Speed(1'000);  // the others win
  const Cluster cluster(spec);
  PlanRequest request;
  request.method = "single";
  const Plan plan = std::get<Plan>(make_plan(CostModel(graph, cluster), request));
  REQUIRE(plan.methods.size() == 1);
  CHECK(plan.schedule.slots[OpId(0)].device == DeviceId(40));
  for (const DeviceId device : cluster.devices())
    CHECK(plan.methods[0].peaks[device] == plan.devices[device].peak);
}

}  // namespace
}  // namespace baechi
