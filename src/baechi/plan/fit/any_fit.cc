// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/fit/any_fit.h"

#include <algorithm>
#include <utility>

#include "baechi/place/exact/exact.h"
#include "baechi/place/placer.h"
#include "baechi/plan/fit/fit_search.h"
#include "baechi/plan/fit/fit_walk.h"
#include "baechi/plan/request/budget.h"
#include "baechi/simulate/execution_simulator.h"

namespace baechi {
namespace {

// Operators that the exact search looks at while the simulator replays one.
constexpr std::int64_t kLooksPerReplay = 3;

// Searches all plans for one that fits. True if the question is settled.
bool enumerate(const CostModel& costs, std::int64_t work, const CancelFlag* cancel,
               LastResort& resort) {
  resort.fallbacks.emplace_back("enumeration");
  ExactResult exact =
      solve_exactly(costs, {.work = work * kLooksPerReplay, .cancel = cancel, .any = true});
  if (exact.cancelled) throw_if_cancelled(cancel);
  resort.spent += std::min(work, exact.work / kLooksPerReplay);
  resort.proved = exact.complete && !exact.placed.has_value();
  if (exact.placed.has_value()) {
    PlacedGraph placed = as_executed(*std::move(exact.placed), resort.order, costs.graph(),
                                     costs.cluster().num_devices());
    if (!find_overflow(simulate(costs, placed), costs.cluster()).has_value())
      resort.placed = std::move(placed);
  }
  return resort.proved || resort.placed.has_value();
}

// What a list scheduler takes, with a replay, in simulated operators. For every unit it asks every
// device.
std::int64_t work_of_list(const CostModel& costs, const Units& units) {
  constexpr std::int64_t kOfOperator = 3, kOfUnit = 6, kOfDevice = 2;
  const auto devices = static_cast<std::int64_t>(costs.cluster().num_devices());
  return kOfOperator * replay_cost(costs.graph()) +
         static_cast<std::int64_t>(units.size()) * (kOfUnit + kOfDevice * devices);
}

}  // namespace

std::int64_t work_for_fit(const OpGraph& graph, Budget budget) {
  constexpr std::int64_t kReplays = 2'000, kMost = 10'000'000;
  return std::max(budget.replays(), std::min(kReplays * replay_cost(graph), kMost));
}

void search_any_fit(const CostModel& costs, const Units& units, const CancelFlag* cancel,
                    LastResort& resort) {
  if (std::exchange(resort.searched, true)) return;
  const std::int64_t end = resort.spent + resort.work;
  const auto left = [&] { return end - resort.spent; };
  resort.fallbacks = {"packing"};
  // Of little work, what it starts from, and all where a walk would make fewer moves than operators.
  const std::int64_t replay = replay_cost(costs.graph());
  const std::int64_t least = std::max(FitSearch::kStarts * replay,
                                      replay * std::ssize(costs.graph().topological_order()) / 8);
  FitSearch search(costs, units,
                   {.simulated_ops = std::max(left() / 8, std::min(left(), least)),
                    .order = resort.order,
                    .cancel = cancel});
  resort.placed = search.pack();
  resort.spent += search.work();
  const bool searchable = is_searchable(costs);
  if (resort.placed.has_value() || (searchable && enumerate(costs, left() / 8, cancel, resort)))
    return;

  resort.fallbacks.emplace_back("reordering");
  FitWalked walked = walk_to_fit(costs, units,
                                 {.simulated_ops = searchable ? left() / 2 : left(),
                                  .seed = resort.seed,
                                  .order = resort.order,
                                  .cancel = cancel});
  resort.placed = std::move(walked.placed);
  resort.spent += walked.work;
  if (!resort.placed.has_value() && searchable) enumerate(costs, left(), cancel, resort);
}

AnyFit find_any_fit(const CostModel& costs, const Units& units, ExecutionOrder order,
                    std::int64_t simulated_ops, const CancelFlag* cancel) {
  AnyFit fit{.work = replay_cost(costs.graph())};  // for the proof and the units
  if (prove_cannot_fit(costs, units).has_value()) return fit;
  PlaceOptions options;
  options.cancel = cancel;
  for (const MemoryPolicy memory : {MemoryPolicy::kLive, MemoryPolicy::kReserve}) {
    if (fit.work + work_of_list(costs, units) > simulated_ops / 2) break;
    fit.work += work_of_list(costs, units);
    options.memory = memory;
    PlaceResult result = place_m_etf(costs, options);
    auto* found = std::get_if<PlacedGraph>(&result);
    if (found == nullptr) continue;
    const PlacedGraph placed =
        as_executed(std::move(*found), order, costs.graph(), costs.cluster().num_devices());
    fit.found =
        !find_overflow(simulate(costs, placed, {.cancel = cancel}), costs.cluster()).has_value();
    if (fit.found) return fit;
  }
  LastResort resort{.work = simulated_ops - fit.work, .order = order};
  search_any_fit(costs, units, cancel, resort);
  return {.found = resort.placed.has_value(), .work = fit.work + resort.spent};
}

}  // namespace baechi
