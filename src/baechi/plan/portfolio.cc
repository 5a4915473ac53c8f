// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/portfolio.h"

namespace baechi {
namespace {

constexpr PortfolioEntry kMethods[] = {
    {"auto", "every method that can win, the best simulated step time"},
    {"all", "every method and baseline, to compare"},
};

}  // namespace

std::span<const PortfolioEntry> portfolio_methods() { return kMethods; }

std::vector<Attempt> run_portfolio(const CostModel& costs, const Units& units,
                                   const PlanRequest& request) {
  std::vector<Attempt> attempts;
  const auto run = [&](const PlacerEntry& placer) {
    if (placer.name == "expert" && request.place.expert == nullptr) return;
    attempts.push_back(attempt(costs, units, placer, request.place));
  };
  if (request.method == "all") {
    for (const PlacerEntry& placer : all_placers()) run(placer);
  } else if (request.method == "auto") {
    for (const PlacerEntry& placer : all_placers())
      if (placer.name != "random" && placer.name != "expert") run(placer);
  } else {
    run(find_placer(request.method));
  }
  return attempts;
}

}  // namespace baechi
