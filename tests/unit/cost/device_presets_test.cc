// SPDX-License-Identifier: Apache-2.0
#include "baechi/cost/device_presets.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "baechi/base/error.h"

namespace baechi {
namespace {

TEST_CASE("device presets: names are unique, figures are plausible, lookup finds each") {
  std::set<std::string_view> names;
  for (const DevicePreset& preset : all_device_presets()) {
    CAPTURE(preset.name);
    CHECK(names.insert(preset.name).second);
    CHECK(&device_preset(preset.name) == &preset);
    CHECK(preset.peak_flops[0] >= 500'000'000'000);
    CHECK(preset.peak_flops[0] <= 200'000'000'000'000);
    for (const std::int64_t peak : preset.peak_flops)  // tensor units are no slower than fp32's
      CHECK((peak == 0 || peak >= preset.peak_flops[0]));
    // A machine balance of 7 to 110 FLOPs per byte in fp32: outside it a unit has slipped.
    const std::int64_t balance = preset.peak_flops[0] / preset.memory_bandwidth.count();
    CHECK(balance >= 7);
    CHECK(balance <= 110);
    CHECK(preset.capacity >= gibibytes(8));
    CHECK(preset.host_link.bandwidth < preset.memory_bandwidth);
    if (preset.peer_link.has_value()) {
      CHECK(preset.peer_link->bandwidth > preset.host_link.bandwidth);
      CHECK(preset.peer_link->latency <= preset.host_link.latency);
    }
    CHECK((!preset.store_link.has_value() || preset.store_link->latency == kPcie4.latency));
  }
  CHECK(names.size() >= 20);
  CHECK_THROWS_AS(device_preset("rtx9999"), InputError);
}

TEST_CASE("device presets: precisions have names and sizes, and fall back on fp32") {
  for (const Precision precision :
       {Precision::kFp32, Precision::kTf32, Precision::kFp16, Precision::kBf16})
    CHECK(find_precision(precision_name(precision)) == precision);
  CHECK_FALSE(find_precision("fp64").has_value());
  CHECK(element_size(Precision::kTf32) == Bytes(4));
  CHECK(element_size(Precision::kBf16) == Bytes(2));
  const DevicePreset& t4 = device_preset("t4");
  CHECK(t4.effective_flops(Precision::kBf16) == t4.effective_flops(Precision::kFp32));
  CHECK(t4.effective_flops(Precision::kFp16) > 7 * t4.effective_flops(Precision::kFp32));
}

TEST_CASE("roofline: launch plus the slower of arithmetic and memory, rounded up") {
  const DevicePreset& gpu = device_preset("rtx2080");  // 6 TFLOP/s, 336 GB/s, 4 us
  CHECK(gpu.effective_flops(Precision::kFp32) == 6'000'000'000'000);
  CHECK(gpu.effective_bandwidth() == 336'000'000'000);
  CHECK(roofline_time(gpu, {}) == microseconds(4));
  CHECK(roofline_time(gpu, {.flops = 6'000'000'000}) == microseconds(1004));
  CHECK(roofline_time(gpu, {.flops = 6'000'000'001}) == microseconds(1004) + Time(1));
  CHECK(roofline_time(gpu, {.bytes = Bytes(336'000'000)}) == microseconds(1004));
  CHECK(roofline_time(gpu, {.flops = 6'000'000, .bytes = Bytes(336'000'000)}) ==
        microseconds(1004));
  CHECK(roofline_time(gpu, {.flops = 1, .bytes = Bytes(1), .kernel = false}) == microseconds(1));
  // 10^18 FLOPs times 10^9 does not fit 64 bits, their quotient does.
  CHECK(roofline_time(gpu, {.flops = 1'000'000'000'000'000'000}) > milliseconds(166'666'666));
}

TEST_CASE("preset clusters: the paper's machine") {
  const Cluster paper(preset_cluster("paper").value());
  CHECK(paper.num_devices() == 4);
  CHECK(paper.communication() == CommunicationMode::kSequential);
  CHECK(paper[DeviceId(3)].capacity == gibibytes(8));
  CHECK(paper[DeviceId(3)].kind == "gpu");
  // 134 us + 0.1754 ns per byte.
  CHECK(paper.link(DeviceId(0), DeviceId(1)).transfer_time(Bytes(10'000'000)) ==
        microseconds(134 + 1754));
}

TEST_CASE(
    "preset clusters: counts and mixtures, peers by their own link, others through the host") {
  const Cluster mixed(preset_cluster("2xa100+2xt4+1xa100").value());
  REQUIRE(mixed.num_devices() == 5);
  CHECK(mixed[DeviceId(0)].name == "a100:0");
  CHECK(mixed[DeviceId(2)].name == "t4:0");
  CHECK(mixed[DeviceId(4)].name == "a100:2");
  CHECK(mixed[DeviceId(4)].kind == "a100");
  const DevicePreset &a100 = device_preset("a100"), &t4 = device_preset("t4");
  CHECK(mixed.link(DeviceId(0), DeviceId(4)).bandwidth == a100.peer_link->bandwidth);
  CHECK(mixed.link(DeviceId(2), DeviceId(3)).bandwidth == t4.host_link.bandwidth);
  CHECK(mixed.link(DeviceId(0), DeviceId(2)).bandwidth == t4.host_link.bandwidth);
  CHECK(mixed.link(DeviceId(2), DeviceId(0)).bandwidth == t4.host_link.bandwidth);
}

TEST_CASE("preset clusters: what is not one is left to others, a wrong count is an error") {
  for (const char* other : {"", "4x8GiB", "cluster.json", "2xgpu:24GiB", "4xrtx3090+", "+4xt4",
                            "4x rtx3090", "xt4", "4", "4x", "-4xt4b", "papers"}) {
    CAPTURE(other);
    CHECK_FALSE(preset_cluster(other).has_value());
  }
  CHECK_THROWS_AS(preset_cluster("0xt4"), InputError);
  CHECK_THROWS_AS(preset_cluster("-1xt4"), InputError);
  CHECK_THROWS_AS(preset_cluster("1025xt4"), InputError);
  CHECK_THROWS_AS(preset_cluster("99999999999999999999xt4"), InputError);
}

}  // namespace
}  // namespace baechi
