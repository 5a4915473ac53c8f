// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/json/json_reader.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>

#include "baechi/base/assert.h"
#include "baechi/io/text/decimal.h"
#include "baechi/io/text/source_place.h"

namespace baechi {
namespace {

constexpr std::size_t kMaxDepth = 64;

// A bit in every byte of `word` that a string's fast path must look at: a quote, a backslash, a
// control character, or the start of a multi-byte character.
constexpr std::uint64_t special_bytes(std::uint64_t word) {
  constexpr std::uint64_t kOnes = 0x0101010101010101, kHighs = 0x8080808080808080;
  const auto zero_bytes = [](std::uint64_t x) { return (x - kOnes) & ~x & kHighs; };
  return zero_bytes(word ^ (kOnes * '"')) | zero_bytes(word ^ (kOnes * '\\')) |
         ((word - kOnes * 0x20) & ~word & kHighs) | (word & kHighs);
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

bool is_identifier(std::string_view key) {
  if (key.empty() || is_digit(key.front())) return false;
  for (const char c : key)
    if (!is_digit(c) && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '_') return false;
  return true;
}

}  // namespace

JsonReader::JsonReader(std::string_view text, std::string place)
    : text_(text), place_(std::move(place)), at_(text.data()), end_(text.data() + text.size()) {
  if (text.starts_with("\xEF\xBB\xBF"))
    fail("starts with a byte order mark: save it as plain UTF-8");
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF"))
    fail("is UTF-16: save it as plain UTF-8");
  if (text.starts_with("\x1F\x8B")) fail("is compressed (gzip): unpack it first");
}

std::string JsonReader::path() const {
  constexpr std::size_t kEnds = 5;  // levels shown at either end of a deep path
  std::string path = "$";
  for (std::size_t level = 0; level < frames_.size(); ++level) {
    const Frame& frame = frames_[level];
    if (frame.first) break;  // entered, but not yet at an entry
    if (level >= kEnds && level + kEnds < frames_.size()) {
      if (level == kEnds) path += "...";
      continue;
    }
    if (!frame.is_object)
      path += "[" + std::to_string(frame.index) + "]";
    else if (is_identifier(frame.key))
      path += "." + printable(frame.key, 60);
    else
      path += "[\"" + printable(frame.key, 60) + "\"]";
  }
  return path;
}

void JsonReader::fail_at(std::size_t offset, const std::string& path,
                         const std::string& reason) const {
  throw InputError(source_place(text_, offset, place_) + ": " + path, printable(reason));
}
void JsonReader::fail(const std::string& reason) const { fail_at(token_, path(), reason); }

void JsonReader::fail_here(const std::string& reason) {
  token_ = static_cast<std::size_t>(at_ - text_.data());
  fail(reason);
}

void JsonReader::skip_space() {
  while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
  token_ = static_cast<std::size_t>(at_ - text_.data());
}

// The character that the next token starts with; not yet consumed.
char JsonReader::next_token(const char* expected) {
  skip_space();
  if (at_ == end_) {
    if (frames_.empty() && token_ == text_.size() &&
        text_.find_first_not_of(" \n\r\t") == text_.npos)
      fail("the file is empty");
    fail(std::string("the file ends where ") + expected + " should be: is it cut off?");
  }
  return *at_;
}

JsonReader::Type JsonReader::peek() {
  switch (const char c = next_token("a value")) {
    case '{':
      return Type::kObject;
    case '[':
      return Type::kArray;
    case '"':
      return Type::kString;
    case 't':
    case 'f':
      return Type::kBoolean;
    case 'n':
      return Type::kNull;
    default:
      if (c == '-' || is_digit(c)) return Type::kNumber;
      fail_expected("a value");
  }
}

void JsonReader::fail_expected(const char* expected) {
  const std::string_view rest(at_, static_cast<std::size_t>(end_ - at_));
  std::string found;
  if (rest.starts_with("NaN") || rest.starts_with("Infinity") || rest.starts_with("-Infinity") ||
      rest.starts_with("nan") || rest.starts_with("inf") || rest.starts_with("-inf"))
    fail("NaN and infinity are not numbers in JSON");
  switch (rest.empty() ? '\0' : rest.front()) {
    case '{':
      found = "an object";
      break;
    case '[':
      found = "an array";
      break;
    case '"':
      found = "a string";
      break;
    case '/':
      fail("JSON has no comments");
    case '\'':
      fail("JSON strings stand in double quotes");
    default:
      if (rest.starts_with("true") || rest.starts_with("false"))
        found = "a boolean";
      else if (rest.starts_with("null"))
        found = "null";
      else if (number_length(rest) > 0)
        found = "a number";
      else
        found = "'" + printable(rest.substr(0, std::max<std::size_t>(utf8_length(rest), 1))) + "'";
  }
  fail(std::string("expected ") + expected + ", found " + found);
}

void JsonReader::enter(char bracket, const char* expected) {
  if (next_token(expected) != bracket) fail_expected(expected);
  if (frames_.size() == kMaxDepth) fail("nested too deeply");
  frames_.push_back(
      {.key = {}, .index = 0, .begin = token_, .is_object = bracket == '{', .first = true});
  ++at_;
}
void JsonReader::enter_object() { enter('{', "an object"); }
void JsonReader::enter_array() { enter('[', "an array"); }

void JsonReader::leave() {
  ++at_;
  token_ = frames_.back().begin;  // errors from now on are about the whole container
  frames_.pop_back();
}

// Steps over the comma before the next entry; false when the container ends instead.
bool JsonReader::next_entry(char closing) {
  Frame& frame = frames_.back();
  const char* const expected = closing == '}' ? "',' or '}'" : "',' or ']'";
  const char c = next_token(expected);
  if (c == closing) return leave(), false;
  if (!frame.first) {
    if (c != ',') fail_expected(expected);
    ++at_;
    if (next_token(closing == '}' ? "a field" : "a value") == closing)
      fail("a comma before the closing bracket");
  }
  return true;
}

bool JsonReader::next_item() {
  if (!next_entry(']')) return false;
  Frame& frame = frames_.back();
  frame.index += frame.first ? 0 : 1;
  frame.first = false;
  return true;
}

bool JsonReader::next_key() {
  if (!next_entry('}')) return false;
  if (*at_ != '"') fail_expected("a field name in double quotes");
  const std::string_view key = string_token();
  frames_.back().key = key;
  frames_.back().first = false;
  const std::size_t key_token = token_;
  if (next_token("':'") != ':') fail_expected("':'");
  ++at_;
  token_ = key_token;
  return true;
}

std::size_t JsonReader::find_field(std::span<const std::string_view> names, std::size_t expected,
                                   std::uint64_t seen) {
  BAECHI_ASSERT(names.size() <= 64, "fields are counted in 64 bits");
  std::size_t field = expected;
  if (expected >= names.size() || names[expected] != key()) {
    field = 0;
    while (field < names.size() && names[field] != key()) ++field;
  }
  if (field == names.size()) {
    std::string known;
    for (const std::string_view name : names)
      known += (known.empty() ? "" : ", ") + std::string(name);
    fail("unknown field; the fields here are " + known);
  }
  if ((seen >> field & 1) != 0) fail("the field occurs twice");
  return field;
}

void JsonReader::require_fields(std::span<const std::string_view> names, std::uint64_t seen,
                                std::size_t count) {
  for (std::size_t field = 0; field < count; ++field)
    if ((seen >> field & 1) == 0)
      fail("the field \"" + std::string(names[field]) + "\" is missing");
}

std::string_view JsonReader::read_string() {
  if (next_token("a string") != '"') fail_expected("a string");
  return string_token();
}

// Requires that `at_` is at the opening quote. The view is of the text itself unless the string has
// escapes.
std::string_view JsonReader::string_token() {
  const char* const begin = ++at_;
  while (true) {
    while (end_ - at_ >= 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, at_, sizeof word);
      const std::uint64_t special = special_bytes(word);
      if (special != 0) {
        // The lowest mark is exact, higher ones may be borrows.
        if constexpr (std::endian::native == std::endian::little)
          at_ += std::countr_zero(special) / 8;
        break;
      }
      at_ += 8;
    }
    if (at_ == end_) fail("the string does not end: is the file cut off?");
    const char c = *at_;
    if (c == '"') return {begin, static_cast<std::size_t>(at_++ - begin)};
    if (c == '\\') return unescape(begin);
    check_utf8();
  }
}

// Steps over one character that needs no escape.
void JsonReader::check_utf8() {
  const auto byte = static_cast<unsigned char>(*at_);
  if (byte < 0x20) fail_here("a control character in a string: write it as an escape");
  const std::size_t length = utf8_length({at_, static_cast<std::size_t>(end_ - at_)});
  if (length == 0) fail_here("not UTF-8");
  at_ += length;
}

// The rest of a string whose first escape is at `at_`.
std::string_view JsonReader::unescape(const char* begin) {
  std::string result(begin, at_);
  while (true) {
    if (at_ == end_) fail("the string does not end: is the file cut off?");
    if (*at_ == '"') {
      ++at_;
      return unescaped_.store(result);
    }
    if (*at_ == '\\') {
      append_escape(result);
      continue;
    }
    const char* const from = at_;
    check_utf8();
    result.append(from, at_);
  }
}

void JsonReader::append_escape(std::string& result) {
  if (end_ - at_ < 2) fail("the string does not end: is the file cut off?");
  constexpr std::string_view kEscapes = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
  if (const std::size_t i = kEscapes.find(at_[1]); i != kEscapes.npos) {
    result += kMeanings[i];
    at_ += 2;
    return;
  }
  if (at_[1] != 'u') fail_here("unknown escape in a string");
  char32_t c = read_hex4();
  if (c >= 0xD800 && c < 0xDC00) {
    if (end_ - at_ < 2 || at_[0] != '\\' || at_[1] != 'u') fail_here("half of a surrogate pair");
    const char32_t low = read_hex4();
    if (low < 0xDC00 || low >= 0xE000) fail_here("half of a surrogate pair");
    c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
  } else if (c >= 0xDC00 && c < 0xE000) {
    fail_here("half of a surrogate pair");
  }
  append_utf8(result, c);
}

// Steps over "\uXXXX".
char32_t JsonReader::read_hex4() {
  std::uint32_t value = 0;
  if (end_ - at_ < 6) fail_here("\\u needs four hexadecimal digits");
  const auto [stop, error] = std::from_chars(at_ + 2, at_ + 6, value, 16);
  if (error != std::errc() || stop != at_ + 6) fail_here("\\u needs four hexadecimal digits");
  at_ += 6;
  return value;
}

bool JsonReader::read_bool() {
  next_token("true or false");
  for (const std::string_view word : {"true", "false"}) {
    if (!std::string_view(at_, static_cast<std::size_t>(end_ - at_)).starts_with(word)) continue;
    at_ += word.size();
    return word == "true";
  }
  fail_expected("true or false");
}

std::string_view JsonReader::number_token() {
  next_token("a number");
  const std::string_view rest(at_, static_cast<std::size_t>(end_ - at_));
  const std::size_t length = number_length(rest);
  if (length == 0) {
    if (is_digit(*at_) || (rest.size() > 1 && *at_ == '-' && is_digit(at_[1])))
      fail("malformed number");
    fail_expected("a number");
  }
  const char after = length < rest.size() ? rest[length] : ' ';
  if (is_digit(after) || after == '.' || after == 'e' || after == 'E' || after == '_')
    fail("malformed number");
  at_ += length;
  return rest.substr(0, length);
}

std::int64_t JsonReader::read_integer() {
  // Fast path: up to 18 digits, then anything but more number.
  next_token("a number");
  const char* digit = at_;
  std::int64_t value = 0;
  while (digit != end_ && is_digit(*digit) && digit - at_ < 18)
    value = value * 10 + (*digit++ - '0');
  if (digit != at_ && digit != end_ && (*at_ != '0' || digit - at_ == 1) &&
      (*digit == ',' || *digit == ']' || *digit == '}')) {
    at_ = digit;
    return value;
  }
  const Decimal decimal = read_decimal();
  const auto whole = scale(decimal, 1, 1);
  if (!whole.has_value()) fail("the number exceeds 63 bits");
  if (!whole->exact) fail("expected a whole number, found a fraction");
  return decimal.negative ? -whole->value : whole->value;
}

std::int64_t JsonReader::read_non_negative(const char* what) {
  const std::int64_t value = read_integer();
  if (value < 0) fail(std::string(what) + " cannot be negative");
  return value;
}

Decimal JsonReader::read_decimal() {
  const auto decimal = parse_decimal(number_token());
  if (!decimal.has_value()) fail("the number has too many digits or too large an exponent");
  return *decimal;
}

double JsonReader::read_double() {
  const std::string_view token = number_token();
  double value = 0;
  const auto [stop, error] = std::from_chars(token.data(), token.data() + token.size(), value);
  if (error != std::errc() || stop != token.data() + token.size() || !std::isfinite(value))
    fail("the number is too large or too small for a double");
  return value;
}

void JsonReader::skip_value() {
  const std::size_t depth = frames_.size();
  do {
    if (frames_.size() > depth) {
      const bool more = frames_.back().is_object ? next_key() : next_item();
      if (!more) continue;
    }
    switch (peek()) {
      case Type::kObject:
        enter_object();
        break;
      case Type::kArray:
        enter_array();
        break;
      case Type::kString:
        read_string();
        break;
      case Type::kNumber:
        number_token();
        break;
      case Type::kBoolean:
        read_bool();
        break;
      case Type::kNull:
        if (std::string_view(at_, static_cast<std::size_t>(end_ - at_)).substr(0, 4) != "null")
          fail_expected("a value");
        at_ += 4;
    }
  } while (frames_.size() > depth);
}

void JsonReader::finish() {
  skip_space();
  if (at_ != end_) fail("more text after the end of the document");
}

}  // namespace baechi
