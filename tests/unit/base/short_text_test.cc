// SPDX-License-Identifier: Apache-2.0
#include "baechi/base/short_text.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>

namespace baechi {
namespace {

TEST_CASE("short text: three significant digits, rounded half up") {
  CHECK(short_text(Bytes(0)) == "0 B");
  CHECK(short_text(Bytes(1023)) == "1,023 B");
  CHECK(short_text(gibibytes(24)) == "24.0 GiB");
  CHECK(short_text(Bytes(5'014'312'345)) == "4.67 GiB");
  CHECK(short_text(Bytes(std::numeric_limits<std::int64_t>::max())) == "8.00 EiB");
  CHECK(short_text(Time(999)) == "999 ns");
  CHECK(short_text(Time(12'345)) == "12.3 us");
  CHECK(short_text(Time(123'456)) == "123 us");
  CHECK(short_text(Time(9'994)) == "9.99 us");
  CHECK(short_text(Time(9'995)) == "10.0 us");
  CHECK(short_text(Time(271'600'000)) == "272 ms");
  CHECK(short_text(Time(999'999'999)) == "1.00 s");
  CHECK(short_text(Time(1'234'000'000'000)) == "1,234 s");
  CHECK(short_text(Bytes(1'048'000)) == "1,023 KiB");
  CHECK(short_text(Bytes(1'048'570)) == "1.00 MiB");
}

TEST_CASE("short text: memory in words says the bytes too") {
  CHECK(in_words(Bytes(17)) == "17 bytes");
  CHECK(in_words(Bytes(1024)) == "1.00 KiB");
  CHECK(in_words(Bytes(1'610'612'736)) == "1.50 GiB");
  CHECK(enough_text(Bytes(1'321'462'314)) == "1261 MiB");  // 1260.24 of them
  CHECK(enough_text(Bytes(102'400)) == "100 KiB");
  CHECK(enough_text(Bytes(20)) == "20 bytes");
}

TEST_CASE("short text: a share has a digit behind the point while it is small") {
  CHECK(share_text(0, 10) == "0%");
  CHECK(share_text(1, 0) == "0%");
  CHECK(share_text(1, 3000) == "<0.1%");
  CHECK(share_text(5, 100) == "5.0%");
  CHECK(share_text(526, 10'000) == "5.3%");
  CHECK(share_text(994, 10'000) == "9.9%");
  CHECK(share_text(996, 10'000) == "10%");
  CHECK(share_text(895, 1000) == "90%");  // half up, never cut off
  CHECK(share_text(894, 1000) == "89%");
  CHECK(share_text(2, 1) == "200%");
  CHECK(share_text(35, 10) == "3.5x");
}

TEST_CASE("short text: a change has a sign, and is a factor from three times on") {
  CHECK(change_text(0) == "0%");
  CHECK(change_text(0.0321) == "+3.2%");
  CHECK(change_text(-0.0526) == "-5.3%");
  CHECK(change_text(-0.5) == "-50%");
  CHECK(change_text(2) == "+200%");
  CHECK(change_text(2.5) == "3.5x");
  CHECK(change_text(4064.53) == "4,066x");
}

TEST_CASE("short text: an upper bound is rounded up") {
  CHECK(at_most_share(501, 10'000) == "5.1%");
  CHECK(at_most_share(526, 10'000) == "5.3%");
  CHECK(at_most_share(5, 100) == "5.0%");
  CHECK(at_most_share(1201, 10'000) == "13%");
  CHECK(at_most_above(0, "it") == "at most 0% above it");
  CHECK(at_most_above(0.00001, "it") == "at most 0.1% above it");
  CHECK(at_most_above(0.1201, "it") == "at most 13% above it");
  CHECK(at_most_above(4064.51, "it") == "at most 4,066x it");
  CHECK(at_most_above(2.51, "it") == "at most 3.6x it");
}

TEST_CASE("short text: counts have commas, what somebody gave has its digits") {
  CHECK(count_text(999) == "999");
  CHECK(count_text(1'234'567) == "1,234,567");
  CHECK(counted(1, "operator") == "1 operator");
  CHECK(counted(12'345, "operator") == "12,345 operators");
  CHECK(given_share(0.125) == "12.5%");
}

}  // namespace
}  // namespace baechi
