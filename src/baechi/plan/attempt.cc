// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/attempt.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "baechi/plan/fit_search.h"

namespace baechi {
namespace {

constexpr std::size_t kEnumerable = 12;  // operators; beyond it the space is hopeless

// Keeps `placed` if it fits; remembers the device that runs over if not.
bool accept(const CostModel& costs, PlacedGraph placed, const CancelFlag* cancel, Attempt& attempt) {
  const Trace trace = simulate(costs, placed, {.cancel = cancel});
  if (const std::optional<Overflow> overflow = find_overflow(trace, costs.cluster())) {
    const Device& device = costs.cluster()[overflow->device];
    attempt.reason = "device '" + device.name + "' would peak at " +
                     in_words(trace.devices[overflow->device].peak) + ", " +
                     in_words(overflow->over) + " more than it has";
    if (!attempt.misfit.has_value() && trace.devices[overflow->device].peak_op.has_value())
      attempt.misfit = DoesNotFit{*trace.devices[overflow->device].peak_op, overflow->over};
    return false;
  }
  attempt.makespan = trace.schedule.makespan;
  for (const DeviceTrace& device : trace.devices) attempt.peaks.push_back(device.peak);
  attempt.placed = std::move(placed);
  attempt.reason.clear();
  return true;
}

// A start for repair when the placer gave none: everything where it may run, memory ignored.
PlacedGraph anywhere(const Units& units, const CostModel& costs) {
  PlacedGraph placed{Placement(costs.graph().num_ops(), DeviceId(0)), std::nullopt};
  for (const UnitId unit : units.keys())
    for (const OpId op : units[unit].ops) placed.device[op] = units[unit].devices.front();
  return placed;
}

void run_attempt(const CostModel& costs, const Units& units, const PlacerEntry& placer,
                 const PlaceOptions& options, Attempt& attempt) {
  std::optional<PlacedGraph> live;
  const auto run = [&](MemoryPolicy memory) {
    PlaceOptions with_memory = options;
    with_memory.memory = memory;
    PlaceResult result = placer.place(costs, with_memory);
    if (const auto* misfit = std::get_if<DoesNotFit>(&result)) {
      if (!attempt.misfit.has_value()) attempt.misfit = *misfit;
      attempt.reason = "operator '" + std::string(costs.graph()[misfit->op].name) +
                       "' found no room: the device with the most lacked " +
                       in_words(misfit->short_by);
      return false;
    }
    PlacedGraph placed = std::get<PlacedGraph>(std::move(result));
    if (memory == MemoryPolicy::kLive) live = placed;
    return accept(costs, std::move(placed), options.cancel, attempt);
  };

  if (run(MemoryPolicy::kLive) || placer.baseline) return;
  const std::string reason = attempt.reason;
  attempt.fallbacks.push_back("reserve");
  if (run(MemoryPolicy::kReserve)) return;

  FitSearch search(costs, units, {.cancel = options.cancel});
  const auto take = [&](std::optional<PlacedGraph> found) {
    return found.has_value() && accept(costs, *std::move(found), options.cancel, attempt);
  };
  attempt.fallbacks.push_back("repair");
  if (take(search.repair(live.has_value() ? *live : anywhere(units, costs)))) return;
  attempt.fallbacks.push_back("packing");
  if (take(search.pack())) return;
  if (costs.graph().num_ops() <= kEnumerable) {
    attempt.fallbacks.push_back("enumeration");
    if (take(search.enumerate())) return;
    attempt.proved = search.complete();
  }
  attempt.reason = reason;
}

}  // namespace

Attempt attempt(const CostModel& costs, const Units& units, const PlacerEntry& placer,
                const PlaceOptions& options) {
  Attempt attempt;
  attempt.method = std::string(placer.name);
  const auto begin = std::chrono::steady_clock::now();
  run_attempt(costs, units, placer, options, attempt);
  attempt.nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(
                            std::chrono::steady_clock::now() - begin)
                            .count();
  return attempt;
}

std::optional<PlacedGraph> find_any_fit(const CostModel& costs, const Units& units,
                                        std::int64_t simulated_ops, const CancelFlag* cancel) {
  if (prove_cannot_fit(costs, units).has_value()) return std::nullopt;
  PlaceOptions options;
  options.cancel = cancel;
  for (const MemoryPolicy memory : {MemoryPolicy::kLive, MemoryPolicy::kReserve}) {
    options.memory = memory;
    PlaceResult result = place_m_etf(costs, options);
    if (auto* placed = std::get_if<PlacedGraph>(&result))
      if (!find_overflow(simulate(costs, *placed, {.cancel = cancel}), costs.cluster()))
        return std::move(*placed);
  }
  FitSearch search(costs, units, {.simulated_ops = simulated_ops, .cancel = cancel});
  if (std::optional<PlacedGraph> found = search.pack()) return found;
  if (costs.graph().num_ops() <= kEnumerable) return search.enumerate();
  return std::nullopt;
}

MethodOutcome outcome_of(const Attempt& attempt) {
  MethodOutcome outcome{.method = attempt.method,
                        .makespan = {},
                        .fallbacks = attempt.fallbacks,
                        .reason = attempt.reason,
                        .devices_used = 0,
                        .peaks = attempt.peaks};
  if (!attempt.placed.has_value()) return outcome;
  outcome.makespan = attempt.makespan;
  std::vector<DeviceId> used(attempt.placed->device.begin(), attempt.placed->device.end());
  std::sort(used.begin(), used.end());
  outcome.devices_used =
      static_cast<std::size_t>(std::unique(used.begin(), used.end()) - used.begin());
  return outcome;
}

}  // namespace baechi
