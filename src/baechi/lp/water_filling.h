// SPDX-License-Identifier: Apache-2.0
// Water-filling: lower the highest of some levels with one unit of effort, level e sinking by
// cost[e] per unit spent on it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace baechi::lp {

// The L with sum of max(0, (level[e] - L) * inverse_cost[e]) = 1: what remains of the highest
// level. Newton's method from below on a convex, decreasing, piecewise linear function: it never
// overshoots and ends after at most one step per level, usually two or three. Requires at least one
// level.
inline double water_level(std::span<const double> level, std::span<const double> cost,
                          std::span<const double> inverse_cost) {
  double filled = level[0] - cost[0];  // one level alone may sink by its whole cost
  for (std::size_t e = 1; e < level.size(); ++e) filled = std::max(filled, level[e] - cost[e]);
  for (std::size_t step = 0; step <= level.size(); ++step) {
    double effort = -1, slope = 0;
    for (std::size_t e = 0; e < level.size(); ++e) {
      if (level[e] <= filled) continue;
      effort += (level[e] - filled) * inverse_cost[e];
      slope += inverse_cost[e];
    }
    if (effort <= 1e-13 || slope <= 0) break;
    filled += effort / slope;
  }
  return filled;
}

}  // namespace baechi::lp
