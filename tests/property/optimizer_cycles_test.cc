// SPDX-License-Identifier: Apache-2.0
// No pass of the Graph Optimizer ever makes a cycle (Paper 3.1.3): on 100,000 graphs, most of them
// built so that a careless fusion closes one.
#include <doctest/doctest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/optimize/optimize.h"
#include "baechi/simulate/execution_simulator.h"
#include "property/effort.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

constexpr std::size_t kMostOps = 14;

// Operators in the order drawn, which need not be topological: `order` hides it.
struct Drawing {
  std::size_t num_ops = 0;
  std::vector<std::pair<std::size_t, std::size_t>> edges = {};
  std::vector<std::size_t> group = {};  // of each operator; kAlone: none
};
constexpr std::size_t kAlone = 99;

// Each of a few layers' operators reads some of the layer before, and now and then one from further
// back.
Drawing layers(Random& random) {
  Drawing d{.num_ops = 5 + random.below(kMostOps - 4)};
  const std::size_t width = 1 + random.below(4);
  const double chance = 0.2 + 0.6 * random.unit(), skip = 0.1 * random.unit();
  for (std::size_t i = 0; i < d.num_ops; ++i)
    for (std::size_t j = 0; j < i; ++j) {
      const std::size_t apart = i / width - j / width;
      if (apart > 0 && random.chance(apart == 1 ? chance : skip)) d.edges.emplace_back(j, i);
    }
  return d;
}

//   +--> p0 -> p1 -> ... --+
//   u --> q0 -> ... -------+-> v      long ways from u to v beside short ones, and crossings
//   +----------------------+
Drawing parallel_paths(Random& random) {
  Drawing d{.num_ops = 2};
  const std::size_t source = 0, sink = 1;
  if (random.chance(0.7)) d.edges.emplace_back(source, sink);
  std::vector<std::vector<std::size_t>> paths;
  while (d.num_ops + 3 < kMostOps && (paths.size() < 2 || random.chance(0.6))) {
    const std::size_t length = 1 + random.below(std::min<std::size_t>(6, kMostOps - d.num_ops - 1));
    std::size_t at = source;
    paths.emplace_back();
    for (std::size_t i = 0; i < length; ++i) {
      d.edges.emplace_back(at, d.num_ops);
      paths.back().push_back(at = d.num_ops++);
    }
    d.edges.emplace_back(at, sink);
  }
  for (std::size_t p = 1; p < paths.size(); ++p)  // earlier on one path to later on another
    if (random.chance(0.4)) {
      const std::size_t i = random.below(paths[p - 1].size()), j = random.below(paths[p].size());
      d.edges.emplace_back(paths[p - 1][i], paths[p][j]);
    }
  return d;
}

//        +--> b --+        +--> e --+
//   a ---+        +--> d --+        +--> g     one after the other, some with the way through the
//        +--> c --+        +--> f --+          middle split again
Drawing diamonds(Random& random) {
  Drawing d{.num_ops = 1};
  std::size_t top = 0;
  while (d.num_ops + 3 <= kMostOps) {
    const std::size_t left = d.num_ops, right = left + 1, bottom = left + 2;
    d.num_ops += 3;
    for (const auto& edge : {std::pair{top, left}, {top, right}, {left, bottom}, {right, bottom}})
      d.edges.push_back(edge);
    if (random.chance(0.3)) d.edges.emplace_back(top, bottom);
    if (random.chance(0.3)) d.edges.emplace_back(left, right);
    top = random.chance(0.7) ? bottom : left;
  }
  return d;
}

// Two groups, each with parents and children in the other:
//
//   a0 --> a1     a2 --> a3        fusing {a0, a1} and {b0, b1} would make a cycle, each alone
//     \   ^         \   ^          does not; the more such crossings, the more ways to fall
//      \ /           \ /
//       X             X
//      / \           / \           .
//   b0 --> b1     b2 --> b3
Drawing interlocked(Random& random) {
  const std::size_t pairs = 2 + random.below(kMostOps / 2 - 2);
  Drawing d{.num_ops = 2 * pairs};
  const std::size_t groups = 2 + random.below(2);
  for (std::size_t i = 0; i < d.num_ops; ++i) d.group.push_back(i % groups);
  for (std::size_t i = 0; i < d.num_ops; ++i)
    for (std::size_t j = i + 1; j < std::min(d.num_ops, i + 2 * groups + 1); ++j)
      if (random.chance(i % groups == j % groups ? 0.6 : 0.35)) d.edges.emplace_back(i, j);
  return d;
}

