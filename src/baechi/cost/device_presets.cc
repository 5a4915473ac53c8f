// SPDX-License-Identifier: Apache-2.0
#include "baechi/cost/device_presets.h"

#include <algorithm>
#include <array>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/base/near_name.h"

namespace baechi {
namespace {

constexpr std::array<std::string_view, 4> kPrecisionNames = {"fp32", "tf32", "fp16", "bf16"};

constexpr std::int64_t gigaflops(std::int64_t n) { return n * 1'000'000'000; }
constexpr Bandwidth gigabytes_per_second(std::int64_t n) { return Bandwidth(n * 1'000'000'000); }

// Links. Vendor rates are per direction and raw; these are what copies of megabytes reach, about
// 75% of the raw rate, and half of that again where a copy goes down to host memory and up again
// because the device cannot write to its peer. Latencies include the framework's send and receive.
//
// Measured on the paper's machine (Paper 3.1.4, its linear model): 134 us + 0.1754 ns per byte.
constexpr LinkPreset kPaperPcie3{microseconds(134), Bandwidth(5'701'254'276)};
constexpr LinkPreset kPcie3ThroughHost{microseconds(50), gigabytes_per_second(6)};    // 15.75 raw
constexpr LinkPreset kPcie4ThroughHost{microseconds(50), gigabytes_per_second(12)};   // 31.5 raw
constexpr LinkPreset kPcie5ThroughHost{microseconds(50), gigabytes_per_second(24)};   // 63 raw
constexpr LinkPreset kTenGigabitEthernet{microseconds(150), Bandwidth(940'000'000)};  // 1.25 raw
constexpr LinkPreset kMemoryBus{microseconds(5), gigabytes_per_second(20)};

// Peak rates are dense (vendors print twice as much "with sparsity") and for 32-bit accumulation.
// Vendors write GB for GiB of device memory; where error correction and the driver take a GiB or
// more of it (T4, L4, H100, H200, MI300X), the capacity is what is left.
constexpr DevicePreset kPresets[] = {
    // NVIDIA Turing GPU Architecture whitepaper, table "GeForce RTX 2080", reference clocks: 10.0
    // TFLOPS fp32, 40.3 fp16 tensor, 448 GB/s, 8 GB, PCIe 3.0 x16, no peer access over PCIe.
    {.name = "rtx2080",
     .description = "NVIDIA GeForce RTX 2080, 8 GB (the paper's device and its measured link)",
     .peak_flops = {gigaflops(10'000), 0, gigaflops(40'300), 0},
     .memory_bandwidth = gigabytes_per_second(448),
     .capacity = gibibytes(8),
     .host_link = kPaperPcie3,
     .store_link = kPcie3},
    // NVIDIA's figures for the GeForce RTX 3060, 12 GB: 3,584 CUDA cores at 1.78 GHz, 360 GB/s, PCIe
    // 4.0 x16. Tensor rates of GeForce cards with 32-bit sums are twice fp32's, as GA102's table has
    // them.
    {.name = "rtx3060",
     .description = "NVIDIA GeForce RTX 3060, 12 GB",
     .peak_flops = {gigaflops(12'700), gigaflops(12'700), gigaflops(25'500), gigaflops(25'500)},
     .memory_bandwidth = gigabytes_per_second(360),
     .capacity = gibibytes(12),
     .host_link = kPcie4ThroughHost},
    // NVIDIA Ampere GA102 GPU Architecture whitepaper, table "GeForce RTX 3090": 35.6 TFLOPS fp32
    // and tf32, 71 fp16/bf16 tensor, 936 GB/s, 24 GB, PCIe 4.0 x16.
    {.name = "rtx3090",
     .description = "NVIDIA GeForce RTX 3090, 24 GB",
     .peak_flops = {gigaflops(35'600), gigaflops(35'600), gigaflops(71'000), gigaflops(71'000)},
     .memory_bandwidth = gigabytes_per_second(936),
     .capacity = gibibytes(24),
     .host_link = kPcie4ThroughHost},
    // NVIDIA's figures for the GeForce RTX 4070 and 4080: 5,888 and 9,728 CUDA cores at 2.48 and
    // 2.51 GHz, 504 and 716.8 GB/s, PCIe 4.0 x16.
    {.name = "rtx4070",
     .description = "NVIDIA GeForce RTX 4070, 12 GB",
     .peak_flops = {gigaflops(29'100), gigaflops(29'100), gigaflops(58'300), gigaflops(58'300)},
     .memory_bandwidth = gigabytes_per_second(504),
     .capacity = gibibytes(12),
     .host_link = kPcie4ThroughHost},
    {.name = "rtx4080",
     .description = "NVIDIA GeForce RTX 4080, 16 GB",
     .peak_flops = {gigaflops(48'700), gigaflops(48'700), gigaflops(97'500), gigaflops(97'500)},
     .memory_bandwidth = Bandwidth(716'800'000'000),
     .capacity = gibibytes(16),
     .host_link = kPcie4ThroughHost},
    // NVIDIA Ada GPU Architecture whitepaper, table "GeForce RTX 4090": 82.6 TFLOPS fp32 and tf32,
    // 165.2 fp16/bf16 tensor, 1008 GB/s, 24 GB, PCIe 4.0 x16.
    {.name = "rtx4090",
     .description = "NVIDIA GeForce RTX 4090, 24 GB",
     .peak_flops = {gigaflops(82'600), gigaflops(82'600), gigaflops(165'200), gigaflops(165'200)},
     .memory_bandwidth = gigabytes_per_second(1008),
     .capacity = gibibytes(24),
     .host_link = kPcie4ThroughHost},
    // NVIDIA RTX Blackwell GPU Architecture whitepaper: 104.8 and 56.3 TFLOPS fp32, twice that
    // fp16/bf16 tensor, 1792 and 960 GB/s, PCIe 5.0 x16.
    {.name = "rtx5080",
     .description = "NVIDIA GeForce RTX 5080, 16 GB",
     .peak_flops = {gigaflops(56'300), gigaflops(56'300), gigaflops(112'600), gigaflops(112'600)},
     .memory_bandwidth = gigabytes_per_second(960),
     .capacity = gibibytes(16),
     .host_link = kPcie5ThroughHost,
     .store_link = kPcie5},
    {.name = "rtx5090",
     .description = "NVIDIA GeForce RTX 5090, 32 GB",
     .peak_flops = {gigaflops(104'800), gigaflops(104'800), gigaflops(209'500), gigaflops(209'500)},
     .memory_bandwidth = gigabytes_per_second(1792),
     .capacity = gibibytes(32),
     .host_link = kPcie5ThroughHost,
     .store_link = kPcie5},
    // NVIDIA V100 Tensor Core GPU data sheet, SXM2: 15.7 TFLOPS fp32, 125 fp16 tensor, 900 GB/s,
    // NVLink 300 GB/s (150 per direction).
    {.name = "v100",
     .description = "NVIDIA V100 SXM2, 16 GB",
     .peak_flops = {gigaflops(15'700), 0, gigaflops(125'000), 0},
     .memory_bandwidth = gigabytes_per_second(900),
     .capacity = gibibytes(16),
     .host_link = kPcie3ThroughHost,
     .peer_link = LinkPreset{microseconds(15), gigabytes_per_second(112)},
     .store_link = kPcie3},
    // NVIDIA A100 Tensor Core GPU data sheet, SXM4: 19.5 TFLOPS fp32, 156 tf32, 312 fp16/bf16, 1555
    // GB/s (40 GB) or 2039 GB/s (80 GB), NVLink 600 GB/s (300 per direction), PCIe 4.0.
    {.name = "a100",
     .description = "NVIDIA A100 SXM4, 40 GB",
     .peak_flops = {gigaflops(19'500), gigaflops(156'000), gigaflops(312'000), gigaflops(312'000)},
     .memory_bandwidth = gigabytes_per_second(1555),
     .capacity = gibibytes(40),
     .host_link = kPcie4ThroughHost,
     .peer_link = LinkPreset{microseconds(15), gigabytes_per_second(225)}},
    {.name = "a100-80gb",
     .description = "NVIDIA A100 SXM4, 80 GB",
     .peak_flops = {gigaflops(19'500), gigaflops(156'000), gigaflops(312'000), gigaflops(312'000)},
     .memory_bandwidth = gigabytes_per_second(2039),
     .capacity = gibibytes(80),
     .host_link = kPcie4ThroughHost,
     .peer_link = LinkPreset{microseconds(15), gigabytes_per_second(225)}},
    // NVIDIA H100 Tensor Core GPU data sheet, SXM5 (tensor figures there are with sparsity): 67
    // TFLOPS fp32, 494 tf32, 989 fp16/bf16, 3.35 TB/s, NVLink 900 GB/s (450 per direction),
    // PCIe 5.0.
    {.name = "h100",
     .description = "NVIDIA H100 SXM5, 80 GB",
     .peak_flops = {gigaflops(67'000), gigaflops(494'000), gigaflops(989'000), gigaflops(989'000)},
     .memory_bandwidth = gigabytes_per_second(3350),
     .capacity = gibibytes(79),
     .host_link = kPcie5ThroughHost,
     .peer_link = LinkPreset{microseconds(15), gigabytes_per_second(337)},
     .store_link = kPcie5},
    // NVIDIA H200 Tensor Core GPU data sheet, SXM: the H100's arithmetic, 4.8 TB/s, 141 GB.
    {.name = "h200",
     .description = "NVIDIA H200 SXM, 141 GB",
     .peak_flops = {gigaflops(67'000), gigaflops(494'000), gigaflops(989'000), gigaflops(989'000)},
     .memory_bandwidth = gigabytes_per_second(4800),
     .capacity = gibibytes(139),
     .host_link = kPcie5ThroughHost,
     .peer_link = LinkPreset{microseconds(15), gigabytes_per_second(337)},
     .store_link = kPcie5},
    // NVIDIA T4 Tensor Core GPU data sheet: 8.1 TFLOPS fp32, 65 fp16 tensor, 16 GB; Turing
    // whitepaper: 320 GB/s. PCIe 3.0 x16.
    {.name = "t4",
     .description = "NVIDIA T4, 16 GB",
     .peak_flops = {gigaflops(8'100), 0, gigaflops(65'000), 0},
     .memory_bandwidth = gigabytes_per_second(320),
     .capacity = gibibytes(15),
     .host_link = kPcie3ThroughHost,
     .store_link = kPcie3},
    // NVIDIA A10G data sheet: 35 TFLOPS fp32 and tf32, 70 fp16/bf16 tensor, 600 GB/s, 24 GB, PCIe 4.0.
    {.name = "a10g",
     .description = "NVIDIA A10G, 24 GB",
     .peak_flops = {gigaflops(35'000), gigaflops(35'000), gigaflops(70'000), gigaflops(70'000)},
     .memory_bandwidth = gigabytes_per_second(600),
     .capacity = gibibytes(22),
     .host_link = kPcie4ThroughHost},
    // NVIDIA L40S data sheet (tensor figures there are also with sparsity): 91.6 TFLOPS fp32, 183
    // tf32, 362 fp16/bf16, 864 GB/s, 48 GB, PCIe 4.0 x16.
    {.name = "l40s",
     .description = "NVIDIA L40S, 48 GB",
     .peak_flops = {gigaflops(91'600), gigaflops(183'000), gigaflops(362'000), gigaflops(362'000)},
     .memory_bandwidth = gigabytes_per_second(864),
     .capacity = gibibytes(44),
     .host_link = kPcie4ThroughHost},
    // NVIDIA L4 Tensor Core GPU data sheet (tensor figures there are with sparsity): 30.3 TFLOPS
    // fp32, 60 tf32, 121 fp16/bf16, 300 GB/s, 24 GB, PCIe 4.0 x16.
    {.name = "l4",
     .description = "NVIDIA L4, 24 GB",
     .peak_flops = {gigaflops(30'300), gigaflops(60'000), gigaflops(121'000), gigaflops(121'000)},
     .memory_bandwidth = gigabytes_per_second(300),
     .capacity = gibibytes(22),
     .host_link = kPcie4ThroughHost},
    // AMD Instinct MI300X data sheet: 163.4 TFLOPS fp32, 653.7 tf32, 1307.4 fp16/bf16, 5.3 TB/s,
    // 192 GB, Infinity Fabric 128 GB/s to each peer (64 per direction), PCIe 5.0 x16.
    {.name = "mi300x",
     .description = "AMD Instinct MI300X, 192 GB",
     .peak_flops = {gigaflops(163'400), gigaflops(653'700), gigaflops(1'307'400),
                    gigaflops(1'307'400)},
     .memory_bandwidth = gigabytes_per_second(5300),
     .capacity = gibibytes(191),
     .host_link = kPcie5ThroughHost,
     .peer_link = LinkPreset{microseconds(15), gigabytes_per_second(48)},
     .store_link = kPcie5},
    // Intel Arc B580: 20 Xe cores of 128 lanes at 2.67 GHz; 233 INT8 TOPS of its matrix units, half of
    // that in 16 bits; 456 GB/s; PCIe 4.0 x8.
    {.name = "arc-b580",
     .description = "Intel Arc B580, 12 GB",
     .peak_flops = {gigaflops(13'600), 0, gigaflops(116'500), gigaflops(116'500)},
     .memory_bandwidth = gigabytes_per_second(456),
     .capacity = gibibytes(12),
     .host_link = kPcie3ThroughHost,
     .store_link = kPcie3},
    // Apple names cores and memory rates (M4 Pro: 20, 273 GB/s; M4 Max: 40, 546 GB/s; M2 Ultra: 76,
    // 800 GB/s) and no clock; 128 lanes a core at 1.5 GHz (M2: 1.4) are assumed, no faster in 16 bits.
    // The GPU may have three quarters of the memory, which is the host's: no store is beside it.
    {.name = "m4-pro",
     .description = "Apple M4 Pro, 20 cores, 48 GB that the host shares",
     .peak_flops = {gigaflops(7'600), 0, 0, 0},
     .memory_bandwidth = gigabytes_per_second(273),
     .capacity = gibibytes(36),
     .host_link = kTenGigabitEthernet,
     .store_link = std::nullopt},
    {.name = "m4-max",
     .description = "Apple M4 Max, 40 cores, 128 GB that the host shares",
     .peak_flops = {gigaflops(15'300), 0, 0, 0},
     .memory_bandwidth = gigabytes_per_second(546),
     .capacity = gibibytes(96),
     .host_link = kTenGigabitEthernet,
     .store_link = std::nullopt},
    {.name = "m2-ultra",
     .description = "Apple M2 Ultra, 76 cores, 192 GB that the host shares",
     .peak_flops = {gigaflops(27'200), 0, 0, 0},
     .memory_bandwidth = gigabytes_per_second(800),
     .capacity = gibibytes(144),
     .host_link = kTenGigabitEthernet,
     .store_link = std::nullopt},
    // NVIDIA Jetson AGX Orin Series Technical Brief, 64 GB: 5.3 TFLOPS fp32; fp16 tensor taken as
    // half of 85 dense INT8 TOPS; 204.8 GB/s and 64 GB that the CPU shares (8 GB left to it here).
    // Boards talk over their 10 Gbit/s Ethernet.
    {.name = "jetson-orin",
     .description = "NVIDIA Jetson AGX Orin 64 GB, boards on 10 Gbit/s Ethernet",
     .peak_flops = {gigaflops(5'300), 0, gigaflops(42'500), 0},
     .memory_bandwidth = Bandwidth(204'800'000'000),
     .capacity = gibibytes(56),
     .launch = microseconds(10),
     .host_link = kTenGigabitEthernet,
     .store_link = std::nullopt},
    // Eight cores with AVX2 at 3 GHz: 2 FMA units x 8 lanes x 2 FLOPs = 32 FLOPs per cycle and core
    // (Intel 64 and IA-32 Architectures Optimization Reference Manual), no faster for 16-bit
    // floats;
    // two channels of DDR4-3200 (JEDEC JESD79-4: 25.6 GB/s each).
    {.name = "cpu",
     .description = "desktop CPU, 8 cores, 2 channels of DDR4-3200, 64 GiB",
     .peak_flops = {gigaflops(768), 0, 0, 0},
     .memory_bandwidth = Bandwidth(51'200'000'000),
     .capacity = gibibytes(64),
     .launch = microseconds(2),
     .host_link = kMemoryBus},
};

std::size_t index_of(Precision precision) { return static_cast<std::size_t>(precision); }

}  // namespace

std::string_view precision_name(Precision precision) {
  return kPrecisionNames[index_of(precision)];
}

std::optional<Precision> find_precision(std::string_view name) {
  for (std::size_t i = 0; i < kPrecisionNames.size(); ++i)
    if (kPrecisionNames[i] == name) return static_cast<Precision>(i);
  return std::nullopt;
}

Bytes element_size(Precision precision) {
  return Bytes(precision == Precision::kFp16 || precision == Precision::kBf16 ? 2 : 4);
}

std::int64_t DevicePreset::effective_flops(Precision precision) const {
  const std::int64_t peak = peak_flops[index_of(precision)];
  return (peak > 0 ? peak : peak_flops[index_of(Precision::kFp32)]) / 100 * compute_efficiency;
}

std::int64_t DevicePreset::effective_bandwidth() const {
  return memory_bandwidth.count() / 100 * memory_efficiency;
}

std::span<const DevicePreset> all_device_presets() { return kPresets; }

const DevicePreset* find_device_preset(std::string_view name) {
  const std::string wanted = in_lower_case(name);
  const auto at = std::find_if(std::begin(kPresets), std::end(kPresets),
                               [&](const DevicePreset& preset) { return preset.name == wanted; });
  return at == std::end(kPresets) ? nullptr : at;
}

std::optional<LinkPreset> store_link_of(std::string_view kind) {
  const DevicePreset* const preset = find_device_preset(kind);
  return preset == nullptr ? kPcie4 : preset->store_link;
}

const DevicePreset& device_preset(std::string_view name) {
  if (const DevicePreset* preset = find_device_preset(name)) return *preset;
  std::vector<std::string> known;
  for (const DevicePreset& preset : kPresets) known.emplace_back(preset.name);
  throw InputError("unknown device " + in_quotes(name) + did_you_mean(std::string(name), known) +
                   "; known: " + device_preset_names());
}

std::string device_preset_names() {
  std::string known;
  for (const DevicePreset& preset : kPresets)
    known += (known.empty() ? "" : ", ") + std::string(preset.name);
  return known;
}

Time roofline_time(const DevicePreset& device, const Work& work) {
  if (!work.kernel) return device.dispatch;
  constexpr std::int64_t kNanoseconds = 1'000'000'000;
  const std::int64_t compute =
      scale_up(work.flops, kNanoseconds, device.effective_flops(work.precision), Time::kName);
  const std::int64_t memory =
      scale_up(work.bytes.count(), kNanoseconds, device.effective_bandwidth(), Time::kName);
  return device.launch + Time(std::max(compute, memory));
}

}  // namespace baechi
