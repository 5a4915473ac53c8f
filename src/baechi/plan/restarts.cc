// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/restarts.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <variant>

#include "baechi/base/parallel.h"
#include "baechi/optimize/cut_partition.h"
#include "baechi/place/partition/partition.h"
#include "baechi/plan/fit_search.h"

namespace baechi {
namespace {

struct Restarted {
  std::optional<PlacedGraph> placed;
  std::int64_t work = 0;  // that it took
};

// The first run tells what each of the others will take.
template <class Run>  // from a seed to a Restarted
Restarts restart(const RestartOptions& options, std::int64_t work, const Run& run) {
  constexpr std::int64_t kMost = 64;  // runs
  const std::uint64_t seed = options.place.seed + 1;
  std::vector<Restarted> found{run(seed)};
  const std::int64_t each = std::max<std::int64_t>(found.front().work, 1);
  const auto runs =
      static_cast<std::size_t>(std::clamp<std::int64_t>((work + each / 2) / each, 1, kMost));
  found.resize(runs);
  parallel_for(runs - 1, options.threads, [&](std::size_t i) {
    if (!options.must_stop()) found[i + 1] = run(seed + 1 + i);
  });
  Restarts result;
  for (Restarted& one : found) {
    result.work += one.work;
    if (one.placed.has_value()) result.plans.push_back(*std::move(one.placed));
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
  if (options.work < guess_of_partition(costs) || options.must_stop()) return {};
  return restart(options, options.work, [&](std::uint64_t seed) -> Restarted {
    PlaceOptions place = options.place;
    place.seed = seed;
    place.cancel = nullptr;
    Partitioned found = partition(costs, place);
    auto* placed = std::get_if<PlacedGraph>(&found.result);
    if (placed == nullptr) return {std::nullopt, found.work};
    return {std::move(*placed), found.work};
  });
}

Restarts further_cuts(const CostModel& costs, const Units& units, const RestartOptions& options) {
  if (options.work < work_over(costs.graph()) || options.must_stop()) return {};
  const DeviceCuts cuts(costs, group_labels(costs.graph()));
  const std::int64_t work = options.work - cuts.work_of_levels();
  // The first one is worth more than its share.
  if (work < cuts.work_of_one() / 2) return {{}, cuts.work_of_levels()};
  Restarts found = restart(options, work, [&](std::uint64_t seed) -> Restarted {
    std::optional<DeviceCut> cut = cuts.cut({.seed = seed});
    if (!cut.has_value()) return {};
    if (cut->over == Bytes(0)) return {std::move(cut->schedule.placed), cut->work};
    return {repaired(costs, units, cut->schedule.placed, options.place.order), cut->work};
  });
  found.work += cuts.work_of_levels();
  return found;
}

}  // namespace baechi
