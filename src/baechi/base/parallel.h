// SPDX-License-Identifier: Apache-2.0
// Independent tasks on several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "baechi/base/processor_time.h"

namespace baechi {

// The processor time of calls of parallel_for(): of all threads, and of each call's longest one alone,
// which is what passes where every thread has a processor.
struct ParallelTime {
  std::chrono::nanoseconds all{0}, longest{0};
};
// Of all calls that the calling thread has made so far.
inline ParallelTime& parallel_time_of_thread() {
  thread_local ParallelTime time;
  return time;
}

// Runs `task(i)` for all i < count on so many threads, the caller's included. When tasks throw, the
// exception of one of them is rethrown after all have ended.
template <class Task>
void parallel_for(std::size_t count, unsigned threads, const Task& task) {
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex mutex;  // of `failure` and `taken`
  ParallelTime taken;
  const auto work = [&] {
    const std::chrono::nanoseconds begin = processor_time_of_thread();
    try {
      for (std::size_t i = next++; i < count; i = next++) task(i);
    } catch (...) {
      next = count;
      const std::scoped_lock lock(mutex);
      failure = std::current_exception();
    }
    const std::chrono::nanoseconds spent = processor_time_of_thread() - begin;
    const std::scoped_lock lock(mutex);
    taken.all += spent;
    taken.longest = std::max(taken.longest, spent);
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t t = 1; t < std::min<std::size_t>(threads, count); ++t)
      others.emplace_back(work);
    work();
  }
  parallel_time_of_thread().all += taken.all;
  parallel_time_of_thread().longest += taken.longest;
  if (failure) std::rethrow_exception(failure);
}

}  // namespace baechi
