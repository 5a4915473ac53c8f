// SPDX-License-Identifier: Apache-2.0
#include "baechi/base/overflow.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "baechi/base/random.h"

namespace baechi {
namespace {

// Numbers near the ends, near zero, near the roots of the largest product, and random ones.
template <class T>
std::vector<T> numbers_to_overflow() {
  using Limits = std::numeric_limits<T>;
  std::vector<T> found;
  for (const T around :
       {T{0}, Limits::min(), Limits::max(), static_cast<T>(3037000499), Limits::max() / 2})
    for (int by = -3; by <= 3; ++by)
      found.push_back(
          static_cast<T>(static_cast<std::uint64_t>(around) + static_cast<std::uint64_t>(by)));
  Random random(7);
  for (int bits = 1; bits <= 64; bits += 3) {
    const std::uint64_t drawn = random.next() >> (64 - bits);
    found.push_back(static_cast<T>(drawn));
    found.push_back(static_cast<T>(~drawn));
  }
  return found;
}

template <class T>
void check_against_builtins() {
  const auto check = [](auto ours, auto portable, T a, T b) {
    CAPTURE(a);
    CAPTURE(b);
    T expected = 7, found = 7;
    const bool overflows = ours(a, b, expected);
    REQUIRE(portable(a, b, found) == overflows);
    REQUIRE(found == (overflows ? 7 : expected));
  };
  const std::vector<T> numbers = numbers_to_overflow<T>();
  for (const T a : numbers)
    for (const T b : numbers) {
      check(add_overflows<T>, portable::add_overflows<T>, a, b);
      check(subtract_overflows<T>, portable::subtract_overflows<T>, a, b);
      check(multiply_overflows<T>, portable::multiply_overflows<T>, a, b);
    }
}

TEST_CASE("overflow: code without builtins says the same as they do") {
  check_against_builtins<std::int64_t>();
  check_against_builtins<std::size_t>();
}

}  // namespace
}  // namespace baechi
