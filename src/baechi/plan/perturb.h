// SPDX-License-Identifier: Apache-2.0
// Wrong profiles (Paper 5, Figure 8): the same graph with costs that are off by up to some part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// The compute time of every operator and the size of every tensor, each times a factor of its own,
// uniform in 1 - fraction .. 1 + fraction. Requires 0 <= fraction <= 1. Seeds give unrelated draws.
OpGraph perturbed(const OpGraph& graph, double fraction, std::uint64_t seed);

struct Perturbations {
  double fraction = 0.2;
  std::size_t samples = 16;
  std::uint64_t seed = 1;
  unsigned threads = 1;
  const CancelFlag* cancel = nullptr;
};

// For each placement the longest step that it takes under any of the samples. All placements see
// the same samples.
std::vector<Time> worst_steps(const CostModel& costs, const std::vector<const PlacedGraph*>& placed,
                              const Perturbations& perturbations);

}  // namespace baechi
