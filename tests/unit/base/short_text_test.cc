// SPDX-License-Identifier: Apache-2.0
#include "baechi/base/short_text.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>

namespace baechi {
namespace {

TEST_CASE("short text: three significant digits, rounded half up") {
  CHECK(short_text(Bytes(0)) == "0 B");
  CHECK(short_text(Bytes(1023)) == "1023 B");
  CHECK(short_text(gibibytes(24)) == "24.0 GiB");
  CHECK(short_text(Bytes(5'014'312'345)) == "4.67 GiB");
  CHECK(short_text(Bytes(std::numeric_limits<std::int64_t>::max())) == "8.00 EiB");
  CHECK(short_text(Time(999)) == "999 ns");
  CHECK(short_text(Time(12'345)) == "12.3 us");
  CHECK(short_text(Time(123'456)) == "123 us");
  CHECK(short_text(Time(9'994)) == "9.99 us");
  CHECK(short_text(Time(9'995)) == "10.0 us");
  CHECK(short_text(Time(271'600'000)) == "272 ms");
  CHECK(short_text(Time(999'999'999)) == "1000 ms");
}

TEST_CASE("short text: memory in words says the bytes too") {
  CHECK(in_words(Bytes(17)) == "17 bytes");
  CHECK(in_words(Bytes(1024)) == "1.00 KiB (1,024 bytes)");
  CHECK(in_words(Bytes(1'610'612'736)) == "1.50 GiB (1,610,612,736 bytes)");
}

}  // namespace
}  // namespace baechi