// A grid whose diagonals, rows or columns are groups.
Drawing grid(Random& random) {
  const std::size_t rows = 2 + random.below(3), columns = 3 + random.below(2);
  Drawing d{.num_ops = std::min(kMostOps, rows * columns)};
  const std::uint64_t by = random.below(3);
  for (std::size_t i = 0; i < d.num_ops; ++i) {
    const std::size_t row = i / columns, column = i % columns;
    d.group.push_back(by == 0 ? row : by == 1 ? column : row + column);
    if (column + 1 < columns && i + 1 < d.num_ops) d.edges.emplace_back(i, i + 1);
    if (i + columns < d.num_ops) d.edges.emplace_back(i, i + columns);
  }
  return d;
}

void draw_groups(Drawing& d, Random& random) {
  const double grouped = random.chance(0.3) ? 1.0 : 0.5 + 0.5 * random.unit();
  const std::size_t groups = 1 + random.below(3);
  for (std::size_t i = 0; i < d.num_ops; ++i)
    d.group.push_back(random.chance(grouped) ? random.below(groups) : kAlone);
}

OpGraph build(const Drawing& d, Random& random) {
  static constexpr std::array kNames{"a", "b", "c", "d", "e", "f", "g",
                                     "h", "i", "j", "k", "l", "m", "n"};
  static_assert(kNames.size() == kMostOps);
  OpGraphBuilder builder("drawn");
  std::vector<std::size_t> order(d.num_ops), id(d.num_ops);
  for (std::size_t i = 0; i < d.num_ops; ++i) order[i] = i;
  if (random.chance(0.5))
    for (std::size_t i = d.num_ops; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  const double control = random.chance(0.3) ? 0.5 : 0.05;
  const bool training = random.chance(0.3);
  std::vector<TensorId> output(d.num_ops, TensorId(0));
  for (const std::size_t i : order) {
    const OpId op = builder.add_operator({.name = kNames[i]});
    id[i] = op.index();
    builder.set_time(op, "gpu", Time(random.between(1, 9)));
    output[i] = builder.add_output(op, Bytes(random.between(0, 9)));
    if (d.group[i] != kAlone) builder.add_to_group(op, kNames[d.group[i]]);
  }
  if (training)  // the later half of the drawing is the earlier one's backward pass, mirrored
    for (std::size_t i = (d.num_ops + 1) / 2; i < d.num_ops; ++i)
      if (random.chance(0.8)) builder.set_forward(OpId(id[i]), OpId(id[d.num_ops - 1 - i]));
  for (const auto& [from, to] : d.edges)
    if (random.chance(control))
      builder.add_control_edge(OpId(id[from]), OpId(id[to]));
    else
      builder.connect(output[from], OpId(id[to]));
  return std::move(builder).build();
}

OpGraph drawn_graph(std::uint64_t seed) {
  static constexpr std::array kDrawings{layers, parallel_paths, diamonds, interlocked, grid};
  Random random(seed);
  Drawing d = kDrawings[seed % kDrawings.size()](random);
  if (d.group.empty() || random.chance(0.3)) {
    d.group.clear();
    draw_groups(d, random);
  }
  return build(d, random);
}

// By transitive closure over bit sets; shares nothing with what it checks. Operators without a
// label are left out.
bool has_cycle(const OpGraph& graph, const IdVector<OpId, std::optional<std::uint32_t>>& label) {
  std::array<std::uint32_t, kMostOps> reach{};
  for (const OpId op : graph.ops())
    for (const Edge& edge : graph.out_edges(op))
      if (label[op].has_value() && label[edge.to].has_value() && label[op] != label[edge.to])
        reach[*label[op]] |= 1U << *label[edge.to];
  for (std::size_t via = 0; via < kMostOps; ++via)
    for (std::uint32_t& from : reach)
      if ((from >> via & 1U) != 0) from |= reach[via];
  for (std::size_t i = 0; i < kMostOps; ++i)
    if ((reach[i] >> i & 1U) != 0) return true;
  return false;
}

struct Counts {
  std::size_t by_degree = 0, by_reachability = 0, would_cycle = 0, gave_up = 0;
};

void check_fusion(const CostModel& costs, const FusionOptions& options, Counts& counts) {
  const OpGraph& graph = costs.graph();
  const Fusion fusion = find_fusions(costs, group_labels(graph), options);
  IdVector<OpId, std::optional<std::uint32_t>> label(graph.num_ops());
  for (const OpId op : graph.ops()) {
    label[op] = fusion.cluster[op];
    const OpId first(fusion.cluster[op]);
    CHECK((first == op || graph[first].group == graph[op].group));
    CHECK(graph[first].backward == graph[op].backward);
  }
  CHECK_FALSE(has_cycle(graph, label));
  counts.by_degree += fusion.by_degree;
  counts.by_reachability += fusion.by_reachability;
  counts.would_cycle += fusion.would_cycle;
  counts.gave_up += fusion.gave_up;
}

// A plan of the small graph that takes its operators in its own order runs to its end.
void check_pass(const CostModel& costs, const Optimized& pass, std::uint64_t seed) {
  const OpGraph& graph = costs.graph();
  const Expansion& expansion = pass.expansion;
  const bool together = expansion.member_order() == MemberOrder::kTogether;
  IdVector<OpId, std::optional<std::uint32_t>> label(graph.num_ops());
  std::size_t members = 0;
  for (const OpId small : pass.graph.ops())
    for (const OpId op : expansion.members(small)) {
      ++members;
      if (together || !graph[op].backward) label[op] = small.value();
    }
  CHECK(members == graph.num_ops());
  CHECK_FALSE(has_cycle(graph, label));

  PlacedGraph plan{Placement(pass.graph.num_ops(), DeviceId(0)),
                   DeviceOrder(costs.cluster().num_devices())};
  for (const OpId small : pass.graph.topological_order()) {
    plan.device[small] = DeviceId((small.index() + seed) % costs.cluster().num_devices());
    (*plan.order)[plan.device[small]].push_back(small);
  }
  CHECK_NOTHROW(simulate(costs, expand(expansion, plan)));
}

Optimized run_pass(const CostModel& costs, std::uint64_t which) {
  CoplacementOptions cut, neighbours;
  cut.cut.tries = 1;
  cut.cut.slacks = {0.5};
  neighbours.rule = CoplacementRule::kNeighbours;
  switch (which) {
    case 0:
      return colocate(costs);
    case 1:
      return coplace(costs, neighbours);
    case 2:
      return coplace(costs, cut);
    case 3:
      return fuse(costs);
    case 4:
      return forward_only(costs);
    case 5:
      return optimize(costs, {.coplacement = neighbours});
    default:
      return optimize(costs, {.coplacement = cut});
  }
}

// Sending takes so long that no limit on a meta-operator's size gets in the way, or so short that
// it does.
Cluster cluster_of(Time latency) { return testing::equal_devices(2, Bytes(100'000), latency); }

TEST_CASE("optimize: no pass makes a cycle on 100,000 graphs") {
  const std::uint64_t graphs = testing::effort(100'000);
  const Cluster slow = cluster_of(Time(1'000)), fast = cluster_of(Time(2));
  Counts counts;
  for (std::uint64_t seed = 0; seed < graphs; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = drawn_graph(seed);
    const CostModel costs(graph, seed % 7 == 0 ? fast : slow);
    check_fusion(costs, {.search_limit = seed % 3 == 0 ? 1 + seed % 11 : 200}, counts);
    check_pass(costs, run_pass(costs, seed / 5 % 7), seed);  // each meets every kind of drawing
  }
  // The graphs are worth something: every answer is given often.
  CHECK(counts.by_degree > graphs);
  CHECK(counts.by_reachability > graphs / 10);
  CHECK(counts.would_cycle > graphs / 10);
  CHECK(counts.gave_up > graphs / 100);
}

}  // namespace
}  // namespace baechi
