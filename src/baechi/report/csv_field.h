// SPDX-License-Identifier: Apache-2.0
// A field of a CSV line, as RFC 4180 has it.
#pragma once

#include <string>
#include <string_view>

namespace baechi {

// In quotes if it must be.
inline std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

}  // namespace baechi
