// SPDX-License-Identifier: Apache-2.0
// Proofs of optimality on a reduced graph.
#include "baechi/lp/path_certificate.h"

#include <algorithm>

namespace baechi::lp {
namespace {

// The least prices of `side`'s groups that cover cost * flow, given the prices of the other side.
void cover(const ReducedGraph& graph, const std::vector<double>& flow,
           const std::vector<std::uint32_t>& side, const std::vector<std::uint32_t>& other,
           std::vector<double>& price) {
  for (std::size_t e = 0; e < graph.num_edges(); ++e) price[side[e]] = 0;
  for (std::size_t e = 0; e < graph.num_edges(); ++e) {
    if (side[e] == kFreeGroup) continue;
    const double others = other[e] == kFreeGroup ? 0 : price[other[e]];
    price[side[e]] = std::max(price[side[e]], graph.cost[e] * flow[e] - others);
  }
}

}  // namespace

double longest_path(const ReducedGraph& graph, const std::vector<double>& y) {
  std::vector<double> head(graph.num_nodes, 0);
  for (std::size_t e = 0; e < graph.num_edges(); ++e)
    head[graph.to[e]] =
        std::max(head[graph.to[e]], head[graph.from[e]] + graph.length[e] - graph.cost[e] * y[e]);
  return head.back();
}

double certified_lower_bound(const ReducedGraph& graph, const std::vector<double>& flow,
                             const std::vector<double>& price) {
  std::vector<double> inflow(graph.num_nodes, 0), through(graph.num_nodes, 0);
  std::vector<double> unit(graph.num_edges());
  for (std::size_t e = 0; e < graph.num_edges(); ++e) inflow[graph.to[e]] += flow[e];
  through.back() = 1;
  double bound = 0;
  for (std::size_t e = graph.num_edges(); e-- > 0;) {
    const double total = inflow[graph.to[e]];
    if (total <= 0) return graph.lower_bound;
    unit[e] = through[graph.to[e]] * flow[e] / total;
    through[graph.from[e]] += unit[e];
    bound += unit[e] * graph.length[e];
  }
  std::vector<double> covering = price;
  cover(graph, unit, graph.in_group, graph.out_group, covering);
  cover(graph, unit, graph.out_group, graph.in_group, covering);
  for (std::size_t g = 1; g < graph.num_groups; ++g) bound -= covering[g];
  return bound;
}

}  // namespace baechi::lp
