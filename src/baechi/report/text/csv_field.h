// SPDX-License-Identifier: Apache-2.0
// A field of a CSV line, as RFC 4180 has it, that no spreadsheet takes for a formula.
#pragma once

#include <string>
#include <string_view>

namespace baechi {

// In quotes if it must be. A text that a spreadsheet would compute (it starts with = + - @, a tab
// or a carriage return) gets an apostrophe in front.
inline std::string csv_field(std::string_view field) {
  std::string text(field);
  if (!text.empty() && std::string_view("=+-@\t\r").find(text.front()) != std::string_view::npos)
    text.insert(text.begin(), '\'');
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

}  // namespace baechi
