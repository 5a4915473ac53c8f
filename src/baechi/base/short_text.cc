// SPDX-License-Identifier: Apache-2.0
#include "baechi/base/short_text.h"

#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "baechi/base/wide.h"

namespace baechi {
namespace {

struct Unit {
  const char* name;
  std::int64_t factor;  // in nanoseconds or bytes
};

constexpr std::array<Unit, 4> kTimes{
    {{"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}}};
constexpr std::array<Unit, 7> kAmounts{{{"B", 1},
                                        {"KiB", std::int64_t{1} << 10},
                                        {"MiB", std::int64_t{1} << 20},
                                        {"GiB", std::int64_t{1} << 30},
                                        {"TiB", std::int64_t{1} << 40},
                                        {"PiB", std::int64_t{1} << 50},
                                        {"EiB", std::int64_t{1} << 60}}};

// value / factor with three significant digits, rounded half up.
std::string three_digits(std::int64_t value, std::int64_t factor) {
  const auto rounded = [&](int power) {
    return static_cast<std::int64_t>((WideInt{value} * power + factor / 2) / factor);
  };
  for (const auto& [decimals, power] :
       {std::pair(std::size_t{2}, 100), std::pair(std::size_t{1}, 10)}) {
    const std::int64_t scaled = rounded(power);
    if (scaled >= 1000) continue;
    std::string fraction = std::to_string(scaled % power);
    fraction.insert(0, decimals - fraction.size(), '0');
    return std::to_string(scaled / power) + "." + fraction;
  }
  return std::to_string(rounded(1));
}

std::string short_amount(std::int64_t value, std::span<const Unit> units) {
  std::size_t at = 0;
  while (at + 1 < units.size() && value >= units[at + 1].factor) ++at;
  const auto& [name, factor] = units[at];
  return (factor == 1 ? std::to_string(value) : three_digits(value, factor)) + " " + name;
}

std::string with_commas(std::int64_t value) {
  std::string digits = std::to_string(value);
  for (std::size_t at = digits.size(); at > 3;) digits.insert(at -= 3, ",");
  return digits;
}

}  // namespace

std::string short_text(Time time) { return short_amount(time.count(), kTimes); }
std::string short_text(Bytes bytes) { return short_amount(bytes.count(), kAmounts); }

std::string in_words(Bytes bytes) {
  const std::string exact = with_commas(bytes.count()) + " bytes";
  return bytes < Bytes(1024) ? exact : short_text(bytes) + " (" + exact + ")";
}

}  // namespace baechi
