// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/plan/placement_file.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/io/plan/plan_file.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "unit/graphs.h"
#include "unit/refusal.h"

namespace baechi {
namespace {

std::string with(const std::string& device_of) {
  return R"({"format": "baechi-placement", "version": 1, "device_of": {)" + device_of + "}}";
}

TEST_CASE("placement file: devices by operator name, or a plan") {
  const OpGraph graph = testing::chain({Time(1), Time(2)}, Bytes(3));
  const Cluster cluster = testing::unit_latency_cluster(2, Bytes(100));
  const Placement placement =
      parse_placement(with(R"("b": "gpu:1", "a": "gpu:0")"), "expert.json", graph, cluster);
  CHECK(placement == Placement{DeviceId(0), DeviceId(1)});

  const CostModel costs(graph, cluster);
  const Plan plan = plan_of(costs, {placement, std::nullopt}, "expert", false);
  CHECK(parse_placement(plan_to_json(plan, graph), "plan.json", graph, cluster) == placement);
}

TEST_CASE("placement file: the longest part of a name decides, a whole name before all") {
  OpGraphBuilder builder("parts");
  for (const char* name : {"layers/1/mlp", "layers/1/norm", "layers/10/mlp", "head", "opt/head"})
    builder.set_time(builder.add_operator({.name = name}), kAnyKind, Time(1));
  testing::timed(builder, {.name = "g", .forward = OpId(0)}, Time(1), kAnyKind);
  const OpGraph graph = std::move(builder).build();
  const Cluster cluster = testing::unit_latency_cluster(4, Bytes(100));
  std::optional<DeviceWords> order;
  const Placement placement = parse_placement(
      R"({"format": "baechi-placement", "version": 1, "device_of": {"layers/1/norm": "gpu:3",
          "layers/1": "gpu:1", "layers": "gpu:2", "head": "gpu:0"}, "order": {"gpu:1": "1F0, 1B0"}})",
      "expert.json", graph, cluster, &order);
  const std::vector<std::uint32_t> devices{1, 3, 2, 0, 0, 1};
  for (const OpId op : graph.ops()) CHECK(placement[op].value() == devices[op.index()]);
  REQUIRE(order.has_value());
  CHECK((*order)[DeviceId(1)] == std::vector<std::string>{"1F0", "1B0"});
  CHECK((*order)[DeviceId(0)].empty());
}

TEST_CASE("placement file: what is missing, unknown or twice is named") {
  const OpGraph graph = testing::chain({Time(1), Time(2)}, Bytes(3));
  const Cluster cluster = testing::unit_latency_cluster(2, Bytes(100));
  const auto error = [&](const std::string& text) -> std::string {
    return testing::refusal_of([&] { parse_placement(text, "expert.json", graph, cluster); });
  };
  CHECK(error(with(R"("a": "gpu:0")")) == "expert.json: operator 'b' is not placed");
  CHECK(error(with(R"("a": "gpu:0", "b": "tpu")")).find("the cluster has no device 'tpu'") !=
        std::string::npos);
  CHECK(error(with(R"("a": "gpu:0", "c": "gpu:0")")).find("the graph has no operator 'c'") !=
        std::string::npos);
  CHECK(error(with(R"("a": "gpu:0", "a": "gpu:1")")).find("twice") != std::string::npos);
  CHECK(error(R"({"format": "baechi-placement", "version": 2, "device_of": {}})").find("version") !=
        std::string::npos);
  CHECK(error(R"({"format": "baechi-placement", "version": 1})").find("device_of") !=
        std::string::npos);
  CHECK(error("[]") != "");
}

}  // namespace
}  // namespace baechi
