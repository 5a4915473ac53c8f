// SPDX-License-Identifier: Apache-2.0
// What the simulated devices are: how many, how large, how fast their links, and how they run.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

namespace baechi::sim {

inline constexpr int kMaxDevices = 16;
inline constexpr int kHost = kMaxDevices;  // the host's row and column in the table of links
inline constexpr std::int64_t kMeasured = -1;
inline constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

// A copy takes latency + bytes / bandwidth.
struct Link {
  std::int64_t latency_ns = 0;
  double ns_per_byte = 0;

  std::int64_t duration_ns(std::int64_t bytes) const {
    return latency_ns + static_cast<std::int64_t>(ns_per_byte * static_cast<double>(bytes));
  }
};

// How transfers queue on a device; docs/reference/semantics.md defines the three for the whole
// project.
enum class Communication : std::int32_t { kParallel, kSequential, kDuplex };

// Laid out as sim/settings.py declares it to ctypes.
struct Settings {
  std::int32_t devices = 4;
  bool asynchronous = true;    // false: every operation has finished when its call returns
  bool virtual_clock = false;  // true: durations are counted, not waited for
  bool poison = false;         // fill memory with 0xFF when it is allocated and when it is freed
  bool checked = false;        // compare what kernels return with what their meta functions say
  Communication communication = Communication::kParallel;
  // Every operator takes at least operator_ns + ns_per_byte of its inputs and outputs.
  std::int64_t operator_ns = 0;
  double operator_ns_per_byte = 0;
  // What a call and a copy cost the host that asks for them, on the virtual clock; kMeasured: the
  // processor time that the calling thread took since the one before.
  std::int64_t host_call_ns = 0;
  std::int64_t host_send_ns = 0;
  // Race mode: before a task a stream sleeps at random, up to so long; 0 switches it off.
  std::int64_t longest_delay_ns = 0;
  std::uint64_t delay_seed = 0;
  std::int64_t pinned_capacity = kUnlimited;         // of the host's memory, in bytes
  std::array<std::int64_t, kMaxDevices> capacity{};  // bytes
  std::array<std::array<Link, kMaxDevices + 1>, kMaxDevices + 1> links{};

  Settings() { capacity.fill(kUnlimited); }
};

// Read by every thread, changed only by `configure` in control.cc, which waits for all streams
// first.
Settings& settings();

}  // namespace baechi::sim
