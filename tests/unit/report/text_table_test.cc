// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/text_table.h"

#include <doctest/doctest.h>

namespace baechi {
namespace {

TEST_CASE(
    "text table: columns line up, also with non-ASCII cells, and lines have no trailing space") {
  TextTable table({{"name"}, {"time", Align::kRight}, {"note"}});
  table.add_row({"a", "12 ms", "größer"});
  table.add_row({"größer", "1 s", ""});
  CHECK(table.text() ==
        "name     time  note\n"
        "------  -----  ------\n"
        "a       12 ms  größer\n"
        "größer    1 s\n");
}

TEST_CASE("text table: quantities keep three to four significant digits") {
  CHECK(time_text(Time(999)) == "999 ns");
  CHECK(time_text(Time(1'234)) == "1.23 us");
  CHECK(time_text(microseconds(12'345)) == "12.3 ms");
  CHECK(time_text(milliseconds(123'456)) == "123 s");
  CHECK(bytes_text(Bytes(17)) == "17 B");
  CHECK(bytes_text(mebibytes(1536)) == "1.50 GiB");
  CHECK(percent_text(0.0321) == "+3.2%");
  CHECK(percent_text(-0.5) == "-50%");
}

}  // namespace
}  // namespace baechi
