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
  std::int64_t work;  // that it took
};

// The first run, which must fit into the work by a guess, tells what each of the others will take.
template <class Run>  // from a seed to a Restarted
std::vector<PlacedGraph> restart(const RestartOptions& options, std::int64_t guess,
                                 const Run& run) {
  constexpr std::int64_t kMost = 32;  // runs
  if (options.work < guess || options.must_stop()) return {};
  const std::uint64_t seed = options.place.seed + 1;
  Restarted first = run(seed);
  const auto runs = static_cast<std::size_t>(
      std::clamp<std::int64_t>(options.work / std::max<std::int64_t>(first.work, 1), 1, kMost));
  std::vector<std::optional<PlacedGraph>> found(runs);
  found.front() = std::move(first.placed);
  parallel_for(runs - 1, options.threads, [&](std::size_t i) {
    if (!options.must_stop()) found[i + 1] = run(seed + 1 + i).placed;
  });
  std::vector<PlacedGraph> result;
  for (std::optional<PlacedGraph>& placed : found)
    if (placed.has_value()) result.push_back(*std::move(placed));
  return result;
}

std::int64_t work_over(const OpGraph& graph) {
  return static_cast<std::int64_t>(1'000 + graph.num_ops() + graph.num_edges());
}

}  // namespace

std::optional<PlacedGraph> repaired(const CostModel& costs, const Units& units,
                                    const PlacedGraph& placed, ExecutionOrder order) {
  constexpr std::int64_t kReplays = 60;
  const auto num_ops = static_cast<std::int64_t>(costs.graph().num_ops());
  FitSearch search(costs, units, {.simulated_ops = kReplays * num_ops, .order = order});
  return search.repair(placed);
}

std::vector<PlacedGraph> further_partitions(const CostModel& costs, const RestartOptions& options) {
  constexpr std::size_t kFew = 16;  // devices; partition() tries more and more of those beyond
  const auto times = static_cast<std::int64_t>(std::max(costs.cluster().num_devices(), kFew));
  const std::int64_t guess = 18 * work_over(costs.graph()) * times / std::int64_t{kFew};
  return restart(options, guess, [&](std::uint64_t seed) -> Restarted {
    PlaceOptions place = options.place;
    place.seed = seed;
    place.cancel = nullptr;
    Partitioned found = partition(costs, place);
    auto* placed = std::get_if<PlacedGraph>(&found.result);
    if (placed == nullptr) return {std::nullopt, found.work};
    return {std::move(*placed), found.work};
  });
}

std::vector<PlacedGraph> further_cuts(const CostModel& costs, const Units& units,
                                      const RestartOptions& options) {
  const OpGraph& graph = costs.graph();
  // Beside what grows with the graph, every device adds to the search on the coarsest one.
  const std::int64_t least = 2 * work_over(graph);
  const auto coarsest = static_cast<std::int64_t>(30 * costs.cluster().num_devices() *
                                                  std::min<std::size_t>(graph.num_ops(), 200));
  const OpLabels groups = group_labels(graph);
  // The first one is worth more than its share.
  return restart(options, least + coarsest / 4, [&](std::uint64_t seed) -> Restarted {
    std::optional<DeviceCut> cut = cut_partition(costs, groups, {.seed = seed});
    const std::int64_t work = least + coarsest;
    if (!cut.has_value()) return {std::nullopt, work};
    if (cut->over == Bytes(0)) return {std::move(cut->schedule.placed), work};
    return {repaired(costs, units, cut->schedule.placed, options.place.order), work};
  });
}

}  // namespace baechi
