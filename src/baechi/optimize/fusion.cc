// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/fusion.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "baechi/optimize/acyclic_contraction.h"
#include "baechi/optimize/grouping.h"
#include "baechi/optimize/mean_link.h"
#include "baechi/optimize/pass_clock.h"

namespace baechi {
namespace {

using Ends = std::pair<OpId, OpId>;

// Edges within one group and one pass (forward or backward), those that carry most first, by powers
// of two; alike ones in topological order. Control edges come last.
std::vector<Ends> candidates(const OpGraph& graph, const OpLabels& group) {
  constexpr std::size_t kWeights = 65;
  const auto weight = [&](const Edge& edge) -> std::size_t {
    if (!edge.tensor.has_value()) return 0;
    return static_cast<std::size_t>(
        std::bit_width(static_cast<std::uint64_t>(graph.size(*edge.tensor).count())));
  };
  // A variable that others read, too, or that is written, stays what it is: of what is fused into
  // its reader nobody knows any more that it is there all the time.
  IdVector<OpId, bool> stays(graph.num_ops());
  for (const Write& write : graph.writes()) stays[write.variable] = true;
  for (const OpId op : graph.ops()) {
    const std::span<const Edge> edges = graph.out_edges(op);
    if (graph[op].variable && !edges.empty() &&
        std::ranges::any_of(edges, [&](const Edge& e) { return e.to != edges.front().to; }))
      stays[op] = true;
  }
  const auto eligible = [&](const Edge& edge) {
    return !stays[edge.from] && group[edge.from] == group[edge.to] &&
           graph[edge.from].backward == graph[edge.to].backward;
  };
  std::array<std::size_t, kWeights + 1> begin{};
  for (const OpId op : graph.ops())
    for (const Edge& edge : graph.out_edges(op))
      if (eligible(edge)) ++begin[kWeights - weight(edge)];
  for (std::size_t i = 1; i <= kWeights; ++i) begin[i] += begin[i - 1];
  std::vector<Ends> sorted(begin[kWeights], Ends(OpId(0), OpId(0)));
  for (const OpId op : graph.topological_order())
    for (const Edge& edge : graph.out_edges(op))
      if (eligible(edge)) sorted[begin[kWeights - 1 - weight(edge)]++] = {edge.from, edge.to};
  return sorted;
}

}  // namespace

Fusion find_fusions(const CostModel& costs, const OpLabels& group, const FusionOptions& options) {
  const OpGraph& graph = costs.graph();
  const MeanLink link(costs.cluster());
  const Time typical = typical_transfer_time(graph, link);
  // On a cluster of one device nothing waits for anything: no cap.
  const double cap = link.exists() ? options.grain * static_cast<double>(typical.count())
                                   : std::numeric_limits<double>::infinity();

  Fusion fusion;
  AcyclicContraction contraction(graph, {options.by_reachability, options.search_limit});
  IdVector<OpId, Time> work = mean_work(costs);
  IdVector<OpId, std::uint64_t> classes(graph.num_ops());
  for (const OpId op : graph.ops()) classes[op] = class_bits(costs, op);

  std::vector<Ends> edges = candidates(graph, group);
  for (bool changed = true; changed && !edges.empty();) {
    changed = false;
    std::size_t kept = 0;
    fusion.would_cycle = fusion.gave_up = 0;
    for (const auto& [from, to] : edges) {
      const OpId u(contraction.find(from)), v(contraction.find(to));
      if (u == v || (classes[u] & classes[v]) == 0) continue;
      const Time together = work[u] + work[v];
      if (static_cast<double>(together.count()) > cap) continue;
      switch (contraction.contract(u, v)) {
        case EdgeContraction::kByDegree:
          ++fusion.by_degree;
          break;
        case EdgeContraction::kByReachability:
          ++fusion.by_reachability;
          break;
        case EdgeContraction::kWouldCycle:
          ++fusion.would_cycle;
          break;
        case EdgeContraction::kGaveUp:
          ++fusion.gave_up;
          break;
      }
      if (contraction.find(u) != contraction.find(v)) {
        edges[kept++] = {from, to};
        continue;
      }
      changed = true;
      const OpId merged(contraction.find(u));
      work[merged] = together;
      classes[merged] = classes[u] & classes[v];
    }
    edges.resize(kept, Ends(OpId(0), OpId(0)));
  }
  fusion.cluster = OpLabels(graph.num_ops());
  for (const OpId op : graph.ops()) fusion.cluster[op] = contraction.find(op);
  return fusion;
}

std::string describe(const Fusion& fusion) {
  return std::to_string(fusion.by_degree) + " edges fused by degree, " +
         std::to_string(fusion.by_reachability) + " more by reachability; " +
         std::to_string(fusion.would_cycle) + " would have made a cycle, " +
         std::to_string(fusion.gave_up) + " searches given up";
}

Optimized fuse(const CostModel& costs, const FusionOptions& options) {
  const OpGraph& graph = costs.graph();
  const PassClock clock("fuse", graph);
  const OpLabels group = group_labels(graph);
  const Fusion fusion = find_fusions(costs, group, options);
  Contracted small = contract(graph, fusion.cluster, group);
  PassStatistics statistics = clock.stop(small.graph, describe(fusion));
  return {std::move(small.graph), std::move(small.expansion), {std::move(statistics)}};
}

}  // namespace baechi
