// SPDX-License-Identifier: Apache-2.0
#include "baechi/base/wide.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "baechi/base/random.h"

#ifdef __SIZEOF_INT128__
namespace baechi {
namespace {

template <bool kSigned, class Native>
void check_equal(const TwoWords<kSigned>& words, Native native) {
  CHECK(static_cast<std::uint64_t>(words >> 64) == static_cast<std::uint64_t>(native >> 64));
  CHECK(static_cast<std::uint64_t>(words) == static_cast<std::uint64_t>(native));
}

// Words near the ends, and random ones of every length.
std::vector<std::uint64_t> words() {
  std::vector<std::uint64_t> found{0, 1, 2, 10, ~0ULL, 1ULL << 63, (1ULL << 63) - 1, 0xffffffff};
  Random random(7);
  for (int bits = 1; bits <= 64; bits += 9) found.push_back(random.next() >> (64 - bits));
  return found;
}

template <bool kSigned, class Native>
void check_all() {
  using Words = TwoWords<kSigned>;
  std::vector<std::pair<Words, Native>> values;
  for (const std::uint64_t high : words())
    for (const std::uint64_t low : words())
      values.emplace_back(Words(high) << 64 | Words(low),
                          static_cast<Native>((WideUnsigned{high} << 64) | low));
  for (const auto& [a, x] : values) {
    check_equal(~a, static_cast<Native>(~x));
    for (const int by : {0, 1, 31, 63, 64, 65, 127}) {
      check_equal(a << by, static_cast<Native>(static_cast<WideUnsigned>(x) << by));
      check_equal(a >> by, static_cast<Native>(x >> by));
    }
  }
  for (std::size_t i = 0; i < values.size(); i += 3)
    for (std::size_t j = 0; j < values.size(); j += 2) {
      const auto& [a, x] = values[i];
      const auto& [b, y] = values[j];
      const auto u = static_cast<WideUnsigned>(x), v = static_cast<WideUnsigned>(y);
      check_equal(a + b, static_cast<Native>(u + v));  // wraps around without being undefined
      check_equal(a - b, static_cast<Native>(u - v));
      check_equal(a * b, static_cast<Native>(u * v));
      CHECK((a < b) == (x < y));
      CHECK((a == b) == (x == y));
      if (y == 0 || (kSigned && v == ~WideUnsigned{0})) continue;  // the least of all over -1
      check_equal(a / b, static_cast<Native>(x / y));
      check_equal(a % b, static_cast<Native>(x % y));
    }
}

static_assert(TwoWords<true>(-7) / 2 == -3 && TwoWords<true>(-7) % 2 == -1);
static_assert(-TwoWords<true>(5) < 0 && TwoWords<false>(5) > 4);

}  // namespace

TEST_CASE("wide integers of two words are those of the compiler") {
  check_all<true, WideInt>();
  check_all<false, WideUnsigned>();
}

}  // namespace baechi
#endif
