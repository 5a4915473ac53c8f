// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/robust.h"

#include <utility>

#include "baechi/base/assert.h"
#include "baechi/plan/perturb.h"

namespace baechi {

std::size_t most_robust_of_fastest(const CostModel& costs, const std::vector<Attempt>& attempts,
                                   const PlanRequest& request) {
  constexpr std::int64_t kAlike = 500;
  constexpr double kOffBy = 0.1;
  std::optional<Time> shortest;
  for (const Attempt& attempt : attempts)
    if (attempt.placed.has_value() && (!shortest.has_value() || attempt.makespan < *shortest))
      shortest = attempt.makespan;
  BAECHI_ASSERT(shortest.has_value(), "there is a plan to choose");
  const Time most = *shortest + Time(shortest->count() / kAlike);
  std::vector<std::size_t> places;
  std::vector<const PlacedGraph*> placed;
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    if (!attempts[i].placed.has_value() || attempts[i].makespan > most) continue;
    places.push_back(i);
    placed.push_back(&*attempts[i].placed);
  }
  if (places.size() == 1) return places.front();
  const std::vector<Time> worst = worst_steps(
      costs, placed, {.fraction = kOffBy, .seed = request.place.seed, .threads = request.threads});
  const auto rank = [&](std::size_t i) {
    return std::pair(worst[i], attempts[places[i]].makespan);
  };
  std::size_t best = 0;
  for (std::size_t i = 1; i < places.size(); ++i)
    if (rank(i) < rank(best)) best = i;
  return places[best];
}

}  // namespace baechi
