// SPDX-License-Identifier: Apache-2.0
// What asking for work costs the host; see host_time.h.
#include "host_time.h"

#include <time.h>

#include <atomic>
#include <utility>

#include "settings.h"

namespace baechi::sim {
namespace {

std::int64_t processor_time_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

struct Stopwatch {
  std::int64_t epoch = -1;
  std::int64_t since = 0;
  std::int64_t before = 0;  // until the last pause

  void pause() {
    const std::int64_t now = processor_time_ns();
    before += now - std::exchange(since, now);
  }
};
thread_local Stopwatch stopwatch;
std::atomic<std::int64_t> epoch = 0;

bool is_measured() {
  return settings().host_call_ns == kMeasured || settings().host_send_ns == kMeasured;
}

std::int64_t measured_ns() {
  if (stopwatch.epoch != epoch) stopwatch = {epoch, processor_time_ns(), 0};
  stopwatch.pause();
  return std::exchange(stopwatch.before, 0);
}

}  // namespace

std::int64_t host_cost_ns(bool copy) {
  const std::int64_t measured = is_measured() ? measured_ns() : 0;
  const std::int64_t given = copy ? settings().host_send_ns : settings().host_call_ns;
  return given == kMeasured ? measured : given;
}

void restart_host_time() { ++epoch; }

NotHostTime::NotHostTime() {
  if (is_measured()) stopwatch.pause();
}

NotHostTime::~NotHostTime() {
  if (is_measured()) stopwatch.since = processor_time_ns();
}

}  // namespace baechi::sim
