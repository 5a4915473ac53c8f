// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/search/restarts.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <variant>

#include "baechi/base/parallel.h"
#include "baechi/optimize/cut_partition.h"
#include "baechi/place/partition/partition.h"
#include "baechi/plan/fit/fit_search.h"

namespace baechi {
namespace {

struct Restarted {
  std::optional<Restarts::Found> plan = {};
  std::int64_t work = 0;  // that it took
};

// The first run tells what each of the others will take; beside a plan to beat, those so far do. Where
// there is work for two of what a run takes by a guess, a second one keeps it company.
template <class Run>  // from a seed to a Restarted
Restarts restart(const RestartOptions& options, std::int64_t work, std::int64_t guess,
                 const Run& run) {
  constexpr std::int64_t kMost = 64;  // runs
  constexpr double kBehind = 1.03;    // that a first one may be
  std::vector<Restarted> found;
  Restarts result;
  const auto run_up_to = [&](std::int64_t runs) {
    const std::size_t done = found.size();
    found.resize(std::max(done, static_cast<std::size_t>(runs)));
    parallel_for(found.size() - done, options.threads, [&](std::size_t i) {
      if (!options.must_stop()) found[done + i] = run(options.place.seed + 1 + done + i);
    });
    for (std::size_t i = done; i < found.size(); ++i) result.work += found[i].work;
  };
  const auto affordable = [&](std::int64_t spent, std::int64_t runs) {
    const std::int64_t each = std::max<std::int64_t>(spent / runs, 1);
    return std::clamp<std::int64_t>((work - spent + each / 2) / each + runs, 1, kMost);
  };
  const auto promising = [&](const Restarted& one) {
    return one.plan.has_value() && one.plan->step.has_value() && !one.plan->lacks &&
           static_cast<double>(one.plan->step->count()) <=
               kBehind * static_cast<double>(options.to_beat->count());
  };
  run_up_to(work >= 2 * guess ? 2 : 1);
  if (!options.to_beat.has_value()) {
    run_up_to(affordable(found.front().work, 1));
  } else if (std::ranges::any_of(found, promising)) {
    for (std::int64_t done = 0; done < std::ssize(found);) {
      done = std::ssize(found);
      run_up_to(std::min(affordable(result.work, done), 2 * done));
    }
  }
  for (Restarted& one : found)
    if (one.plan.has_value()) result.plans.push_back(*std::move(one.plan));
  return result;
}

std::int64_t work_over(const OpGraph& graph) {
  return static_cast<std::int64_t>(1'000 + graph.num_ops() + graph.num_edges());
}

// Grows with the square of the devices that partition() tries, as far as neighbours are on many.
std::int64_t guess_of_partition(const CostModel& costs) {
  constexpr std::size_t kFew = 8;
  const std::size_t most = costs.cluster().num_devices();
  std::size_t looks = 0;
  for (std::size_t used = 2; used <= most; used = used < kFew ? used + 1 : used * 2)
    looks += used * std::min(used, kFew);
  return work_over(costs.graph()) * static_cast<std::int64_t>(looks) / 4;
}

// Repairs those that lack memory, and drops what stays over. Where something is to beat, the shortest
// come first, if they are shorter than what fits, with as much work again as for the cuts.
void mend(const CostModel& costs, const Units& units, const RestartOptions& options,
          Restarts& found) {
  const bool limited = options.to_beat.has_value();
  std::int64_t spent = 0;
  std::optional<Time> best = options.to_beat;
  std::vector<Restarts::Found*> lacking;
  for (Restarts::Found& plan : found.plans) {
    if (plan.lacks) lacking.push_back(&plan);
    if (limited && !plan.lacks) best = std::min(*best, *plan.step);
  }
  if (limited) std::ranges::stable_sort(lacking, {}, [](const auto* plan) { return *plan->step; });
  parallel_for(lacking.size(), limited ? 1 : options.threads, [&](std::size_t i) {
    Restarts::Found& plan = *lacking[i];
    if (limited && (*plan.step >= *best || spent >= options.work)) return;
    Repaired mended = repaired(costs, units, plan.placed, options.place.order);
    if (limited) spent += mended.work;
    if (!mended.placed.has_value()) return;
    plan = {*std::move(mended.placed), {}};
  });
  std::erase_if(found.plans, &Restarts::Found::lacks);
}

}  // namespace

Repaired repaired(const CostModel& costs, const Units& units, const PlacedGraph& placed,
                  ExecutionOrder order) {
  constexpr std::int64_t kReplays = 60;
  const auto num_ops = static_cast<std::int64_t>(costs.graph().num_ops());
  FitSearch search(costs, units, {.simulated_ops = kReplays * num_ops, .order = order});
  std::optional<PlacedGraph> found = search.repair(placed);
  return {std::move(found), search.work()};
}

Restarts further_partitions(const CostModel& costs, const RestartOptions& options) {
  const std::int64_t guess = guess_of_partition(costs);
  if (options.work < guess || options.must_stop()) return {};
  return restart(options, options.work, guess, [&](std::uint64_t seed) -> Restarted {
    PlaceOptions place = options.place;
    place.seed = seed;
    place.cancel = nullptr;
    Partitioned found = partition(costs, place);
    auto* placed = std::get_if<PlacedGraph>(&found.result);
    if (placed == nullptr) return {.work = found.work};
    return {Restarts::Found{std::move(*placed), {}}, found.work};
  });
}

Restarts further_cuts(const CostModel& costs, const Units& units, const RestartOptions& options) {
  if (options.work < work_over(costs.graph()) || options.must_stop()) return {};
  const std::int64_t guess = DeviceCuts::work_of_one(costs);
  const std::int64_t of_levels = DeviceCuts::work_of_levels(costs), work = options.work - of_levels;
  if (work < guess / 2) return {};  // the first one is worth more than its share
  const DeviceCuts cuts(costs, group_labels(costs.graph()));
  const bool planned = options.place.order == ExecutionOrder::kPlanned;
  const auto of_shares = [&](std::int64_t most) {  // of work for them, in each run
    return restart(options, work, guess, [&](std::uint64_t seed) -> Restarted {
      std::optional<DeviceCut> cut = cuts.cut({.seed = seed, .work = most});
      if (!cut.has_value()) return {};
      std::optional<Time> step;
      if (planned) step = cut->schedule.makespan;
      return {Restarts::Found{std::move(cut->schedule.placed), step, cut->over > Bytes(0)},
              cut->work};
    });
  };
  // Where something is to beat, all memory shares are tried only if no run fits with the first one.
  Restarts found = of_shares(options.to_beat.has_value() ? 0 : CutOptions().work);
  if (options.to_beat.has_value() && std::ranges::all_of(found.plans, &Restarts::Found::lacks)) {
    const std::int64_t before = found.work;
    found = of_shares(CutOptions().work);
    found.work += before;
  }
  found.work += of_levels;
  mend(costs, units, options, found);
  return found;
}

}  // namespace baechi
