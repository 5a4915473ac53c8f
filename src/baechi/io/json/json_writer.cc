// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/json/json_writer.h"

#include <cmath>

#include "baechi/base/assert.h"

namespace baechi {

void JsonWriter::new_line() {
  out_ += '\n';
  out_.append(open_.size(), ' ');
}

// Puts the comma and the white space that go before the next item.
void JsonWriter::separate() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (open_.empty()) return;
  Container& container = open_.back();
  if (!container.empty) out_ += ',';
  if (container.layout == Layout::kLines)
    new_line();
  else if (container.layout == Layout::kInline && !container.empty)
    out_ += ' ';
  container.empty = false;
}

void JsonWriter::begin(char bracket, Layout layout) {
  separate();
  out_ += bracket;
  if (!open_.empty() && open_.back().layout != Layout::kLines) layout = open_.back().layout;
  open_.push_back({.layout = layout, .empty = true});
}

void JsonWriter::end(char bracket) {
  BAECHI_ASSERT(!open_.empty() && !after_key_, "JSON container closed out of turn");
  const Container container = open_.back();
  open_.pop_back();
  if (container.layout == Layout::kLines && !container.empty) new_line();
  out_ += bracket;
}

void JsonWriter::key(std::string_view name) {
  separate();
  quote(name);
  out_ += !open_.empty() && open_.back().layout == Layout::kCompact ? ":" : ": ";
  after_key_ = true;
}

void JsonWriter::value(std::string_view text) {
  separate();
  quote(text);
}

void JsonWriter::value(bool boolean) {
  separate();
  out_ += boolean ? "true" : "false";
}

void JsonWriter::value(double number) {
  BAECHI_ASSERT(std::isfinite(number), "JSON has no infinities");
  separate();
  char digits[32];
  out_.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

void JsonWriter::null() {
  separate();
  out_ += "null";
}

void JsonWriter::number(std::string_view digits) {
  separate();
  out_ += digits;
}

void JsonWriter::finish() {
  BAECHI_ASSERT(open_.empty(), "JSON document ends inside a container");
  out_ += '\n';
}

void JsonWriter::quote(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  out_ += '"';
  std::size_t plain = 0;  // start of the run that needs no escape
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\') continue;
    out_.append(text.substr(plain, i - plain));
    plain = i + 1;
    out_ += '\\';
    switch (c) {
      case '"':
        out_ += '"';
        break;
      case '\\':
        out_ += '\\';
        break;
      case '\n':
        out_ += 'n';
        break;
      case '\r':
        out_ += 'r';
        break;
      case '\t':
        out_ += 't';
        break;
      default:
        out_ += "u00";
        out_ += kHex[static_cast<unsigned char>(c) >> 4];
        out_ += kHex[static_cast<unsigned char>(c) & 15];
    }
  }
  out_.append(text.substr(plain));
  out_ += '"';
}

}  // namespace baechi
