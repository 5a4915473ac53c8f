// SPDX-License-Identifier: Apache-2.0
// Numbers as text, in as few digits as say which number it is.
#pragma once

#include <charconv>
#include <string>
#include <string_view>
#include <system_error>

namespace baechi {

inline std::string number_text(double number) {
  char text[400];  // the longest is 1e-308's
  return {text, std::to_chars(text, text + sizeof text, number, std::chars_format::fixed).ptr};
}

// All of the text as a number; false when it is none. May be a NaN.
template <class Number>
bool read_number(std::string_view text, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end;
}

}  // namespace baechi
