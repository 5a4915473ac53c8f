// SPDX-License-Identifier: Apache-2.0
#include "baechi/base/short_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
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
  return count_text(rounded(1));
}

std::string short_amount(std::int64_t value, std::span<const Unit> units) {
  std::size_t at = 0;
  while (at + 1 < units.size() && value >= units[at + 1].factor) ++at;
  if (at + 1 < units.size()) {  // 999.9 ms are 1.00 s
    const std::int64_t factor = units[at].factor, most = units[at + 1].factor / factor;
    if ((WideInt{value} + factor / 2) / factor >= most) ++at;
  }
  const auto& [name, factor] = units[at];
  return (factor == 1 ? count_text(value) : three_digits(value, factor)) + " " + name;
}

enum class Rounding : std::uint8_t { kNearest, kUp };

// Up, but not for what arithmetic of floating point adds.
double rounded(double value, Rounding rounding) {
  return rounding == Rounding::kUp ? std::ceil(value - 1e-9) : std::floor(value + 0.5);
}

// One digit behind the point where there is one before it.
std::string two_digits(double value, Rounding rounding) {
  constexpr double kMost = 1e15;
  const auto tenths = static_cast<std::int64_t>(rounded(std::min(value, kMost) * 10, rounding));
  if (tenths < 100) return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10);
  return count_text(static_cast<std::int64_t>(rounded(std::min(value, kMost), rounding)));
}

constexpr double kFactorsFrom = 2;  // above so many times the whole

std::string magnitude(double fraction, Rounding rounding) {
  if (fraction == 0) return "0%";
  if (fraction > kFactorsFrom) return two_digits(fraction, rounding) + "x";
  const std::string text = two_digits(fraction * 100, rounding);
  return (text == "0.0" ? "<0.1" : text) + "%";
}

double quotient(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

std::string short_text(Time time) { return short_amount(time.count(), kTimes); }
std::string short_text(Bytes bytes) { return short_amount(bytes.count(), kAmounts); }

std::string in_words(Bytes bytes) {
  return bytes < Bytes(1024) ? count_text(bytes.count()) + " bytes" : short_text(bytes);
}

std::string enough_text(Bytes bytes) {
  constexpr std::int64_t kUnit = 1024, kFew = 100;  // of fewer, rounding up would be felt
  std::int64_t amount = bytes.count();
  const char* name = " bytes";
  for (const char* larger : {" KiB", " MiB"}) {
    if (amount < kFew * kUnit) break;
    amount = (amount + kUnit - 1) / kUnit;
    name = larger;
  }
  return std::to_string(amount) + name;
}

std::string with_commas(std::string digits) {
  for (std::size_t at = digits.size(); at > 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string counted(std::size_t count, const char* what) {
  return count_text(count) + " " + what + (count == 1 ? "" : "s");
}

std::string share_text(double fraction) { return magnitude(fraction, Rounding::kNearest); }
std::string share_text(std::int64_t part, std::int64_t whole) {
  return share_text(quotient(part, whole));
}
std::string at_most_share(std::int64_t part, std::int64_t whole) {
  return magnitude(quotient(part, whole), Rounding::kUp);
}

std::string change_text(double fraction) {
  if (fraction > kFactorsFrom) return two_digits(1 + fraction, Rounding::kNearest) + "x";
  if (fraction == 0) return "0%";
  return (fraction < 0 ? "-" : "+") + two_digits(std::abs(fraction) * 100, Rounding::kNearest) +
         "%";
}

std::string at_most_above(double fraction, const std::string& what) {
  if (fraction > kFactorsFrom)
    return "at most " + two_digits(1 + fraction, Rounding::kUp) + "x " + what;
  return "at most " + magnitude(fraction, Rounding::kUp) + " above " + what;
}

std::string given_share(double fraction) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.4g%%", fraction * 100);
  return text.data();
}

}  // namespace baechi
