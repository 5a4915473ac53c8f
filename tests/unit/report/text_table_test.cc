// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/text/text_table.h"

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

TEST_CASE("text table: a cell is one line that steers no terminal") {
  TextTable table({{"name"}, {"x", Align::kRight}});
  table.add_row({"a\x1b[2J\n\xc2\x9b\xe2\x80\xae\xff", "1"});
  table.add_row({"\xc3\xa4\xf0\x9f\x98\x80", "22"});  // letters and pictures stay
  CHECK(table.text() ==
        "name                         x\n"
        "--------------------------  --\n"
        "a\\x1b[2J\\n\\u009b\\u202e\\xff   1\n"
        "\xc3\xa4\xf0\x9f\x98\x80                          22\n");
}

}  // namespace
}  // namespace baechi
