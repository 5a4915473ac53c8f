// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/memory_runs.h"

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

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
OpGraph two_diamonds(Bytes temporary = Bytes(0)) {
  OpGraphBuilder builder("two diamonds");
  const auto add = [&](const std::string& name, std::int64_t bytes) {
    const OpId op =
        timed(builder, {.name = name, .permanent = Bytes(40), .temporary = temporary}, Time(10));
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

Cluster two_devices(std::int64_t capacity) {
  return byte_per_ns(2, CommunicationMode::kSequential, Time(0), Bytes(capacity));
}

// One device has no room for both diamonds, which hold 160 each; each device has room for one. To
// split a diamond costs a transfer of 25, and saves 10.
TEST_CASE("memory runs: what does not fit one device is cut where that is cheap") {
  const OpGraph graph = two_diamonds();
  const auto best = optimal_makespan(graph, two_devices(250));
  REQUIRE(best.has_value());
  CHECK(best->makespan == Time(83));
  CHECK(runs_bound(graph, two_devices(250)) == Time(83));
  CHECK_FALSE(runs_bound(graph, two_devices(1000)).has_value());
}

TEST_CASE("memory runs: a device needs room to run the largest operator beside what it holds") {
  const OpGraph graph = two_diamonds(Bytes(200));
  CHECK(runs_bound(graph, two_devices(550)) == Time(83));  // all hold 320; d reads 50 and makes 3
  CHECK_FALSE(runs_bound(graph, two_devices(1000)).has_value());
}

//   a(10) --> b(10) --> c(10) --> d(10)      40 from a to d, else 3
//    `------------------------->'
TEST_CASE("memory runs: what leaves a device and comes back crosses twice, else both edges cross") {
  OpGraphBuilder builder("skip");
  std::vector<OpId> ops;
  for (const char* const name : {"a", "b", "c", "d"}) {
    const OpId op = timed(builder, {.name = name, .permanent = Bytes(400)}, Time(10));
    builder.add_output(op, Bytes(3));
    if (!ops.empty()) builder.connect(*builder.output(ops.back(), 0), op);
    ops.push_back(op);
  }
  builder.connect(builder.add_output(ops[0], Bytes(40)), ops[3]);
  const OpGraph graph = std::move(builder).build();
  const auto best = optimal_makespan(graph, two_devices(1500));
  REQUIRE(best.has_value());
  CHECK(best->makespan == Time(46));
  CHECK(runs_bound(graph, two_devices(1500)) == Time(46));
}

}  // namespace
}  // namespace baechi::testing
