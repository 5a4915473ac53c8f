// SPDX-License-Identifier: Apache-2.0
// A textbook simplex on a dense tableau: small, slow, and it shares nothing with the solvers in
// lp/.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "unit/lp/path_instances.h"

namespace baechi::lp::oracle {

// max objective * v  subject to  rows * v <= limits, v >= 0, where every limit is >= 0 (so v = 0 is
// a feasible start). The limits are moved apart by less than 1e-11, so that no basis is degenerate
// and the steepest column never cycles; the optimum moves by as much.
inline long double maximum(std::vector<std::vector<long double>> rows,
                           std::vector<long double> limits, std::vector<long double> objective) {
  const std::size_t m = rows.size(), n = objective.size();
  constexpr long double kTiny = 1e-15L;
  for (std::size_t i = 0; i < m; ++i) {  // slack variables
    rows[i].resize(n + m, 0);
    rows[i][n + i] = 1;
    limits[i] += 1e-14L * static_cast<long double>(1 + (i * 37) % m);
  }
  objective.resize(n + m, 0);
  long double value = 0;
  for (;;) {
    const auto steepest = std::ranges::max_element(objective);
    if (*steepest <= kTiny) return value;
    const auto enter = static_cast<std::size_t>(steepest - objective.begin());
    std::size_t leave = m;
    for (std::size_t i = 0; i < m; ++i) {
      if (rows[i][enter] <= kTiny) continue;
      if (leave == m || limits[i] / rows[i][enter] < limits[leave] / rows[leave][enter]) leave = i;
    }
    if (leave == m) return HUGE_VALL;  // unbounded
    const long double pivot = rows[leave][enter];
    for (long double& entry : rows[leave]) entry /= pivot;
    limits[leave] /= pivot;
    for (std::size_t i = 0; i < m; ++i) {
      const long double factor = rows[i][enter];
      if (i == leave || factor == 0) continue;
      for (std::size_t j = 0; j < n + m; ++j) rows[i][j] -= factor * rows[leave][j];
      limits[i] -= factor * limits[leave];
    }
    const long double gain = objective[enter];
    for (std::size_t j = 0; j < n + m; ++j) objective[j] -= gain * rows[leave][j];
    value += gain * limits[leave];
  }
}

// The optimum of the relaxation of matching_path_problem.h, by way of its dual:
//   max  sum of f * (length + cost) + sum of sinks' flow * length - sum of prices
//   subject to  flow that leaves a node <= flow that enters it or starts there, total start <= 1,
//               cost * f <= price of its tail + price of its head,
// where flow may stop at any node (lengths are >= 0, so it never pays to lose any).
inline double relaxed_optimum(const instances::Instance& instance) {
  const std::size_t nodes = instance.lengths.size(), edges = instance.edges.size();
  // Columns: f per edge, start per node, stop per node, out-price per node, in-price per node.
  const std::size_t start = edges, stop = start + nodes, out_price = stop + nodes,
                    in_price = out_price + nodes, columns = in_price + nodes;
  long double unit = 1;  // scales times to about 1
  for (const std::int64_t length : instance.lengths) unit += static_cast<long double>(length);
  for (const PathEdge& edge : instance.edges) unit += static_cast<long double>(edge.cost);
  std::vector<std::vector<long double>> rows;
  std::vector<long double> limits, objective(columns, 0);
  for (std::size_t node = 0; node < nodes; ++node) {
    std::vector<long double> row(columns, 0);
    for (std::size_t e = 0; e < edges; ++e) {
      if (instance.edges[e].from == node) row[e] += 1;
      if (instance.edges[e].to == node) row[e] -= 1;
    }
    row[start + node] = -1;
    row[stop + node] = 1;
    rows.push_back(row);
    limits.push_back(0);
    objective[stop + node] = static_cast<long double>(instance.lengths[node]) / unit;
    objective[out_price + node] = objective[in_price + node] = -1;
  }
  std::vector<long double> total(columns, 0);
  for (std::size_t node = 0; node < nodes; ++node) total[start + node] = 1;
  rows.push_back(total);
  limits.push_back(1);
  for (std::size_t e = 0; e < edges; ++e) {
    const PathEdge& edge = instance.edges[e];
    const long double cost = static_cast<long double>(edge.cost) / unit;
    objective[e] = static_cast<long double>(instance.lengths[edge.from]) / unit + cost;
    std::vector<long double> row(columns, 0);
    row[e] = cost;
    row[out_price + edge.from] = -1;
    row[in_price + edge.to] = -1;
    rows.push_back(row);
    limits.push_back(0);
  }
  return static_cast<double>(maximum(rows, limits, objective) * unit);
}

}  // namespace baechi::lp::oracle
