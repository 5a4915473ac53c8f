// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/step_advice.h"

#include <algorithm>
#include <cstdint>

#include "baechi/base/error.h"
#include "baechi/cost/cost_model.h"
#include "baechi/plan/fit/changed_cluster.h"
#include "baechi/plan/fit/memory_needs.h"

namespace baechi {
namespace {

constexpr std::size_t kMostDevices = 64;

// What arithmetic says of a capacity that is equal on all devices.
struct Capacities {
  Bytes least{1};  // below it some operator has no room
  Bytes ample{1};  // everything at once is on one device
};

Capacities capacities_of(const OpGraph& graph, const Cluster& cluster) {
  const CostModel costs(graph, cluster);
  const Units units(costs);
  const auto count = static_cast<std::int64_t>(cluster.num_devices());
  Capacities found;
  Bytes permanent;
  for (const UnitId unit : units.keys()) {
    permanent += units[unit].permanent;
    found.least = std::max(found.least, units[unit].need);
  }
  found.least = std::max(found.least, Bytes(permanent.count() / count));
  found.ample += permanent;
  for (const OpId op : graph.ops())
    found.ample += graph[op].temporary + graph.output_bytes(op) * count;
  return found;
}

class Advice {
 public:
  Advice(const std::vector<Unrolled>& steps, const Cluster& cluster, const PeakOn& peak_on,
         const CancelFlag* cancel)
      : cluster_(cluster), peak_on_(peak_on), cancel_(cancel) {
    std::size_t ops = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const Capacities found = capacities_of(steps[i].graph, cluster);
      range_.least = i == 0 ? found.least : std::min(range_.least, found.least);
      range_.ample = std::max(range_.ample, found.ample);
      ops += steps[i].graph.num_ops();
    }
    const bool small = ops <= 500, large = ops > 10'000;
    part_ = small ? 0.2 : large ? 0.02 : 0.05;
    exactness_ = small ? 1000 : large ? 20 : 100;
  }

  // As `min` searches it: what fits fits with its highest peak, and the rest is halved. Not monotone
  // for a heuristic, but close.
  std::optional<Bytes> capacity() const {
    std::vector<Bytes> found;  // that there was a plan for, the smallest last
    Bytes high = range_.ample;
    const auto take = [&](Bytes capacity) {
      throw_if_cancelled(cancel_);
      const std::optional<Bytes> peak = peak_with(capacity, part_);
      if (!peak.has_value()) return false;
      found.push_back(capacity);
      high = capacity;
      if (*peak < capacity && peak_with(*peak, part_).has_value()) {
        found.push_back(*peak);
        high = *peak;
      }
      return true;
    };
    if (!take(high)) return std::nullopt;
    Bytes low = range_.least;
    while (high > low && high - low >= std::max(Bytes(1), Bytes(high.count() / exactness_))) {
      const Bytes middle = low + Bytes((high - low).count() / 2);
      if (take(middle))
        low = std::min(low, high);
      else
        low = middle + Bytes(1);
    }
    for (std::size_t i = found.size(); i-- > 0;)
      if (peak_with(found[i], 1).has_value()) return found[i];
    return std::nullopt;
  }

  std::optional<std::size_t> devices() const {
    std::size_t low = cluster_.num_devices(), high = low + 1;
    std::vector<std::size_t> found;  // the smallest last
    while (high <= kMostDevices && !fits_on(high, part_)) {
      if (high == kMostDevices) return std::nullopt;
      low = high;
      high = std::min(kMostDevices, high * 2);
    }
    if (high > kMostDevices) return std::nullopt;
    found.push_back(high);
    while (found.back() - low > 1) {
      const std::size_t middle = low + (found.back() - low) / 2;
      if (fits_on(middle, part_))
        found.push_back(middle);
      else
        low = middle;
    }
    for (std::size_t i = found.size(); i-- > 0;)
      if (fits_on(found[i], 1)) return found[i];
    return std::nullopt;
  }

 private:
  std::optional<Bytes> peak_on(const std::optional<Cluster>& cluster, double part) const {
    throw_if_cancelled(cancel_);
    return cluster.has_value() ? peak_on_(*cluster, part) : std::nullopt;
  }
  std::optional<Bytes> peak_with(Bytes capacity, double part) const {
    return peak_on(changed_cluster(cluster_, capacity, cluster_.num_devices()), part);
  }
  bool fits_on(std::size_t count, double part) const {
    return peak_on(changed_cluster(cluster_, std::nullopt, count), part).has_value();
  }

  const Cluster& cluster_;
  const PeakOn& peak_on_;
  const CancelFlag* const cancel_;
  Capacities range_;
  double part_ = 0;               // of the budget, for a try
  std::int64_t exactness_ = 100;  // the capacity to one part in so many
};

}  // namespace

StepAdvice advice_on(const std::vector<Unrolled>& steps, const Cluster& cluster,
                     const PeakOn& peak_on, const CancelFlag* cancel) {
  const Advice advice(steps, cluster, peak_on, cancel);
  return {.smallest_capacity = advice.capacity(), .more_devices = advice.devices()};
}

}  // namespace baechi
