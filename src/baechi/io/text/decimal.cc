// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/text/decimal.h"

#include <limits>

namespace baechi {
namespace {

std::size_t digits_length(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size() && is_digit(text[length])) ++length;
  return length;
}

constexpr std::int32_t kMaxExponent = 9999;

std::int32_t parse_exponent(std::string_view digits) {  // saturates
  std::int32_t value = 0;
  for (const char c : digits)
    if (value <= kMaxExponent) value = value * 10 + (c - '0');
  return value;
}

}  // namespace

std::size_t number_length(std::string_view text) {
  std::size_t at = 0;
  if (text.starts_with('-')) ++at;
  const std::size_t whole = digits_length(text.substr(at));
  if (whole == 0 || (whole > 1 && text[at] == '0')) return 0;
  at += whole;
  if (text.substr(at).starts_with('.')) {
    const std::size_t fraction = digits_length(text.substr(at + 1));
    if (fraction == 0) return 0;
    at += 1 + fraction;
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    std::size_t digits = at + 1;
    if (digits < text.size() && (text[digits] == '+' || text[digits] == '-')) ++digits;
    const std::size_t exponent = digits_length(text.substr(digits));
    if (exponent == 0) return 0;
    at = digits + exponent;
  }
  return at;
}

std::optional<Decimal> parse_decimal(std::string_view text) {
  Decimal decimal;
  if (text.starts_with('-')) {
    decimal.negative = true;
    text.remove_prefix(1);
  }
  constexpr WideUnsigned kFull = ~WideUnsigned{0} / 10 - 1;
  std::int32_t zeros = 0;  // read but not yet in the mantissa
  bool fraction = false;
  std::size_t at = 0;
  for (; at < text.size() && (is_digit(text[at]) || text[at] == '.'); ++at) {
    if (text[at] == '.') {
      fraction = true;
      continue;
    }
    if (zeros > kMaxExponent || decimal.exponent < -kMaxExponent) return std::nullopt;
    if (fraction) --decimal.exponent;
    if (text[at] == '0') {
      if (decimal.mantissa != 0) ++zeros;
      continue;
    }
    for (; zeros > 0; --zeros) {
      if (decimal.mantissa > kFull) return std::nullopt;
      decimal.mantissa *= 10;
    }
    if (decimal.mantissa > kFull) return std::nullopt;
    decimal.mantissa = decimal.mantissa * 10 + static_cast<WideUnsigned>(text[at] - '0');
  }
  decimal.exponent += zeros;
  if (at < text.size()) {  // 'e' or 'E'
    text.remove_prefix(at + 1);
    const bool negative = text.starts_with('-');
    if (negative || text.starts_with('+')) text.remove_prefix(1);
    const std::int32_t exponent = parse_exponent(text);
    if (exponent > kMaxExponent && decimal.mantissa != 0) return std::nullopt;
    decimal.exponent += negative ? -exponent : exponent;
  }
  if (decimal.mantissa == 0) decimal = {};
  return decimal;
}

std::optional<Scaled> scale(const Decimal& decimal, std::int64_t numerator,
                            std::int64_t denominator) {
  constexpr WideUnsigned kFull = ~WideUnsigned{0};
  WideUnsigned top = decimal.mantissa;
  if (top > kFull / static_cast<WideUnsigned>(numerator)) return std::nullopt;
  top *= static_cast<WideUnsigned>(numerator);
  auto bottom = static_cast<WideUnsigned>(denominator);
  if (top == 0) return Scaled{};
  for (std::int32_t e = decimal.exponent; e > 0; --e) {
    if (top > kFull / 10) return std::nullopt;
    top *= 10;
  }
  for (std::int32_t e = decimal.exponent; e < 0; ++e) {
    if (bottom > kFull / 20) {
      if (top / 5 < bottom) return Scaled{.value = 0, .exact = false};  // less than one half
      return std::nullopt;
    }
    bottom *= 10;
  }
  WideUnsigned quotient = top / bottom;
  const WideUnsigned rest = top % bottom;
  if (rest >= bottom - rest) ++quotient;
  if (quotient > static_cast<WideUnsigned>(std::numeric_limits<std::int64_t>::max()))
    return std::nullopt;
  return Scaled{.value = static_cast<std::int64_t>(quotient), .exact = rest == 0};
}

}  // namespace baechi
