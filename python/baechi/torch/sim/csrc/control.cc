// SPDX-License-Identifier: Apache-2.0
// What Python calls: plain C functions, so that no Python headers or bindings are needed. A
// function that can fail returns false, and last_error() says why.
#include <ATen/core/Generator.h>

#include <cstdint>
#include <exception>
#include <string>

#include "check.h"
#include "generator.h"
#include "launch.h"
#include "memory.h"
#include "pinned.h"
#include "streams.h"

namespace {

using namespace baechi::sim;

thread_local std::string error;

template <class Body>
bool guarded(Body body) noexcept {
  try {
    body();
    return true;
  } catch (const c10::Error& caught) {
    error = caught.what_without_backtrace();
  } catch (const std::exception& caught) {
    error = caught.what();
  }
  return false;
}

}  // namespace

// The layout that sim/_library.py declares to ctypes.
struct BaechiSimSettings {
  std::int32_t devices;
  std::int32_t asynchronous;
  std::int32_t virtual_clock;
  std::int32_t poison;
  std::int32_t communication;  // 0 parallel, 1 sequential, 2 duplex
  std::int32_t checked;
  std::int64_t operator_ns;
  double operator_ns_per_byte;
  std::int64_t host_call_ns;  // or kMeasured
  std::int64_t host_send_ns;
  std::int64_t pinned_capacity;
  std::int64_t longest_delay_ns;
  std::uint64_t delay_seed;
  std::int64_t capacity[kMaxDevices];
  std::int64_t latency_ns[kMaxDevices + 1][kMaxDevices + 1];
  double ns_per_byte[kMaxDevices + 1][kMaxDevices + 1];
};

#define BAECHI_EXPORT extern "C" __attribute__((visibility("default")))

BAECHI_EXPORT const char* baechi_sim_last_error() { return error.c_str(); }

BAECHI_EXPORT void baechi_sim_configure(const BaechiSimSettings* wanted) {
  synchronize_all();
  if (settings().longest_delay_ns != wanted->longest_delay_ns ||
      settings().delay_seed != wanted->delay_seed)
    stop_threads();  // their random generators start anew
  Settings& s = settings();
  s.devices = wanted->devices;
  s.asynchronous = wanted->asynchronous != 0;
  s.virtual_clock = wanted->virtual_clock != 0;
  s.poison = wanted->poison != 0;
  s.communication = static_cast<Communication>(wanted->communication);
  set_checked(wanted->checked != 0);
  s.operator_ns = wanted->operator_ns;
  s.operator_ns_per_byte = wanted->operator_ns_per_byte;
  s.host_call_ns = wanted->host_call_ns;
  s.host_send_ns = wanted->host_send_ns;
  s.pinned_capacity = wanted->pinned_capacity;
  s.longest_delay_ns = wanted->longest_delay_ns;
  s.delay_seed = wanted->delay_seed;
  for (std::size_t i = 0; i < kMaxDevices; ++i) s.capacity[i] = wanted->capacity[i];
  for (std::size_t i = 0; i <= kMaxDevices; ++i)
    for (std::size_t j = 0; j <= kMaxDevices; ++j)
      s.links[i][j] = {wanted->latency_ns[i][j], wanted->ns_per_byte[i][j]};
}

BAECHI_EXPORT int baechi_sim_device_count() { return settings().devices; }
BAECHI_EXPORT bool baechi_sim_forked() { return forked(); }
BAECHI_EXPORT void baechi_sim_stop() { stop_threads(); }
BAECHI_EXPORT void baechi_sim_empty_cache() { empty_cache(); }

BAECHI_EXPORT void baechi_sim_memory_statistics(int device, std::int64_t* result) {
  const MemoryStatistics stats = memory_statistics(device);
  const std::int64_t values[] = {stats.allocated,    stats.peak_allocated, stats.active,
                                 stats.peak_active,  stats.reserved,       stats.allocations,
                                 stats.out_of_memory};
  for (const std::int64_t value : values) *result++ = value;
}
BAECHI_EXPORT void baechi_sim_reset_peak(int device) { reset_peak(device); }
BAECHI_EXPORT void baechi_sim_reset_counts(int device) { reset_counts(device); }

BAECHI_EXPORT void baechi_sim_pinned_statistics(std::int64_t* result) {
  const PinnedStatistics stats = pinned_statistics();
  result[0] = stats.allocated;
  result[1] = stats.peak;
}
BAECHI_EXPORT void baechi_sim_reset_pinned_peak() { reset_pinned_peak(); }

BAECHI_EXPORT void baechi_sim_seed(int device, std::uint64_t seed) {
  auto generator = default_generator(device);
  generator.set_current_seed(seed);
}

BAECHI_EXPORT bool baechi_sim_work(int device, std::int64_t duration_ns) {
  return guarded(
      [&] { submit(current_stream(device), {.name = "work", .duration_ns = duration_ns}, [] {}); });
}

BAECHI_EXPORT const char* baechi_sim_take_mismatches() {
  thread_local std::string taken;
  taken = take_mismatches();
  return taken.c_str();
}
BAECHI_EXPORT std::int64_t baechi_sim_num_checked() { return num_checked(); }

BAECHI_EXPORT std::int64_t baechi_sim_kernel_time() { return kernel_time_ns(); }
BAECHI_EXPORT std::int64_t baechi_sim_virtual_now() { return virtual_now_ns(); }
BAECHI_EXPORT std::int64_t baechi_sim_virtual_host() { return virtual_host_ns(); }
BAECHI_EXPORT void baechi_sim_reset_virtual_clock() { reset_virtual_clock(); }
