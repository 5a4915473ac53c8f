// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/fit/suggestions.h"

#include <algorithm>
#include <cstdint>

#include "baechi/base/error.h"
#include "baechi/cluster/cluster.h"
#include "baechi/cost/needed_devices.h"
#include "baechi/plan/fit/any_fit.h"
#include "baechi/plan/fit/changed_cluster.h"
#include "baechi/plan/fit/fit_search.h"
#include "baechi/plan/fit/memory_needs.h"
#include "baechi/plan/request/budget.h"

namespace baechi {
namespace {

// What a question may still take, in simulated operators.
class Asking {
 public:
  Asking(const CostModel& costs, const SuggestOptions& options, std::int64_t work)
      : costs_(costs), options_(options), most_(work) {}

  bool fits_with(std::optional<Bytes> capacity, std::size_t count) {
    throw_if_cancelled(options_.cancel);
    const std::optional<Cluster> cluster = changed_cluster(costs_.cluster(), capacity, count);
    if (!cluster.has_value()) return false;
    const CostModel whole(costs_.graph(), *cluster);
    const auto needed = NeededDevices::of(whole);
    const CostModel& other = needed != nullptr ? needed->costs() : whole;
    const AnyFit fit = find_any_fit(other, Units(other), options_.order, of_one(), options_.cancel);
    work_ += fit.work;
    return fit.found;
  }

  // What the cuts hold that a search for a plan starts from, as far as there is work for them.
  std::optional<Bytes> peak_of_cuts(const Units& units) {
    FitSearch search(
        costs_, units,
        {.simulated_ops = left() / 2, .order = options_.order, .cancel = options_.cancel});
    const std::optional<Bytes> peak = search.peak_of_cuts();
    work_ += search.work();
    return peak;
  }

  // There is no work left for one more try.
  bool is_over() {
    const bool over = left() < kLeastReplays * replay_cost(costs_.graph());
    cut_short_ = cut_short_ || over;
    return over;
  }
  bool was_cut_short() const { return cut_short_; }
  std::int64_t work() const { return work_; }

 private:
  static constexpr std::int64_t kLeastReplays = 4;

  std::int64_t left() const { return most_ - work_; }

  std::int64_t of_one() const {
    constexpr std::int64_t kMost = 2'000'000;
    const std::int64_t asked =
        work_for_fit(costs_.graph(), options_.budget.part(Share::kProbe)) / 4;
    const std::int64_t least = kLeastReplays * replay_cost(costs_.graph());
    return std::clamp(std::min(asked, kMost), least, std::max(least, left() / 3));
  }

  const CostModel& costs_;
  const SuggestOptions& options_;
  const std::int64_t most_;
  std::int64_t work_ = 0;
  bool cut_short_ = false;
};

std::optional<Bytes> smallest_equal_capacity(const CostModel& costs, Asking& asking) {
  const std::size_t count = costs.cluster().num_devices();
  const Units units(costs);
  Bytes permanent, low(1);
  for (const UnitId unit : units.keys()) {
    if (units[unit].devices.empty()) return std::nullopt;  // no memory helps what none can run
    permanent += units[unit].permanent;
    low = std::max(low, units[unit].need);
  }
  low = std::max(low, Bytes(permanent.count() / static_cast<std::int64_t>(count)));
  // Everything at once on one device is certainly enough, where one may run everything.
  Bytes high = permanent + Bytes(1);
  for (const OpId op : costs.graph().ops())
    high += costs.graph()[op].temporary +
            costs.graph().output_bytes(op) * static_cast<std::int64_t>(count);
  const std::optional<Bytes> known = asking.peak_of_cuts(units);
  const auto fits = [&](Bytes capacity) {
    return (known.has_value() && capacity >= *known) || asking.fits_with(capacity, count);
  };
  if ((!known.has_value() && asking.is_over()) || !fits(high)) return std::nullopt;
  // Not monotone for a heuristic, but close: halve down to a thousandth of the answer.
  while (high - low > Bytes(high.count() / 1000)) {
    const Bytes middle = low + Bytes((high - low).count() / 2);
    if (asking.is_over()) return known.has_value() ? std::min(high, *known) : high;
    if (fits(middle))
      high = middle;
    else
      low = middle + Bytes(1);
  }
  return high;
}

std::optional<std::size_t> smallest_device_count(const CostModel& costs, Asking& asking) {
  constexpr std::size_t kMostDevices = 64;
  std::size_t low = costs.cluster().num_devices(), high = low + 1;
  if (high > kMostDevices || asking.is_over()) return std::nullopt;
  while (!asking.fits_with(std::nullopt, high)) {
    if (high >= kMostDevices || asking.is_over()) return std::nullopt;
    low = high;
    high = std::min(kMostDevices, high * 2);
  }
  while (high - low > 1 && !asking.is_over()) {
    const std::size_t middle = low + (high - low) / 2;
    (asking.fits_with(std::nullopt, middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace

Suggestions suggest(const CostModel& costs, const SuggestOptions& options) {
  Suggestions found;
  const std::int64_t work = options.budget.replays();
  const auto ask = [&](auto& answer, std::int64_t most, const auto& search) {
    Asking asking(costs, options, most);
    answer = search(costs, asking);
    found.work += asking.work();
    found.cut_short = found.cut_short || asking.was_cut_short();
  };
  try {
    ask(found.more_devices, work / 2, smallest_device_count);
    ask(found.smallest_capacity, work - found.work, smallest_equal_capacity);
  } catch (const Cancelled&) {  // what is known so far is said
    found.cut_short = false;
  }
  if (found.smallest_capacity.has_value() || found.more_devices.has_value())
    found.cut_short = false;
  return found;
}

}  // namespace baechi
