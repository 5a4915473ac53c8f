// SPDX-License-Identifier: Apache-2.0
// A strict pull reader of JSON (RFC 8259): the caller says what it expects, and everything else is
// an InputError "file:line:column: $.json.path: reason". It makes no tree and no copy of the text,
// so a file needs little more memory than its bytes.
//
// Stricter than most: UTF-8 is validated, one name occurs once in an object of known fields,
// unknown fields are errors, and integers are exact (1000.0 and 1e3 are the integer 1000, 0.5 is
// none).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/graph/name_arena.h"
#include "baechi/io/text/decimal.h"

namespace baechi {

// A field of an object, and what reads its value.
template <class Read>
struct JsonField {
  std::string_view name;
  Read read;
};
template <class Read>
JsonField(std::string_view, Read) -> JsonField<Read>;

class JsonReader {
 public:
  enum class Type : std::uint8_t { kObject, kArray, kString, kNumber, kBoolean, kNull };

  // `text` must outlive the reader and what it returns. `place` stands for the file in errors.
  JsonReader(std::string_view text, std::string place);

  Type peek();  // of the next value

  // An object: enter_object(), then next_key() until it says false; after each true, read the
  // value.
  void enter_object();
  bool next_key();
  std::string_view key() const { return frames_.back().key; }
  // An array: enter_array(), then next_item() until it says false; after each true, read the value.
  void enter_array();
  bool next_item();

  std::string_view read_string();  // lives as long as the reader
  bool read_bool();
  std::int64_t read_integer();
  std::int64_t read_non_negative(const char* what);  // "a size": what the error calls it
  Decimal read_decimal();
  double read_double();
  void skip_value();
  // Only white space is left.
  void finish();

  // Reads an object whose fields are `names`: calls read(index into names) for each field in the
  // order of the file. Returns the set of fields that were there, as bits.
  template <class Read>
  std::uint64_t read_fields(std::span<const std::string_view> names, const Read& read) {
    std::uint64_t seen = 0;
    std::size_t expected = 0;  // fields mostly come in the order of `names`
    enter_object();
    while (next_key()) {
      const std::size_t field = find_field(names, expected, seen);
      seen |= std::uint64_t{1} << field;
      expected = field + 1;
      read(field);
    }
    return seen;
  }
  // Reads an object of these fields, of which the first `required` must be there.
  template <class... Reads>
  std::uint64_t read_object(std::size_t required, const JsonField<Reads>&... fields) {
    const std::array<std::string_view, sizeof...(fields)> names{fields.name...};
    const std::uint64_t seen = read_fields(names, [&](std::size_t field) {
      std::size_t index = 0;
      static_cast<void>(((index++ == field && (fields.read(), true)) || ...));
    });
    require_fields(names, seen, required);
    return seen;
  }
  template <class ReadItem>
  void read_array(const ReadItem& read) {
    enter_array();
    while (next_item()) read();
  }
  // Fails at the object that just ended when one of the first `count` fields was not there.
  void require_fields(std::span<const std::string_view> names, std::uint64_t seen,
                      std::size_t count);

  // The error is at the value read last, or about to be read.
  [[noreturn]] void fail(const std::string& reason) const;
  // Where the value read last begins and what it is called, for errors that show later.
  std::size_t offset() const { return token_; }
  std::string path() const;  // "$.devices[2].name"
  [[noreturn]] void fail_at(std::size_t offset, const std::string& path,
                            const std::string& reason) const;
  // Adds the place to the InputErrors of `action`.
  template <class Action>
  auto located(const Action& action) const -> decltype(action()) {
    try {
      return action();
    } catch (const InputError& error) {
      fail(error.what());
    }
  }

 private:
  struct Frame {  // an open object or array
    std::string_view key;
    std::size_t index = 0;
    std::size_t begin = 0;
    bool is_object = false;
    bool first = true;
  };

  void skip_space();
  char next_token(const char* expected);
  void enter(char bracket, const char* expected);
  bool next_entry(char closing);
  void leave();
  std::string_view string_token();
  std::string_view unescape(const char* begin);
  char32_t read_hex4();
  void append_escape(std::string& result);
  void check_utf8();
  std::string_view number_token();
  [[noreturn]] void fail_here(const std::string& reason);
  [[noreturn]] void fail_expected(const char* expected);
  std::size_t find_field(std::span<const std::string_view> names, std::size_t expected,
                         std::uint64_t seen);

  std::string_view text_;
  std::string place_;
  const char* at_;
  const char* end_;
  std::size_t token_ = 0;
  std::vector<Frame> frames_;
  NameArena unescaped_;
};

}  // namespace baechi
