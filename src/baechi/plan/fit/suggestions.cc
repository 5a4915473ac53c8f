// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/fit/suggestions.h"

#include <algorithm>
#include <cstdint>

#include "baechi/base/error.h"
#include "baechi/cluster/cluster.h"
#include "baechi/cost/needed_devices.h"
#include "baechi/plan/fit/any_fit.h"
#include "baechi/plan/fit/changed_cluster.h"
#include "baechi/plan/fit/memory_needs.h"
#include "baechi/plan/request/shares.h"

namespace baechi {
namespace {

bool fits_with(const CostModel& costs, std::optional<Bytes> capacity, std::size_t count,
               const SuggestOptions& options) {
  const std::optional<Cluster> cluster = changed_cluster(costs.cluster(), capacity, count);
  if (!cluster.has_value()) return false;
  const CostModel whole(costs.graph(), *cluster);
  const auto needed = NeededDevices::of(whole);
  const CostModel& other = needed != nullptr ? needed->costs() : whole;
  const Units units(other);
  constexpr std::int64_t kMostWork = 2'000'000;
  const std::int64_t work =
      std::min(kMostWork, work_for_fit(costs.graph(), options.budget * Share::kProbe) / 4);
  return find_any_fit(other, units, options.order, work, options.cancel).has_value();
}

}  // namespace

std::optional<Bytes> smallest_equal_capacity(const CostModel& costs,
                                             const SuggestOptions& options) {
  const std::size_t count = costs.cluster().num_devices();
  const Units units(costs);
  Bytes permanent, low(1);
  for (const UnitId unit : units.keys()) {
    permanent += units[unit].permanent;
    low = std::max(low, units[unit].need);
  }
  low = std::max(low, Bytes(permanent.count() / static_cast<std::int64_t>(count)));
  // Everything at once on one device is certainly enough, where one may run everything.
  Bytes high = permanent + Bytes(1);
  for (const OpId op : costs.graph().ops())
    high += costs.graph()[op].temporary +
            costs.graph().output_bytes(op) * static_cast<std::int64_t>(count);
  if (!fits_with(costs, high, count, options)) return std::nullopt;
  // Not monotone for a heuristic, but close: halve down to a thousandth of the answer.
  while (high - low > Bytes(high.count() / 1000)) {
    throw_if_cancelled(options.cancel);
    const Bytes middle = low + Bytes((high - low).count() / 2);
    if (fits_with(costs, middle, count, options))
      high = middle;
    else
      low = middle + Bytes(1);
  }
  return high;
}

std::optional<std::size_t> smallest_device_count(const CostModel& costs,
                                                 const SuggestOptions& options) {
  constexpr std::size_t kMostDevices = 64;
  std::size_t low = costs.cluster().num_devices(), high = low + 1;
  while (!fits_with(costs, std::nullopt, high, options)) {
    throw_if_cancelled(options.cancel);
    if (high >= kMostDevices) return std::nullopt;
    low = high;
    high = std::min(kMostDevices, high * 2);
  }
  while (high - low > 1) {
    const std::size_t middle = low + (high - low) / 2;
    (fits_with(costs, std::nullopt, middle, options) ? high : low) = middle;
  }
  return high;
}

}  // namespace baechi
