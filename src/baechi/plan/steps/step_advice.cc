// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/step_advice.h"

#include <algorithm>
#include <cstdint>

#include "baechi/base/error.h"
#include "baechi/cost/cost_model.h"
#include "baechi/plan/fit/any_fit.h"
#include "baechi/plan/fit/changed_cluster.h"
#include "baechi/plan/fit/fit_search.h"
#include "baechi/plan/fit/memory_needs.h"
#include "baechi/plan/request/budget.h"

namespace baechi {
namespace {

constexpr std::size_t kMostDevices = 64;
constexpr std::int64_t kOfOperator = 20;  // what a plan takes beside its part of the budget

// What arithmetic says of a capacity that is equal on all devices.
struct Capacities {
  Bytes least{1};   // below it some operator has no room
  Bytes ample{1};   // everything at once is on one device
  Bytes permanent;  // of all operators together
};

Capacities capacities_of(const OpGraph& graph, const Cluster& cluster) {
  const CostModel costs(graph, cluster);
  const Units units(costs);
  const auto count = static_cast<std::int64_t>(cluster.num_devices());
  Capacities found;
  for (const UnitId unit : units.keys()) {
    found.permanent += units[unit].permanent;
    found.least = std::max(found.least, units[unit].need);
  }
  found.least = std::max(found.least, Bytes(found.permanent.count() / count));
  found.ample += found.permanent;
  for (const OpId op : graph.ops())
    found.ample += graph[op].temporary + graph.output_bytes(op) * count;
  return found;
}

class Advice {
 public:
  Advice(const std::vector<Unrolled>& steps, const Cluster& cluster, const PeakOn& peak_on,
         const AdviceOptions& options)
      : cluster_(cluster), peak_on_(peak_on), options_(options) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const Capacities found = capacities_of(steps[i].graph, cluster);
      range_.least = i == 0 ? found.least : std::min(range_.least, found.least);
      range_.ample = std::max(range_.ample, found.ample);
      range_.permanent = i == 0 ? found.permanent : std::min(range_.permanent, found.permanent);
      least_work_ += kOfOperator * replay_cost(steps[i].graph);
    }
    const bool small = least_work_ <= 500 * kOfOperator, large = least_work_ > 4'000 * kOfOperator;
    of_try_ = options.budget.part(large ? 0 : 1.0 / 32);
    exactness_ = small ? 1000 : large ? 20 : 100;
    work_by_devices_ = options.budget.replays() / 2;
    limit_ = work_by_devices_;
  }

  StepAdvice take() {
    StepAdvice advice;
    advice.more_devices = devices();
    limit_ = 2 * work_by_devices_;
    advice.smallest_capacity = capacity();
    advice.cut_short =
        cut_short_ && !advice.more_devices.has_value() && !advice.smallest_capacity.has_value();
    advice.work = work_;
    return advice;
  }

 private:
  // What fits fits with its highest peak, and the rest is halved. Not monotone for a heuristic, but
  // close.
  std::optional<Bytes> capacity() {
    std::vector<Bytes> found;  // that there was a plan for, the smallest last
    Bytes low = range_.least, high = range_.ample;
    const auto take = [&](Bytes capacity) {
      const std::optional<Bytes> peak = peak_with(capacity, of_try_);
      if (!peak.has_value()) return false;
      found.push_back(high = capacity);
      if (*peak < capacity) found.push_back(high = *peak);
      return true;
    };
    if (is_over() || !take(high)) return std::nullopt;
    while (high > low && high - low >= std::max(Bytes(1), Bytes(high.count() / exactness_)) &&
           !is_over()) {
      const Bytes middle = low + Bytes((high - low).count() / 2);
      if (take(middle))
        low = std::min(low, high);
      else
        low = middle + Bytes(1);
    }
    return first_again(found, [&](Bytes capacity) { return peak_with(capacity, rest()); });
  }

  // From as many on as hold what is permanent, each time twice as many more.
  std::optional<std::size_t> devices() {
    std::size_t low = cluster_.num_devices();
    Bytes room, largest;
    for (const DeviceId device : cluster_.devices()) {
      room += cluster_[device].capacity;
      largest = std::max(largest, cluster_[device].capacity);
    }
    for (; low < kMostDevices && room + largest < range_.permanent; room += largest) ++low;
    std::vector<std::size_t> found;  // the smallest last
    for (std::size_t more = 1; found.empty(); more *= 2) {
      const std::size_t high = std::min(kMostDevices, low + more);
      if (low >= kMostDevices || is_over()) return std::nullopt;
      if (peak_on_count(high, of_try_).has_value())
        found.push_back(high);
      else
        low = high;
    }
    while (found.back() - low > 1 && !is_over()) {
      const std::size_t middle = low + (found.back() - low) / 2;
      if (peak_on_count(middle, of_try_).has_value())
        found.push_back(middle);
      else
        low = middle;
    }
    return first_again(found, [&](std::size_t count) { return peak_on_count(count, rest()); });
  }

  // From the last on, the first that there is a plan for again.
  template <class T, class Plan>
  std::optional<T> first_again(const std::vector<T>& found, const Plan& plan) {
    for (std::size_t i = found.size(); i-- > 0;) {
      if (limit_ - work_ < least_work_) break;
      if (plan(found[i]).has_value()) return found[i];
    }
    cut_short_ = true;
    return std::nullopt;
  }

  std::optional<Bytes> peak_on(const std::optional<Cluster>& cluster, Budget budget) {
    throw_if_cancelled(options_.cancel);
    work_ += work_of(budget);
    return cluster.has_value() ? peak_on_(*cluster, budget) : std::nullopt;
  }
  std::optional<Bytes> peak_with(Bytes capacity, Budget budget) {
    return peak_on(changed_cluster(cluster_, capacity, cluster_.num_devices()), budget);
  }
  std::optional<Bytes> peak_on_count(std::size_t count, Budget budget) {
    return peak_on(changed_cluster(cluster_, std::nullopt, count), budget);
  }

  std::int64_t work_of(Budget budget) const { return least_work_ + budget.replays(); }
  // There is no work left for one more try and for planning again what was found.
  bool is_over() {
    const bool over = limit_ - work_ < work_of(of_try_) + least_work_;
    cut_short_ = cut_short_ || over;
    return over;
  }
  Budget rest() const {
    return Budget::of_replays(
        static_cast<double>(std::max<std::int64_t>(limit_ - work_ - least_work_, 0)));
  }

  const Cluster& cluster_;
  const PeakOn& peak_on_;
  const AdviceOptions& options_;
  Capacities range_;
  Budget of_try_ = 0;
  std::int64_t exactness_ = 100;  // the capacity to one part in so many
  std::int64_t least_work_ = 0;   // for a plan, in simulated operators
  std::int64_t work_by_devices_ = 0, limit_ = 0, work_ = 0;
  bool cut_short_ = false;
};

}  // namespace

StepAdvice advice_on(const std::vector<Unrolled>& steps, const Cluster& cluster,
                     const PeakOn& peak_on, const AdviceOptions& options) {
  return Advice(steps, cluster, peak_on, options).take();
}

}  // namespace baechi
