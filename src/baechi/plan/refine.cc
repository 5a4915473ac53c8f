// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/refine.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "baechi/base/parallel.h"
#include "baechi/plan/local_search.h"

namespace baechi {
namespace {

// Fixed, so that the result does not depend on the number of threads.
constexpr std::size_t kStreams = 4;
constexpr std::int64_t kRounds = 12;
// A stream that lags so far behind the best one goes on from there.
constexpr double kLag = 1.01;

}  // namespace

Refined refine(const CostModel& costs, const Units& units, const PlacedGraph& start,
               const RefineOptions& options) {
  std::atomic<bool> stopped{false};
  const auto stop = [&] {
    if ((options.cancel != nullptr && options.cancel->requested()) ||
        (options.deadline.has_value() && std::chrono::steady_clock::now() >= *options.deadline))
      stopped = true;
    return stopped.load();
  };

  std::vector<std::unique_ptr<LocalSearch>> streams(kStreams);
  parallel_for(kStreams, options.threads, [&](std::size_t i) {
    streams[i] = std::make_unique<LocalSearch>(costs, units, start, options.seed * kStreams + i);
  });
  const auto best = [&] {
    return std::min_element(
               streams.begin(), streams.end(),
               [](const auto& a, const auto& b) { return a->best_makespan() < b->best_makespan(); })
        ->get();
  };
  const std::int64_t share = options.work / (kRounds * static_cast<std::int64_t>(kStreams));
  for (std::int64_t round = 0; round < kRounds && !stop(); ++round) {
    parallel_for(kStreams, options.threads, [&](std::size_t i) { streams[i]->run(share, stop); });
    const PlacedGraph leader = best()->best();
    const auto limit = static_cast<double>(best()->best_makespan().count()) * kLag;
    for (auto& stream : streams)
      if (static_cast<double>(stream->best_makespan().count()) > limit) stream->restart(leader);
  }

  Refined refined;
  refined.placed = best()->best();
  refined.makespan = best()->best_makespan();
  refined.stopped_early = stopped;
  for (const auto& stream : streams) refined.evaluations += stream->evaluations();
  return refined;
}

}  // namespace baechi
