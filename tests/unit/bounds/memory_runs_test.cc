// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/memory_runs.h"

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <utility>

#include "baechi/bounds/lower_bounds.h"
#include "baechi/graph/op_graph_builder.h"
#include "unit/brute_force.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

std::optional<Time> runs_bound(const OpGraph& graph, const Cluster& cluster) {
  for (const NamedBound& found : lower_bounds(CostModel(graph, cluster)))
    if (found.name == "memory runs") return found.value;
  return std::nullopt;
}

//   a(10) --> b(10) --> d(10) --> e(10) --> f(10) --> h(10)      c and g: 10, too
//    `-> c ---->'                  `-> g ---->'
// Each holds 40. A tensor takes 25, that between d and e 3.
OpGraph two_diamonds() {
  OpGraphBuilder builder("two diamonds");
  const auto add = [&](const std::string& name, std::int64_t bytes) {
    const OpId op = builder.add_operator({.name = name, .permanent = Bytes(40)});
    builder.set_time(op, "gpu", Time(10));
    builder.add_output(op, Bytes(bytes));
    return op;
  };
  const auto reads = [&](OpId op, OpId from) { builder.connect(*builder.output(from, 0), op); };
  const OpId a = add("a", 25), b = add("b", 25), c = add("c", 25), d = add("d", 3);
  const OpId e = add("e", 25), f = add("f", 25), g = add("g", 25), h = add("h", 0);
  reads(b, a), reads(c, a), reads(d, b), reads(d, c);
  reads(e, d);
  reads(f, e), reads(g, e), reads(h, f), reads(h, g);
  return std::move(builder).build();
}

// One device has no room for both diamonds, which hold 160 each; each device has room for one. To
// split a diamond costs a transfer of 25, and saves 10.
TEST_CASE("memory runs: what does not fit one device is cut where that is cheap") {
  const OpGraph graph = two_diamonds();
  const auto cluster = [](std::int64_t capacity) {
    return byte_per_ns(2, CommunicationMode::kSequential, Time(0), Bytes(capacity));
  };
  const auto best = optimal_makespan(graph, cluster(250));
  REQUIRE(best.has_value());
  CHECK(best->makespan == Time(83));
  CHECK(runs_bound(graph, cluster(250)) == Time(83));
  CHECK_FALSE(runs_bound(graph, cluster(1000)).has_value());
}

}  // namespace
}  // namespace baechi::testing
