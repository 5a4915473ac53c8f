// SPDX-License-Identifier: Apache-2.0
#include "baechi/base/parallel.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>

namespace baechi {
namespace {

void work_for(std::chrono::nanoseconds time) {
  const std::chrono::nanoseconds end = processor_time_of_thread() + time;
  while (processor_time_of_thread() < end) {
  }
}

template <class Task>
ParallelTime time_of(const Task& task) {
  const ParallelTime before = parallel_time_of_thread();
  task();
  const ParallelTime after = parallel_time_of_thread();
  return {.all = after.all - before.all, .longest = after.longest - before.longest};
}

TEST_CASE("parallel: the time of one thread is all of it") {
  const auto one = std::chrono::milliseconds(1);
  const ParallelTime time = time_of([&] {
    for (int call = 0; call < 2; ++call) parallel_for(3, 1, [&](std::size_t) { work_for(one); });
  });
  CHECK(time.longest == time.all);
  CHECK(time.all >= 6 * one);
}

TEST_CASE("parallel: of two threads the longest has at least half of the time, and not all") {
  const auto one = std::chrono::milliseconds(1);
  std::atomic<int> begun{0};
  const ParallelTime time = time_of([&] {
    parallel_for(2, 2, [&](std::size_t) {
      ++begun;
      while (begun < 2) std::this_thread::yield();
      work_for(one);
    });
  });
  CHECK(time.all >= 2 * one);
  CHECK(time.longest >= one);
  CHECK(2 * time.longest >= time.all);
  CHECK(time.longest < time.all);
}

}  // namespace
}  // namespace baechi
