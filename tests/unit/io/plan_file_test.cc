// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/plan/plan_file.h"

#include <doctest/doctest.h>

#include <optional>
#include <string>

#include "baechi/base/random.h"
#include "baechi/cost/cost_model.h"
#include "baechi/simulate/execution_simulator.h"
#include "unit/graphs.h"
#include "unit/refusal.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

// Any placement that the simulator takes: the file does not ask whether it is a good one.
Plan plan_of(const OpGraph& graph, const Cluster& cluster, std::uint64_t seed) {
  const CostModel costs(graph, cluster);
  Random random(seed);
  PlacedGraph placed;
  for (const OpId op : graph.ops()) {
    DeviceId device(static_cast<std::size_t>(random.below(cluster.num_devices())));
    for (const DeviceId other : cluster.devices())
      if (!costs.may_run(op, device)) device = other;
    placed.device.push_back(device);
  }
  const Trace trace = simulate(costs, placed);
  Plan plan;
  plan.graph_name = graph.name();
  plan.cluster = cluster.spec();
  plan.memory_mode = graph.memory_mode();
  plan.order = execution_orders()[seed % 3].order;
  plan.method = "random";
  plan.schedule = trace.schedule;
  for (const DeviceTrace& device : trace.devices)
    plan.devices.push_back(
        {device.peak, device.peak_at, device.peak_op, device.busy, device.sent, device.received});
  if (seed % 2 == 0) {
    plan.fallbacks = {"reserve"};
    plan.bounds = {{"longest path", Time(3)}, {"load", Time(1)}};
    plan.passes = {{"fuse", {9, 8, 7}, {6, 5, 4}, "three less"}, {"forward", {6, 5, 4}, {}, ""}};
    plan.methods.push_back({.method = "m-etf",
                            .makespan = Time(5),
                            .fallbacks = {"repair"},
                            .reason = "",
                            .devices_used = 1,
                            .peaks = IdVector<DeviceId, Bytes>(cluster.num_devices(), Bytes(7))});
    plan.methods.emplace_back();
    plan.methods.back().method = "m-sct";
    plan.methods.back().reason = "no room";
    plan.notes = {"a \"note\""};
  }
  return plan;
}

OpGraph random_graph(std::uint64_t seed) {
  testing::RandomDag limits;
  limits.cpu_chance = 1.0;
  limits.second_output_chance = 0.5;
  return testing::random_dag(seed, limits);
}

TEST_CASE("plan.json: random plans come back as they were") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = random_graph(seed);
    const Cluster cluster = testing::random_cluster(seed);
    const Plan plan = plan_of(graph, cluster, seed);
    const std::string text = plan_to_json(plan, graph);
    const Plan back = parse_plan(text, "p.json", graph);
    CHECK(back == plan);
    CHECK(plan_to_json(back, graph) == text);
    check_plan_text(text, "p.json");
  }
}

TEST_CASE("plan.json: a plan of another graph is refused") {
  const std::vector<Time> two(2, Time(1)), three(3, Time(1));
  const OpGraph graph = testing::chain(two, Bytes(4));
  const OpGraph longer = testing::chain(three, Bytes(4));
  const Cluster cluster = testing::equal_devices(2, Bytes(100), Time(1));
  const auto error_of = [&](const OpGraph& planned, const OpGraph& read) -> std::string {
    return testing::refusal_of(
        [&] { parse_plan(plan_to_json(plan_of(planned, cluster, 1), planned), "p.json", read); });
  };
  CHECK(error_of(graph, graph) == "");
  CHECK(error_of(graph, longer).ends_with("the plan does not place operator 'c' of the graph"));
  CHECK(error_of(longer, graph).ends_with("the graph has no operator 'c'"));
  CHECK(error_of(testing::figure_1(), testing::fork_join(4, Time(1), Bytes(1)))
            .find("the plan is for the graph '") != std::string::npos);
}

TEST_CASE("plan.json: damage is found and placed") {
  const OpGraph graph = testing::chain({Time(1), Time(2)}, Bytes(4));
  const Cluster cluster = testing::equal_devices(2, Bytes(100), Time(1));
  const std::string good = plan_to_json(plan_of(graph, cluster, 2), graph);
  const auto error_of = [&](std::string_view from, std::string_view to) -> std::string {
    std::string text = good;
    const std::size_t at = text.find(from);
    REQUIRE(at != text.npos);
    text.replace(at, from.size(), to);
    return testing::refusal_of([&] { check_plan_text(text, "p.json"); });
  };
  CHECK(good.find("\"order\": \"none\"") != std::string::npos);  // "planned" is not written
  CHECK(
      error_of("\"none\"", "\"any\"").find("expected one of planned, program, none, found 'any'") !=
      std::string::npos);
  CHECK(error_of("\"makespan\"", "\"makespam\"").find("unknown field") != std::string::npos);
  CHECK(error_of("\"gap\": ", "\"gap\": 1").find("is not makespan / first bound - 1") !=
        std::string::npos);
  CHECK(error_of("\"name\": \"b\"", "\"name\": \"a\"").find("'a' is placed twice") !=
        std::string::npos);
  CHECK(error_of("\"operators\": 2", "\"operators\": 3")
            .find("$.graph.operators: the plan places 2 operators, not 3") != std::string::npos);
  CHECK(error_of("\"device\": \"gpu:", "\"device\": \"tpu:")
            .find("the cluster has no device 'tpu:") != std::string::npos);
  CHECK(error_of("{\"name\": \"gpu:0\", \"peak\"", "{\"name\": \"gpu:1\", \"peak\"")
            .find("not in the cluster's order") != std::string::npos);
  CHECK(error_of("\"peaks\": [7, 7]", "\"peaks\": [7]").find("one peak for each") !=
        std::string::npos);
}

}  // namespace
}  // namespace baechi
