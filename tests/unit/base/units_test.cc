// SPDX-License-Identifier: Apache-2.0
#include "baechi/base/units.h"

#include <doctest/doctest.h>

#include <limits>

#include "baechi/base/error.h"
#include "baechi/base/id.h"

namespace baechi {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

TEST_CASE("units: sums and products that overflow throw, and never wrap") {
  CHECK(Time(kMax - 1) + Time(1) == Time(kMax));
  CHECK_THROWS_AS(Time(kMax) + Time(1), InputError);
  CHECK_THROWS_AS(Bytes(-kMax) - Bytes(2), InputError);
  CHECK_THROWS_AS(Bytes(kMax) * 2, InputError);
  CHECK(gibibytes(2).count() == std::int64_t{2} << 30);
  CHECK(milliseconds(3) == Time(3'000'000));
}

TEST_CASE("units: scaling rounds up, is exact through 128 bits, and checks its result") {
  CHECK(scale_up(10, 1, 3, "time") == 4);
  CHECK(scale_up(9, 1, 3, "time") == 3);
  CHECK(scale_up(kMax, kMax, kMax, "time") == kMax);
  CHECK(scale_up(kMax - 1, 2, 4, "time") == kMax / 2);
  CHECK_THROWS_AS(scale_up(kMax, 2, 1, "time"), InputError);
}

TEST_CASE("ids: different kinds of ids and quantities do not mix") {
  static_assert(!std::is_convertible_v<OpId, DeviceId>);
  static_assert(!std::is_constructible_v<OpId, DeviceId>);
  static_assert(!std::is_convertible_v<std::uint32_t, OpId>);
  static_assert(!std::is_constructible_v<Time, Bytes>);
  IdVector<OpId, int> values{4, 5};
  CHECK(values[OpId(1)] == 5);
  CHECK(values.keys().size() == 2);
  CHECK_FALSE(values.contains(OpId(2)));
}

}  // namespace
}  // namespace baechi
