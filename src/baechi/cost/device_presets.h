// SPDX-License-Identifier: Apache-2.0
// Devices one can buy, as numbers: how fast they compute, read memory and talk to each other. For
// costs without a profile (Paper 4.1 measures them; this estimates them by a roofline).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"

namespace baechi {

// How the numbers of a tensor are stored and multiplied.
enum class Precision : std::uint8_t { kFp32, kTf32, kFp16, kBf16 };

std::string_view precision_name(Precision precision);  // "fp32", ...
std::optional<Precision> find_precision(std::string_view name);
Bytes element_size(Precision precision);

struct LinkPreset {
  Time latency;
  Bandwidth bandwidth;
};
// From a device to memory of its host that is pinned, over 16 lanes.
inline constexpr LinkPreset kPcie3{microseconds(10), Bandwidth(12'000'000'000)};
inline constexpr LinkPreset kPcie4{microseconds(10), Bandwidth(25'000'000'000)};
inline constexpr LinkPreset kPcie5{microseconds(10), Bandwidth(50'000'000'000)};

struct DevicePreset {
  std::string_view name;
  std::string_view description;
  // Peak FLOP/s of dense matrix arithmetic, by Precision; 0 where the device has none. A multiply
  // and an add are two FLOPs.
  std::int64_t peak_flops[4];
  Bandwidth memory_bandwidth;  // peak
  Bytes capacity;
  // Percent of the peaks that well-shaped kernels reach.
  int compute_efficiency = 60;
  int memory_efficiency = 75;
  Time launch = microseconds(4);             // of an operator that runs a kernel
  Time dispatch = microseconds(1);           // of one that does not: constants, shapes, views
  LinkPreset host_link;                      // to any other device, through the host
  std::optional<LinkPreset> peer_link = {};  // to a device of the same preset, if faster
  // To memory of the host; absent: the device's memory is the host's.
  std::optional<LinkPreset> store_link = kPcie4;

  // Falls back on fp32 where the device lacks `precision`.
  std::int64_t effective_flops(Precision precision) const;
  std::int64_t effective_bandwidth() const;
};

std::span<const DevicePreset> all_device_presets();
// In whatever case: A100 is a100. Null for another name.
const DevicePreset* find_device_preset(std::string_view name);
// Throws InputError listing the known names.
const DevicePreset& device_preset(std::string_view name);
// From devices of a kind to memory of their host: the preset's, or PCIe 4 where none is of that name.
std::optional<LinkPreset> store_link_of(std::string_view kind);

// "rtx2080, rtx3090, ...": the names of all, for errors.
std::string device_preset_names();

// What an operator does to the hardware.
struct Work {
  std::int64_t flops = 0;
  Bytes bytes = {};    // read and written
  bool kernel = true;  // false: only the framework's bookkeeping, whatever the sizes
  Precision precision = Precision::kFp32;
};

// The roofline: launch + max(flops / effective FLOP/s, bytes / effective bandwidth), each rounded
// up to a nanosecond. Integer arithmetic: the same on every platform.
Time roofline_time(const DevicePreset& device, const Work& work);

// The links between devices of presets that differ, and of each to its like.
std::vector<LinkRule> preset_links(const std::vector<const DevicePreset*>& presets);

// A cluster by name: "paper" (the four RTX 2080 of the paper's machine, kind "gpu"), or devices as
// "4xrtx3090" and "2xa100+2xt4", kind = preset name, all on one host, sequential communication.
// Nothing when `name` is of neither form (it may be a file); throws InputError when it is of that
// form but the count is 0 or over 1024.
std::optional<ClusterSpec> preset_cluster(std::string_view name);

}  // namespace baechi
