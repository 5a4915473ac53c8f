// SPDX-License-Identifier: Apache-2.0
// Cuts of a whole step of micro-batches, at several capacities. Beyond the paper.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "baechi/optimize/contraction.h"
#include "baechi/optimize/cut_partition.h"
#include "baechi/plan/fit/memory_needs.h"
#include "baechi/plan/request/budget.h"
#include "baechi/plan/search/restarts.h"
#include "baechi/plan/steps/step_methods.h"
#include "baechi/plan/steps/step_search.h"
#include "baechi/schedule/step_order.h"
#include "baechi/simulate/simulator.h"

namespace baechi {
namespace {

constexpr const char* kRow = "cut";
constexpr double kCuts = 0.9;                         // of the budget
constexpr std::uint64_t kRungs = 2, kLeastSeeds = 4;  // of memory, each with as many seeds

// A first cut that is farther behind the devices' load, or behind what is known, has no successors.
constexpr double kBehindLoad = 1.7, kBehind = 1.5;

// Capacities at which cuts are made: the powers of two and, between each two, one and a half times
// the lower one. What is cut for one of them does not depend on how much more the devices have: so
// more memory does not lead to other cuts alone.
Bytes highest_rung_below(Bytes most) {
  Bytes rung(1);
  while (rung + rung < most) rung += rung;
  const Bytes between(rung.count() + rung.count() / 2);
  return between < most ? between : rung;
}
Bytes lowest_rung_from(Bytes least) {
  Bytes rung(1);
  while (rung < least) rung += rung;
  const Bytes between(rung.count() / 4 * 3);
  return between < least ? rung : between;
}

Bytes rung_above(Bytes most) { return lowest_rung_from(most + Bytes(1)); }

// With that capacity on the largest devices, and no more on the others; if it is more than the
// largest have, so much more on all.
Cluster with_room(const Cluster& cluster, Bytes most) {
  ClusterSpec spec = cluster.spec();
  const Bytes largest = cluster.largest_capacity();
  const double more = static_cast<double>(most.count()) / static_cast<double>(largest.count());
  for (Device& device : spec.devices) {
    const Bytes given = device.capacity;
    device.capacity = std::min(given, most);
    if (most <= largest) continue;
    device.capacity =
        given == largest
            ? most
            : Bytes(static_cast<std::int64_t>(static_cast<double>(given.count()) * more));
  }
  return Cluster(std::move(spec));
}

// How long all of it takes at least: every device does as much as it is fast.
double least_load(const CostModel& costs) {
  double speed = 0;
  for (const DeviceId device : costs.cluster().devices()) {
    double time = 1;
    for (const OpId op : costs.graph().ops())
      time += static_cast<double>(costs.compute_time(op, device).value_or(Time(0)).count());
    speed += 1 / time;
  }
  return 1 / speed;
}

class StepCuts {
 public:
  explicit StepCuts(const StepProblem& problem)
      : problem_(problem),
        cluster_(problem.costs.cluster()),
        longest_(kBehindLoad * least_load(problem.costs)),
        simulator_(problem.costs) {
    if (problem.to_beat.has_value())
      longest_ = std::min(longest_, kBehind * static_cast<double>(problem.to_beat->count()));
    answer_.methods.push_back({.method = kRow,
                               .makespan = {},
                               .fallbacks = {},
                               .reason = {},
                               .devices_used = 0,
                               .peaks = {}});
  }

  StepAnswer run() && {
    const std::int64_t each = std::max<std::int64_t>(DeviceCuts::work_of_one(problem_.costs), 1);
    const auto cuts =
        static_cast<std::uint64_t>(problem_.request.budget.part(kCuts).replays() / each);
    const std::uint64_t seeds = std::max(cuts / kRungs, std::min(cuts, kLeastSeeds));
    try {
      climb_down(seeds);
      mend();
    } catch (const Cancelled&) {  // anytime: what was found before stays
      if (!answer_.placed.has_value()) throw;
    }
    MethodOutcome& row = answer_.methods.front();
    if (!row.makespan.has_value()) row.reason = "no cut that was tried fits";
    return std::move(answer_);
  }

