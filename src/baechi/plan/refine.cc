// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/refine.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "baechi/plan/local_search.h"

namespace baechi {
namespace {

// Fixed, so that the result does not depend on the number of threads.
constexpr std::size_t kStreams = 4;
constexpr std::int64_t kRounds = 12;
// A stream that lags so far behind the best one goes on from there.
constexpr double kLag = 1.01;

// Runs `task(i)` for i < count on so many threads, the caller's included.
template <class Task>
void parallel_for(std::size_t count, unsigned threads, const Task& task) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) task(i);
  };
  std::vector<std::jthread> others;
  for (unsigned t = 1; t < std::min<std::size_t>(threads, count); ++t) others.emplace_back(work);
  work();
}

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
