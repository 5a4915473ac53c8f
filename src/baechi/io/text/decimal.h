// SPDX-License-Identifier: Apache-2.0
// Numbers as people write them, kept exactly: 0.6 is six tenths, not the double next to it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "baechi/base/wide.h"

namespace baechi {

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

// sign * mantissa * 10^exponent, with no trailing zeros in the mantissa.
struct Decimal {
  bool negative = false;
  WideUnsigned mantissa = 0;
  std::int32_t exponent = 0;

  bool is_zero() const { return mantissa == 0; }
};

// A number in JSON's grammar at the start of `text`: how many bytes it takes, or 0 when there is
// none. Leading zeros, "+1", ".5" and "1." are none.
std::size_t number_length(std::string_view text);

// The value of a number in JSON's grammar; absent when it has more than 38 significant digits or an
// exponent beyond +-9999. Requires number_length(text) == text.size().
std::optional<Decimal> parse_decimal(std::string_view text);

struct Scaled {            // the magnitude of a decimal in units of numerator / denominator
  std::int64_t value = 0;  // rounded to the nearest, halves up
  bool exact = true;
};
// Absent when the result exceeds 63 bits or does not compute within 128.
std::optional<Scaled> scale(const Decimal& decimal, std::int64_t numerator,
                            std::int64_t denominator);

}  // namespace baechi
