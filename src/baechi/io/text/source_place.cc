// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/text/source_place.h"

#include <algorithm>
#include <cstdint>

namespace baechi {
namespace {

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// The code point of a well-formed sequence.
std::uint32_t code_point(std::string_view sequence) {
  const auto lead = static_cast<unsigned char>(sequence.front());
  if (sequence.size() == 1) return lead;
  std::uint32_t code = lead & (0xFFU >> (sequence.size() + 1));
  for (const char c : sequence.substr(1))
    code = code << 6 | (static_cast<unsigned char>(c) & 0x3FU);
  return code;
}

// Controls of the terminal (C0, DEL, C1), and what turns the direction of a line or ends it.
bool steers_the_terminal(std::uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code <= 0x9F) || code == 0x061C || code == 0x200E ||
         code == 0x200F || (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

void append_hex(std::string& text, std::uint32_t value, int digits) {
  constexpr char kHex[] = "0123456789abcdef";
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) text += kHex[value >> shift & 15];
}

}  // namespace

std::string source_place(std::string_view text, std::size_t offset, const std::string& name) {
  const std::string_view before = text.substr(0, offset);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t newline = before.rfind('\n');
  const std::string_view row =
      newline == std::string_view::npos ? before : before.substr(newline + 1);
  const auto column =
      1 + std::count_if(row.begin(), row.end(), [](char c) { return !is_continuation(c); });
  return name + ":" + std::to_string(line) + ":" + std::to_string(column);
}

// Table 3-7 of the Unicode standard: no overlong forms, no surrogates, nothing above U+10FFFF.
std::size_t utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead < 0xC2   ? 0
                             : lead < 0xE0 ? 2
                             : lead < 0xF0 ? 3
                             : lead < 0xF5 ? 4
                                           : 0;
  if (length == 0 || text.size() < length) return 0;
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i)
    if (!is_continuation(text[i])) return 0;
  return length;
}

std::string printable(std::string_view text, std::size_t max_bytes) {
  std::string result;
  while (!text.empty()) {
    if (result.size() >= max_bytes) return result + "...";
    const std::size_t length = utf8_length(text);
    if (text.front() == '\n') {
      result += "\\n";
    } else if (length <= 1 && (length == 0 || steers_the_terminal(code_point(text.substr(0, 1))))) {
      result += "\\x";
      append_hex(result, static_cast<unsigned char>(text.front()), 2);
    } else if (steers_the_terminal(code_point(text.substr(0, length)))) {
      result += "\\u";
      append_hex(result, code_point(text.substr(0, length)), 4);
    } else {
      result += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return result;
}

std::string printable_lines(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    result += printable(text.substr(0, end), std::string::npos);
    if (end < text.size()) result += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result;
}

}  // namespace baechi
