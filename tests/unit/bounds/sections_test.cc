// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/sections.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "baechi/bounds/lower_bounds.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/simulate/execution_simulator.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

constexpr CommunicationMode kSequential = CommunicationMode::kSequential;

std::vector<bounds::Distance> distances(const OpGraph& graph, const Cluster& cluster) {
  const auto relaxed = bounds::relax(CostModel(graph, cluster));
  REQUIRE(relaxed.has_value());
  UnionFind forced = bounds::forced_together(*relaxed);
  const bounds::Components together = bounds::number(*relaxed, forced);
  const bounds::Lumps lumps = bounds::lumps(*relaxed, together.of, together.count);
  return bounds::sections(*relaxed, together, bounds::balance(*relaxed, lumps));
}

// The longest that must pass from `from` to `to`.
std::optional<bounds::Ns> distance(const OpGraph& graph, const Cluster& cluster,
                                   const std::string& from, const std::string& to) {
  std::optional<bounds::Ns> longest;
  for (const bounds::Distance& found : distances(graph, cluster))
    if (graph[found.from].name == from && graph[found.to].name == to)
      longest = std::max(longest.value_or(0), found.least);
  return longest;
}

std::optional<Time> bound(const OpGraph& graph, const Cluster& cluster, const std::string& name) {
  for (const NamedBound& found : lower_bounds(CostModel(graph, cluster)))
    if (found.name == name) return found.value;
  return std::nullopt;
}

class Sketch {
 public:
  OpId add(const std::string& name, std::int64_t time, std::int64_t bytes = 0,
           const std::string& group = "") {
    const OpId op = timed(builder_, {.name = name}, Time(time));
    if (!group.empty()) builder_.add_to_group(op, group);
    builder_.add_output(op, Bytes(bytes));
    return op;
  }
  void reads(OpId op, OpId from) { builder_.connect(*builder_.output(from, 0), op); }
  void after(OpId op, OpId before) { builder_.add_control_edge(before, op); }
  OpGraph build() { return std::move(builder_).build(); }

 private:
  OpGraphBuilder builder_{"sketch"};
};

// Three times a fork into four operators of 100 that a join collects, tensors of 20: on two devices
// each fork takes (400 + 20 + 20) / 2, and the joins and the first fork 10 each.
TEST_CASE("sections: layers of branches add up") {
  Sketch sketch;
  OpId spine = sketch.add("join 0", 10, 20);
  for (int layer = 1; layer <= 3; ++layer) {
    const OpId join = sketch.add("join " + std::to_string(layer), 10, 20);
    for (int i = 0; i < 4; ++i) {
      const OpId branch = sketch.add("branch " + std::to_string(4 * layer + i), 100, 20);
      sketch.reads(branch, spine);
      sketch.reads(join, branch);
    }
    spine = join;
  }
  const OpGraph graph = sketch.build();
  const Cluster cluster = byte_per_ns(2, kSequential);
  CHECK(distance(graph, cluster, "join 0", "join 1") == 220);
  CHECK(bound(graph, cluster, "sections") == Time(3 * 220 + 4 * 10));
}

// Three operators of 100 on two devices: two of them are on one, whatever the work on average is.
TEST_CASE("sections: what lies between two operators is cut as a graph of its own") {
  Sketch sketch;
  const OpId s = sketch.add("s", 0, 20), t = sketch.add("t", 0);
  for (const char* const name : {"a", "b", "c"}) {
    const OpId op = sketch.add(name, 100, 20);
    sketch.reads(op, s);
    sketch.reads(t, op);
  }
  const auto found = distance(sketch.build(), byte_per_ns(2, kSequential), "s", "t");
  CHECK(found.value_or(0) > 190);  // (300 + 20 + 20) / 2 = 170 by the work alone
  CHECK(found.value_or(0) <= 200);
}

// Of four devices that may share the work, the first starts at once, the second gets s's tensor at
// 10, the third at 20. The fourth need not wait for 30: a, on the second, can send it something at
// 20. So 190 operators of 1 take 60: 60 + 50 + 40 + 40.
TEST_CASE("sections: a device that received something may pass something on") {
  Sketch sketch;
  const OpId s = sketch.add("s", 0, 10), a = sketch.add("a", 0, 10), t = sketch.add("t", 0);
  sketch.reads(a, s);
  PlacedGraph plan;
  plan.device = {DeviceId(0), DeviceId(1), DeviceId(0)};
  plan.order = DeviceOrder(4);
  (*plan.order)[DeviceId(0)].push_back(s);
  (*plan.order)[DeviceId(1)].push_back(a);
  const std::uint32_t share[] = {60, 50, 40, 40};
  for (std::uint32_t device = 0; device < 4; ++device)
    for (std::uint32_t i = 0; i < share[device]; ++i) {
      const OpId op = sketch.add("op" + std::to_string(100 * device + i), 1);
      sketch.reads(op, device == 3 ? a : s);
      sketch.after(t, op);
      plan.device.push_back(DeviceId(device));
      (*plan.order)[DeviceId(device)].push_back(op);
    }
  (*plan.order)[DeviceId(0)].push_back(t);
  const OpGraph graph = sketch.build();
  const Cluster cluster = byte_per_ns(4, kSequential);
  CHECK(simulate(CostModel(graph, cluster), plan).schedule.makespan == Time(60));
  CHECK(distance(graph, cluster, "s", "t") == 60);
}

// Two chains of 35 and 25, whose last tensors have two readers beside t: one transfer of 10 serves
// both.
TEST_CASE("sections: a tensor with two readers comes back once") {
  Sketch sketch;
  const OpId s = sketch.add("s", 0), t = sketch.add("t", 0, 0, "end");
  for (const int length : {35, 25}) {
    OpId last = s;
    const std::string name = "chain of " + std::to_string(length) + " ";
    for (int i = 0; i < length; ++i) {
      const OpId op = sketch.add(name + std::to_string(i), 1, i + 1 < length ? 30 : 10);
      if (i == 0)
        sketch.after(op, last);
      else
        sketch.reads(op, last);
      last = op;
    }
    for (const char* reader : {"u", "v"}) {
      const OpId op = sketch.add(name + reader, 0, 0, "end");
      sketch.reads(op, last);
      sketch.after(t, op);
    }
  }
  const OpGraph graph = sketch.build();
  CHECK(distance(graph, byte_per_ns(2, kSequential), "s", "t") == 35);
}

}  // namespace
}  // namespace baechi::testing
