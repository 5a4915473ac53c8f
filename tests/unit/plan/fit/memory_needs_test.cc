// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/fit/memory_needs.h"

#include <doctest/doctest.h>

#include <string>

#include "baechi/graph/op_graph_builder.h"
#include "unit/graph_sketch.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

TEST_CASE("planner: a proof names what lacks most, and three more that no device has room for") {
  const OpGraph graph =
      GraphSketch()
          .ops({{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}, {"small", 1}})
          .tensors(
              {{"a", 20, {"small"}}, {"b", 50, {}}, {"c", 30, {}}, {"d", 25, {}}, {"e", 40, {}}})
          .build();
  const auto reason = [&](Bytes capacity) {
    const Cluster cluster = unit_latency_cluster(2, capacity);
    const CostModel costs(graph, cluster);
    const Units units(costs);
    const auto proof = prove_cannot_fit(costs, units);
    return proof.has_value() ? proof->reason : std::string();
  };
  CHECK(reason(Bytes(50)).empty());
  CHECK(reason(Bytes(45)).find("operator 'b' needs") == 0);
  CHECK(reason(Bytes(45)).find("; no device") == std::string::npos);
  CHECK(reason(Bytes(28)).find("; no device has room for operator 'e', which needs 40 B, operator "
                               "'c', which needs 30 B, either") != std::string::npos);
  CHECK(reason(Bytes(10)).find("'d', which needs 25 B and 2 more, either") != std::string::npos);
}

TEST_CASE("memory needs: what only some devices may run has to fit those") {
  OpGraphBuilder builder("two kinds");
  for (const char* name : {"a", "b", "c"}) {
    const OpId op = timed(builder, {.name = name, .permanent = Bytes(10)}, Time(1));
    if (name[0] == 'c') builder.set_time(op, "host", Time(1));
  }
  const OpGraph graph = std::move(builder).build();
  const auto proof = [&](std::int64_t bytes) {
    const Cluster cluster = gpu_and_host(Bytes(bytes), Bytes(1000));
    const CostModel costs(graph, cluster);
    const Units units(costs);
    return prove_cannot_fit(costs, units);
  };
  CHECK(!proof(20).has_value());
  REQUIRE(proof(19).has_value());
  CHECK(proof(19)->short_by == Bytes(1));
  CHECK(proof(19)->reason.find("of what only 'gpu:0' may run is 20 ") != std::string::npos);
}

}  // namespace
}  // namespace baechi::testing
