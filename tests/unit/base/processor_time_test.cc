// SPDX-License-Identifier: Apache-2.0
#include "baechi/base/processor_time.h"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

namespace baechi {
namespace {

using namespace std::chrono_literals;

// Until the limit is reached; on a busy machine that may take long on the wall.
bool reached_by_working(const ProcessorTimeLimit& limit) {
  const auto give_up = std::chrono::steady_clock::now() + 60s;
  while (!limit.reached())
    if (std::chrono::steady_clock::now() > give_up) return false;
  return true;
}

TEST_CASE("processor time: a thread that sleeps uses none of its limit, one that works does") {
  const ProcessorTimeLimit limit(30ms);
  std::this_thread::sleep_for(60ms);
  CHECK_FALSE(limit.reached());
  CHECK(reached_by_working(limit));
}

TEST_CASE("processor time: a limit is that of each thread, and nothing before it counts") {
  REQUIRE(reached_by_working(ProcessorTimeLimit(30ms)));
  const ProcessorTimeLimit limit(20ms);
  CHECK_FALSE(limit.reached());
  REQUIRE(reached_by_working(limit));
  bool at_first = true, at_last = false;
  std::jthread([&] {
    at_first = limit.reached();
    at_last = reached_by_working(limit);
  }).join();
  CHECK_FALSE(at_first);
  CHECK(at_last);
}

}  // namespace
}  // namespace baechi
