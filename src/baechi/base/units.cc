// SPDX-License-Identifier: Apache-2.0
#include "baechi/base/units.h"

#include <limits>
#include <string>

#include "baechi/base/assert.h"
#include "baechi/base/number_too_large.h"
#include "baechi/base/wide.h"

namespace baechi {

void throw_overflow(const char* quantity) {
  throw NumberTooLarge(std::string(quantity) +
                       " overflows 63 bits: the numbers given are too large");
}

std::int64_t scale_up(std::int64_t value, std::int64_t numerator, std::int64_t denominator,
                      const char* quantity) {
  BAECHI_ASSERT(value >= 0 && numerator >= 0 && denominator > 0, "scale_up of a negative value");
  std::int64_t small = 0;
  if (!multiply_overflows(value, numerator, small))  // a 64-bit division is much cheaper
    return small / denominator + (small % denominator != 0 ? 1 : 0);
  const auto product = static_cast<WideUnsigned>(value) * static_cast<WideUnsigned>(numerator);
  const auto divisor = static_cast<WideUnsigned>(denominator);
  const WideUnsigned quotient = product / divisor + (product % divisor != 0 ? 1 : 0);
  if (quotient > static_cast<WideUnsigned>(std::numeric_limits<std::int64_t>::max()))
    throw_overflow(quantity);
  return static_cast<std::int64_t>(quotient);
}

}  // namespace baechi
