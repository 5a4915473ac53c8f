// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/robust.h"

#include <cstdio>
#include <tuple>

#include "baechi/base/assert.h"
#include "baechi/base/short_text.h"

namespace baechi {
namespace {

std::string percent(double fraction) {
  char text[48];
  std::snprintf(text, sizeof text, "%.4g%%", fraction * 100);
  return text;
}

}  // namespace

RobustChoice choose_robust(const CostModel& costs, const std::vector<Attempt>& attempts,
                           const Perturbations& perturbations) {
  std::vector<std::size_t> candidates;
  std::vector<const PlacedGraph*> placed;
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    if (!attempts[i].placed.has_value()) continue;
    candidates.push_back(i);
    placed.push_back(&*attempts[i].placed);
  }
  BAECHI_ASSERT(!candidates.empty(), "there is a plan to choose");
  const std::vector<Time> worst = worst_steps(costs, placed, perturbations);
  const auto rank = [&](std::size_t i) {
    return std::tuple(worst[i], attempts[candidates[i]].makespan, i);
  };
  std::size_t best = 0;
  for (std::size_t i = 1; i < candidates.size(); ++i)
    if (rank(i) < rank(best)) best = i;

  std::string note = "robust: of " + std::to_string(candidates.size()) + " plans " +
                     attempts[candidates[best]].method + "'s has the shortest worst step, " +
                     short_text(worst[best]) + ", when costs are off by up to " +
                     percent(perturbations.fraction) + " (" +
                     std::to_string(perturbations.samples) + " samples)";
  for (std::size_t i = 0; i < candidates.size(); ++i)
    if (i != best) note += "; " + attempts[candidates[i]].method + " " + short_text(worst[i]);
  return {candidates[best], note};
}

}  // namespace baechi
