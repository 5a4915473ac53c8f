// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/search/refine.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "baechi/base/parallel.h"
#include "baechi/plan/search/local_search.h"
#include "baechi/simulate/execution_simulator.h"

namespace baechi {
namespace {

// Neither depends on the number of threads, so that the result does not.
constexpr std::int64_t kRounds = 12;  // at most: each makes a move at least
constexpr std::int64_t kMostStreams = 4;

// With few moves to make, one stream gets further than four.
std::size_t num_streams(std::int64_t moves) {
  constexpr std::int64_t kMovesOfOne = 120;
  return static_cast<std::size_t>(std::clamp<std::int64_t>(moves / kMovesOfOne, 1, kMostStreams));
}

// Longer histories lead over higher ridges, for more moves. On small graphs there are enough of
// them, and streams differ.
std::size_t history_of(std::size_t stream, const OpGraph& graph) {
  constexpr std::size_t kShort = 48, kLong = 200;
  return graph.num_ops() > kSmallGraph ? kShort : kLong << stream;
}

// On larger graphs the memory of a plan that lacks some takes long to tell: streams of both ways.
bool may_lack(std::size_t stream, const OpGraph& graph) {
  return graph.num_ops() <= kSmallGraph || stream % 2 == 1;
}

// A stream that lags so far behind the best one goes on from there.
constexpr double kLag = 1.01;

}  // namespace

// A move takes about as much work as half of the operators, and what is looked at for it.
std::int64_t moves_in(std::int64_t work, const OpGraph& graph) {
  return work / (static_cast<std::int64_t>(graph.num_ops()) * 5 / 8 + 8);
}

std::optional<PlacedGraph> in_order(const CostModel& costs, const PlacedGraph& start,
                                    ExecutionOrder order) {
  if (start.order.has_value() || order != ExecutionOrder::kPlanned)
    return as_executed(start, order, costs.graph(), costs.cluster().num_devices());
  const Trace trace = simulate(costs, start);
  PlacedGraph result{start.device,
                     order_of(trace.schedule, costs.graph(), costs.cluster().num_devices())};
  if (find_overflow(simulate(costs, result), costs.cluster())) return std::nullopt;
  return result;
}

Refined refine(const CostModel& costs, const Units& units, const PlacedGraph& start,
               const RefineOptions& options) {
  const std::optional<PlacedGraph> first = in_order(costs, start, options.order);
  const Time start_makespan = simulate(costs, start).schedule.makespan;
  if (!first.has_value())
    return {.placed = start, .makespan = start_makespan, .evaluations = 0, .stopped_early = false};
  const std::int64_t moves = moves_in(options.work, costs.graph());
  const std::int64_t rounds = std::clamp<std::int64_t>(moves, 1, kRounds);
  std::atomic<bool> stopped{false};
  const auto stop = [&] {
    if ((options.cancel != nullptr && options.cancel->requested()) ||
        (options.brake != nullptr && options.brake->reached()))
      stopped = true;
    return stopped.load();
  };

  std::vector<std::unique_ptr<LocalSearch>> streams(num_streams(moves));
  const auto for_all = [&](const auto& task) {
    parallel_for(streams.size(), options.threads, task);
  };
  for_all([&](std::size_t i) {
    streams[i] =
        std::make_unique<LocalSearch>(costs, units, *first,
                                      LocalSearchOptions{.seed = options.seed * kMostStreams + i,
                                                         .order = options.order,
                                                         .images = options.images,
                                                         .history = history_of(i, costs.graph()),
                                                         .may_lack = may_lack(i, costs.graph())});
  });
  const auto best = [&] {
    return std::min_element(
               streams.begin(), streams.end(),
               [](const auto& a, const auto& b) { return a->best_makespan() < b->best_makespan(); })
        ->get();
  };
  const std::int64_t share = options.work / (rounds * static_cast<std::int64_t>(streams.size()));
  std::int64_t left =
      std::min(options.end, options.work) / static_cast<std::int64_t>(streams.size());
  for (std::int64_t round = 0; round < rounds && left > 0 && !stop(); ++round) {
    for_all([&](std::size_t i) { streams[i]->run(std::min(share, left), stop); });
    left -= share;
    if (options.on_better) options.on_better(best()->best_makespan());
    const PlacedGraph leader = best()->best();
    const auto limit = static_cast<double>(best()->best_makespan().count()) * kLag;
    for (auto& stream : streams)
      if (static_cast<double>(stream->best_makespan().count()) > limit) stream->restart(leader);
  }

  Refined refined;
  refined.placed = best()->best();
  refined.makespan = best()->best_makespan();
  if (refined.makespan > start_makespan) {
    refined.placed = start;
    refined.makespan = start_makespan;
  }
  refined.stopped_early = stopped;
  for (const auto& stream : streams) refined.evaluations += stream->evaluations();
  return refined;
}

}  // namespace baechi
