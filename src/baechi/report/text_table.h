// SPDX-License-Identifier: Apache-2.0
// Aligned columns of text, and quantities as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/base/units.h"

namespace baechi {

enum class Align : std::uint8_t { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kLeft;
};

// Rows under a header and a rule, columns two spaces apart. Cells may hold UTF-8; a code point
// counts as one column.
class TextTable {
 public:
  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add_row(std::vector<std::string> cells);  // one cell per column
  std::string text() const;                      // ends with a newline

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// "12.35 ms", "980 ns": at most four significant digits, for eyes; files carry integers.
std::string time_text(Time time);
// "1.50 GiB", "17 B".
std::string bytes_text(Bytes bytes);
// "+3.2%"; digits after the point grow for small values.
std::string percent_text(double fraction);

}  // namespace baechi
