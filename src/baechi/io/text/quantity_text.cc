// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/text/quantity_text.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "baechi/base/error.h"
#include "baechi/io/text/decimal.h"
#include "baechi/io/text/source_place.h"

namespace baechi {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t factor;  // in the base unit: ns, bytes
};

constexpr std::array<Unit, 7> kTimeUnits{{{"ns", 1},
                                          {"us", 1'000},
                                          {"µs", 1'000},  // micro sign
                                          {"μs", 1'000},  // Greek mu
                                          {"ms", 1'000'000},
                                          {"s", 1'000'000'000},
                                          {"min", 60'000'000'000}}};

constexpr std::int64_t kilo(int power) {
  std::int64_t value = 1;
  while (power-- > 0) value *= 1000;
  return value;
}

constexpr std::array<Unit, 12> kPrefixes{{{"", 1},
                                          {"k", kilo(1)},
                                          {"K", kilo(1)},
                                          {"M", kilo(2)},
                                          {"G", kilo(3)},
                                          {"T", kilo(4)},
                                          {"P", kilo(5)},
                                          {"Ki", std::int64_t{1} << 10},
                                          {"Mi", std::int64_t{1} << 20},
                                          {"Gi", std::int64_t{1} << 30},
                                          {"Ti", std::int64_t{1} << 40},
                                          {"Pi", std::int64_t{1} << 50}}};

std::optional<std::int64_t> find_factor(std::span<const Unit> units, std::string_view name) {
  for (const Unit& unit : units)
    if (unit.name == name) return unit.factor;
  return std::nullopt;
}

[[noreturn]] void throw_bad(const char* what, std::string_view text, const std::string& reason) {
  throw InputError(std::string(what) + " '" + printable(text, 60) + "' " + reason);
}

struct Amount {
  Decimal number;
  std::string_view unit;
};

Amount split(const char* what, std::string_view text) {
  const std::size_t length = number_length(text);
  if (length == 0) throw_bad(what, text, "does not start with a number");
  const auto number = parse_decimal(text.substr(0, length));
  if (!number.has_value()) throw_bad(what, text, "has too many digits");
  if (number->negative) throw_bad(what, text, "is negative");
  std::string_view unit = text.substr(length);
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  return {*number, unit};
}

struct UnitFactor {
  std::int64_t numerator;
  std::int64_t denominator = 1;
};

std::int64_t convert(const char* what, std::string_view text, const Amount& amount,
                     const UnitFactor& factor) {
  const auto scaled = scale(amount.number, factor.numerator, factor.denominator);
  if (!scaled.has_value()) throw_bad(what, text, "is too large");
  if (!scaled->exact && (scaled->value == 0 || factor.numerator == factor.denominator))
    throw_bad(what, text, "is not a whole number of the smallest unit");
  return scaled->value;
}

constexpr const char* kTimeHint = "needs a unit: ns, us, ms, s or min";
constexpr const char* kBytesHint = "needs a unit: B, kB, MB, GB, TB, KiB, MiB, GiB or TiB";
constexpr const char* kBandwidthHint =
    "needs a unit: MB/s, GB/s, MiB/s, GiB/s (bytes), Mbit/s or Gbit/s (bits)";

// The factor of "GB/s", "Gbit/s", "Gbps", ... in bytes per second.
std::optional<UnitFactor> bandwidth_factor(std::string_view unit) {
  struct Suffix {
    std::string_view name;
    std::int64_t bits;
  };
  constexpr std::array<Suffix, 5> kSuffixes{
      {{"bit/s", 1}, {"bps", 1}, {"b/s", 1}, {"B/s", 8}, {"Bps", 8}}};
  for (const Suffix& suffix : kSuffixes) {
    if (!unit.ends_with(suffix.name)) continue;
    const auto factor = find_factor(kPrefixes, unit.substr(0, unit.size() - suffix.name.size()));
    if (!factor.has_value()) continue;
    return suffix.bits == 8 ? UnitFactor{*factor, 1} : UnitFactor{*factor, 8};
  }
  return std::nullopt;
}

// The largest of `units` (last first) that divides the value.
std::string exact(std::int64_t value, std::span<const Unit> units, std::string_view suffix) {
  std::size_t best = 0;
  for (std::size_t i = 0; i < units.size(); ++i)
    if (value != 0 && value % units[i].factor == 0 && units[i].factor > units[best].factor)
      best = i;
  return std::to_string(value / units[best].factor) + std::string(units[best].name) +
         std::string(suffix);
}

Speed millionths(const char* what, std::string_view text) {
  const Amount amount = split(what, text);
  if (!amount.unit.empty()) throw_bad(what, text, "is not a plain number such as 0.6");
  const auto scaled = scale(amount.number, kFullSpeed.count(), 1);
  if (!scaled.has_value()) throw_bad(what, text, "is too large");
  if (!scaled->exact) throw_bad(what, text, "has more than six decimals");
  return Speed(scaled->value);
}

}  // namespace

Time parse_time(std::string_view text) {
  const Amount amount = split("time", text);
  if (amount.unit.empty() && amount.number.is_zero()) return Time(0);
  const auto factor = find_factor(kTimeUnits, amount.unit);
  if (!factor.has_value()) throw_bad("time", text, kTimeHint);
  return Time(convert("time", text, amount, {*factor}));
}

Bytes parse_bytes(std::string_view text) {
  const Amount amount = split("memory", text);
  if (amount.unit.empty() && amount.number.is_zero()) return Bytes(0);
  if (!amount.unit.ends_with('B')) throw_bad("memory", text, kBytesHint);
  const auto factor = find_factor(kPrefixes, amount.unit.substr(0, amount.unit.size() - 1));
  if (!factor.has_value()) throw_bad("memory", text, kBytesHint);
  return Bytes(convert("memory", text, amount, {*factor}));
}

Bandwidth parse_bandwidth(std::string_view text) {
  const Amount amount = split("bandwidth", text);
  const auto factor = bandwidth_factor(amount.unit);
  if (!factor.has_value()) throw_bad("bandwidth", text, kBandwidthHint);
  return Bandwidth(convert("bandwidth", text, amount, *factor));
}

Speed parse_speed(std::string_view text) { return millionths("speed", text); }
Speed parse_factor(std::string_view text) { return millionths("factor", text); }

std::string exact_text(Time time) {
  constexpr std::array<Unit, 4> kUnits{
      {{"ns", 1}, {"us", kilo(1)}, {"ms", kilo(2)}, {"s", kilo(3)}}};
  return exact(time.count(), kUnits, "");
}

std::string exact_text(Bytes bytes) { return exact(bytes.count(), kPrefixes, "B"); }
std::string exact_text(Bandwidth bandwidth) { return exact(bandwidth.count(), kPrefixes, "B/s"); }

std::string exact_text(Speed speed) {
  std::string fraction = std::to_string(speed.count() % kFullSpeed.count());
  fraction.insert(0, 6 - fraction.size(), '0');
  fraction.erase(fraction.find_last_not_of('0') + 1);
  return std::to_string(speed.count() / kFullSpeed.count()) +
         (fraction.empty() ? "" : "." + fraction);
}

}  // namespace baechi
