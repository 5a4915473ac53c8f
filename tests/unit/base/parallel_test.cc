// SPDX-License-Identifier: Apache-2.0
#include "baechi/base/parallel.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <thread>
#include <vector>

#include "baechi/base/processor_time.h"

namespace baechi {
namespace {

using namespace std::chrono_literals;

void work_for(std::chrono::nanoseconds time) {
  const std::chrono::nanoseconds end = processor_time_of_thread() + time;
  while (processor_time_of_thread() < end) {
  }
}

// How far the calling thread's clock goes on, and how much of a processor it has.
struct Passed {
  std::chrono::nanoseconds clock, processor;
};
Passed passed_by(const auto& task) {
  const std::chrono::nanoseconds clock = time_with_own_processor(),
                                 processor = processor_time_of_thread();
  task();
  return {time_with_own_processor() - clock, processor_time_of_thread() - processor};
}

// Ends when so many threads have come.
class Meeting {
 public:
  explicit Meeting(int threads) : missing_(threads) {}
  bool attend() {
    --missing_;
    const auto give_up = std::chrono::steady_clock::now() + 60s;
    while (missing_ > 0) {
      if (std::chrono::steady_clock::now() > give_up) return false;
      std::this_thread::yield();
    }
    return true;
  }

 private:
  std::atomic<int> missing_;
};

TEST_CASE("parallel: the clock of one thread is its processor's") {
  const Passed passed = passed_by([] {
    for (int call = 0; call < 2; ++call) parallel_for(3, 1, [](std::size_t) { work_for(1ms); });
  });
  CHECK(passed.processor >= 6ms);
  CHECK(passed.clock >= passed.processor - 1ms);
  CHECK(passed.clock <= passed.processor + 1ms);
}

TEST_SUITE("threads") {
  TEST_CASE("parallel: who waits for a longer task of another thread waits by its clock") {
    Meeting both(2);
    const std::thread::id caller = std::this_thread::get_id();
    const Passed passed = passed_by([&] {
      parallel_for(2, 2, [&](std::size_t) {
        CHECK(both.attend());
        work_for(std::this_thread::get_id() == caller ? 1ms : 40ms);
      });
    });
    CHECK(passed.clock >= 40ms);
    CHECK(passed.clock - passed.processor >= 1ms);
  }

  TEST_CASE(
      "parallel: a thread that has nothing left to do takes part in what the other one runs") {
    // The inner tasks can only meet when both threads run one.
    Meeting inner(2);
    std::atomic<bool> met{true};
    parallel_for(2, 2, [&](std::size_t i) {
      if (i == 0) return;
      parallel_for(2, 2, [&](std::size_t) { met = inner.attend() && met; });
    });
    CHECK(met);
  }

  TEST_CASE("parallel: every task of nested calls runs once, whatever the threads") {
    for (const unsigned threads : {1U, 2U, 5U}) {
      CAPTURE(threads);
      const Crew crew(threads);
      std::vector<std::atomic<int>> runs(6 * 7);
      parallel_for(6, threads, [&](std::size_t i) {
        parallel_for(7, threads, [&](std::size_t j) { ++runs[i * 7 + j]; });
      });
      for (const std::atomic<int>& times : runs) CHECK(times == 1);
    }
  }

  TEST_CASE("parallel: what a nested task throws reaches the caller, and the crew works on") {
    const Crew crew(2);
    const auto nested = [](std::size_t) {
      parallel_for(4, 2, [](std::size_t i) {
        if (i == 2) throw std::runtime_error("task 2");
      });
    };
    CHECK_THROWS_WITH(parallel_for(3, 2, nested), "task 2");
    std::atomic<int> runs{0};
    parallel_for(9, 2, [&](std::size_t) { ++runs; });
    CHECK(runs == 9);
  }
}

}  // namespace
}  // namespace baechi
