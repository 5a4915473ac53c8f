// SPDX-License-Identifier: Apache-2.0
// Writes JSON text, the same on every platform: fields in the order they are given, integers exact,
// doubles by their shortest digits.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace baechi {

class JsonWriter {
 public:
  // One item per line, all on one line, or that without any white space.
  enum class Layout : std::uint8_t { kLines, kInline, kCompact };

  // Appends to `out`, which must outlive the writer.
  explicit JsonWriter(std::string& out) : out_(out) {}

  // What is inside an inline or compact container is like it.
  void begin_object(Layout layout = Layout::kLines) { begin('{', layout); }
  void end_object() { end('}'); }
  void begin_array(Layout layout = Layout::kLines) { begin('[', layout); }
  void end_array() { end(']'); }

  void key(std::string_view name);
  void begin_object(std::string_view name, Layout layout = Layout::kLines) {
    key(name);
    begin_object(layout);
  }
  void begin_array(std::string_view name, Layout layout = Layout::kLines) {
    key(name);
    begin_array(layout);
  }

  void value(std::string_view text);
  void value(const char* text) { value(std::string_view(text)); }
  void value(bool boolean);
  void value(double number);  // BAECHI_ASSERTs that it is finite
  template <std::integral Integer>
  void value(Integer number) {
    separate();
    char digits[24];
    out_.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
  }
  void null();
  void number(std::string_view digits);  // as they stand; they must be a JSON number

  template <class Value>
  void field(std::string_view name, const Value& content) {
    key(name);
    value(content);
  }

  // An array of what `of` makes of each item.
  template <class Items, class Of = std::identity>
  void values(std::string_view name, const Items& items, const Of& of = {}) {
    begin_array(name);
    for (const auto& item : items) value(of(item));
    end_array();
  }
  // An array of objects, each with the fields that `write` writes of an item.
  template <class Items, class Write>
  void objects(std::string_view name, const Items& items, const Write& write,
               Layout layout = Layout::kInline) {
    key(name);
    objects(items, write, layout);
  }
  template <class Items, class Write>
  void objects(const Items& items, const Write& write, Layout layout = Layout::kInline) {
    begin_array();
    for (const auto& item : items) {
      begin_object(layout);
      write(item);
      end_object();
    }
    end_array();
  }

  // Ends the document with a newline.
  void finish();

 private:
  struct Container {
    Layout layout = Layout::kLines;
    bool empty = true;
  };
  void begin(char bracket, Layout layout);
  void end(char bracket);
  void separate();
  void new_line();
  void quote(std::string_view text);

  std::string& out_;
  std::vector<Container> open_;
  bool after_key_ = false;
};

// The text of a document that is one object, whose fields `write` writes.
template <class Write>
std::string json_document(Write write) {
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  write(json);
  json.end_object();
  json.finish();
  return text;
}

}  // namespace baechi