 private:
  // From the rung above what the devices have, since cuts hold less than they count with. Where the
  // first cut of a rung holds so little that a lower one has room for it, that one comes next; if
  // it is far behind as well, memory is not what it lacks.
  void climb_down(std::uint64_t seeds) {
    const Bytes largest = cluster_.largest_capacity();
    Bytes most = rung_above(largest);
    for (std::uint64_t rung = 0; rung < kRungs && most > Bytes(1);) {
      fits_ = false;
      const Bytes room = cut_at(most, seeds);
      if (hopeless_ && (room < most || most <= largest)) return;
      if (room < most || std::exchange(hopeless_, false)) {
        most = std::min(room, highest_rung_below(most));
        continue;
      }
      if (!fits_ && most < largest) return;
      most = highest_rung_below(most);
      ++rung;
    }
  }

  // The rung with ample room for the first cut. Further ones are made if it is this one.
  Bytes cut_at(Bytes capacity, std::uint64_t seeds) {
    const Cluster cluster = with_room(cluster_, capacity);
    const CostModel costs(problem_.step.graph, cluster);
    const DeviceCuts cuts(costs, group_labels(problem_.step.graph));
    for (std::uint64_t i = 0; i < seeds; ++i) {
      throw_if_cancelled(problem_.request.place.cancel);
      std::optional<DeviceCut> cut = cuts.cut({.seed = problem_.request.place.seed + i, .work = 0});
      if (!cut.has_value()) return capacity;
      const Time step = cut->schedule.makespan;
      const Bytes highest = judge(std::move(cut->schedule.placed));
      const Bytes room = rung_above(lowest_rung_from(highest));
      if (i > 0) continue;
      if (is_far_too_large(highest)) return capacity;
      const Time best = answer_.placed.has_value() ? std::min(step, answer_.makespan) : step;
      hopeless_ = static_cast<double>(best.count()) > longest_;
      if (hopeless_ || room < capacity) return std::min(room, capacity);
    }
    return capacity;
  }

  // More than other seeds or a repair make up for.
  bool is_far_too_large(Bytes highest) const {
    return highest.count() / 3 > cluster_.largest_capacity().count() / 2;
  }

  void keep_lacking(PlacedGraph placed, Time makespan) {
    if (lacking_.has_value() && lacking_makespan_ <= makespan) return;
    lacking_makespan_ = makespan;
    lacking_ = std::move(placed);
  }

  // The shortest one that lacks memory is repaired if it is much shorter than what fits.
  void mend() {
    constexpr std::int64_t kPercent = 97;
    if (!lacking_.has_value() || static_cast<double>(lacking_makespan_.count()) > longest_) return;
    if (answer_.placed.has_value() &&
        lacking_makespan_.count() / kPercent > answer_.makespan.count() / 100)
      return;
    throw_if_cancelled(problem_.request.place.cancel);
    const CostModel& costs = problem_.costs;
    Repaired mended = repaired(costs, Units(costs), *lacking_, problem_.request.place.order);
    if (mended.placed.has_value()) judge(*std::move(mended.placed));
  }

  // The most that a device holds.
  Bytes judge(PlacedGraph placed) {
    placed.order = with_sums_behind(problem_.step, *placed.order);
    const StepSummary& summary = simulator_.run(placed);
    const Bytes highest = *std::ranges::max_element(summary.peaks);
    for (const DeviceId device : cluster_.devices())
      if (summary.peaks[device] > cluster_[device].capacity) {
        if (!is_far_too_large(highest)) keep_lacking(std::move(placed), summary.makespan);
        return highest;
      }
    fits_ = true;
    if (answer_.placed.has_value() && answer_.makespan <= summary.makespan) return highest;
    MethodOutcome& row = answer_.methods.front();
    row.makespan = summary.makespan;
    row.peaks = summary.peaks;
    row.devices_used = static_cast<std::size_t>(
        std::ranges::count_if(*placed.order, [](const auto& ops) { return !ops.empty(); }));
    answer_.method = kRow;
    answer_.makespan = summary.makespan;
    answer_.placed = std::move(placed);
    return highest;
  }

  const StepProblem& problem_;
  const Cluster& cluster_;
  double longest_;         // that a first cut may be, for others to follow
  bool hopeless_ = false;  // it was longer
  bool fits_ = false;      // a cut at this rung
  Simulator simulator_;
  std::optional<PlacedGraph> lacking_;  // the shortest of those that lack memory
  Time lacking_makespan_;
  StepAnswer answer_;
};

}  // namespace

StepAnswer cut_step(const StepProblem& problem) {
  const std::size_t devices = problem.costs.cluster().num_devices();
  if (!is_large(problem.step) || devices < 2 || devices > kMaxCutDevices ||
      problem.request.budget.none())
    return {};
  return StepCuts(problem).run();
}

}  // namespace baechi
