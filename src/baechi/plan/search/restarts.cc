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

// The first run tells what each of the others will take. Where there is work for two of what a
// run takes by a guess, a second one keeps it company.
template <class Run>  // from a seed to a Restarted
Restarts restart(const RestartOptions& options, std::int64_t work, std::int64_t guess,
                 const Run& run) {
  constexpr std::int64_t kMost = 64;  // runs
  constexpr double kBehind = 1.03;    // that a first one may be
  std::vector<Restarted> found;
  const auto run_up_to = [&](std::size_t runs) {
    const std::size_t done = found.size();
    found.resize(std::max(done, runs));
    parallel_for(found.size() - done, options.threads, [&](std::size_t i) {
      if (!options.must_stop()) found[done + i] = run(options.place.seed + 1 + done + i);
    });
  };
  run_up_to(work >= 2 * guess ? 2 : 1);
  const auto promising = [&](const Restarted& one) {
    return one.plan.has_value() && one.plan->step.has_value() &&
           static_cast<double>(one.plan->step->count()) <=
               kBehind * static_cast<double>(options.to_beat->count());
  };
  const bool go_on = !options.to_beat.has_value() || std::ranges::any_of(found, promising);
  const std::int64_t each = std::max<std::int64_t>(found.front().work, 1);
  const std::int64_t runs = std::clamp<std::int64_t>((work + each / 2) / each, 1, kMost);
  if (go_on) run_up_to(static_cast<std::size_t>(runs));
  Restarts result;
  for (Restarted& one : found) {
    result.work += one.work;
    if (one.plan.has_value()) result.plans.push_back(*std::move(one.plan));
  }
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

}  // namespace

std::optional<PlacedGraph> repaired(const CostModel& costs, const Units& units,
                                    const PlacedGraph& placed, ExecutionOrder order) {
  constexpr std::int64_t kReplays = 60;
  const auto num_ops = static_cast<std::int64_t>(costs.graph().num_ops());
  FitSearch search(costs, units, {.simulated_ops = kReplays * num_ops, .order = order});
  return search.repair(placed);
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
  Restarts found = restart(options, work, guess, [&](std::uint64_t seed) -> Restarted {
    std::optional<DeviceCut> cut = cuts.cut({.seed = seed});
    if (!cut.has_value()) return {};
    std::optional<Time> step;
    if (planned && cut->over == Bytes(0)) step = cut->schedule.makespan;
    PlacedGraph& placed = cut->schedule.placed;
    if (cut->over == Bytes(0)) return {Restarts::Found{std::move(placed), step}, cut->work};
    std::optional<PlacedGraph> mended = repaired(costs, units, placed, options.place.order);
    if (!mended.has_value()) return {.work = cut->work};
    return {Restarts::Found{*std::move(mended), {}}, cut->work};
  });
  found.work += of_levels;
  return found;
}

}  // namespace baechi
