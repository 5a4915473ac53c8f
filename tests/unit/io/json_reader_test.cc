// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/json/json_reader.h"

#include <doctest/doctest.h>

#include <array>
#include <string>

#include "baechi/base/error.h"
#include "baechi/io/json/json_writer.h"
#include "unit/refusal.h"

namespace baechi {
namespace {

std::string error_of(const std::string& text) {
  return testing::refusal_of([&] {
    JsonReader json(text, "f.json");
    json.skip_value();
    json.finish();
  });
}

TEST_CASE("json: every kind of broken document has its place, path and reason") {
  struct Case {
    std::string text, error;
  };
  const std::array cases{
      Case{"", "f.json:1:1: $: the file is empty"},
      Case{" \n ", "f.json:2:2: $: the file is empty"},
      Case{"{", "f.json:1:2: $: the file ends where ',' or '}' should be: is it cut off?"},
      Case{"[1,\n 2", "f.json:2:3: $[1]: the file ends where ',' or ']' should be: is it cut off?"},
      Case{"{\"a\": [0, {\"b c\": x}]}",
           "f.json:1:19: $.a[1][\"b c\"]: expected a value, found 'x'"},
      Case{"{\"a\": 1,}", "f.json:1:9: $.a: a comma before the closing bracket"},
      Case{"[1 2]", "f.json:1:4: $[0]: expected ',' or ']', found a number"},
      Case{"[,1]", "f.json:1:2: $[0]: expected a value, found ','"},
      Case{"{\"a\" 1}", "f.json:1:6: $.a: expected ':', found a number"},
      Case{"{a: 1}", "f.json:1:2: $: expected a field name in double quotes, found 'a'"},
      Case{"[1] x", "f.json:1:5: $: more text after the end of the document"},
      Case{"[NaN]", "f.json:1:2: $[0]: NaN and infinity are not numbers in JSON"},
      Case{"[-Infinity]", "f.json:1:2: $[0]: NaN and infinity are not numbers in JSON"},
      Case{"[01]", "f.json:1:2: $[0]: malformed number"},
      Case{"[1.]", "f.json:1:2: $[0]: malformed number"},
      Case{"[1.5.2]", "f.json:1:2: $[0]: malformed number"},
      Case{"[+1]", "f.json:1:2: $[0]: expected a value, found '+'"},
      Case{"[tru]", "f.json:1:2: $[0]: expected true or false, found 't'"},
      Case{"[nul]", "f.json:1:2: $[0]: expected a value, found 'n'"},
      Case{"// x", "f.json:1:1: $: JSON has no comments"},
      Case{"['a']", "f.json:1:2: $[0]: JSON strings stand in double quotes"},
      Case{"[\"a", "f.json:1:2: $[0]: the string does not end: is the file cut off?"},
      Case{"[\"a\\", "f.json:1:2: $[0]: the string does not end: is the file cut off?"},
      Case{"[\"a\nb\"]",
           "f.json:1:4: $[0]: a control character in a string: write it as an escape"},
      Case{"[\"\\q\"]", "f.json:1:3: $[0]: unknown escape in a string"},
      Case{"[\"\\u12g4\"]", "f.json:1:3: $[0]: \\u needs four hexadecimal digits"},
      Case{"[\"\\ud800x\"]", "f.json:1:9: $[0]: half of a surrogate pair"},
      Case{"[\"\\udc00\"]", "f.json:1:9: $[0]: half of a surrogate pair"},
      Case{"[\"\xC3\x28\"]", "f.json:1:3: $[0]: not UTF-8"},
      Case{"[\"\xED\xA0\x80\"]", "f.json:1:3: $[0]: not UTF-8"},
      Case{"[\"\xC0\x80\"]", "f.json:1:3: $[0]: not UTF-8"},
      Case{"\xEF\xBB\xBF{}",
           "f.json:1:1: $: starts with a byte order mark: save it as plain UTF-8"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.text);
    CHECK(error_of(c.text) == c.error);
  }
}

TEST_CASE("json: columns count characters, not bytes") {
  CHECK(error_of("[\"äöü\" x]") == "f.json:1:8: $[0]: expected ',' or ']', found 'x'");
}

TEST_CASE("json: nesting is bounded") {
  CHECK(error_of(std::string(64, '[') + std::string(64, ']')) == "");
  CHECK(error_of(std::string(65, '[')).ends_with(": nested too deeply"));
}

TEST_CASE("json: strings of every shape are read as they were written") {
  for (const std::string& text :
       {std::string(""), std::string("plain"), std::string("a \"quoted\" \\ name\n\t\r\x01"),
        std::string("ä€😀"), std::string("zero\0inside", 11),
        std::string(100, 'x') + "\"" + std::string(9, 'y')}) {
    std::string document;
    JsonWriter writer(document);
    writer.begin_array();
    writer.value(text);
    writer.end_array();
    JsonReader json(document, "f.json");
    json.enter_array();
    REQUIRE(json.next_item());
    CHECK(json.read_string() == text);
    CHECK_FALSE(json.next_item());
    json.finish();
  }
  JsonReader json(R"("\u00e4\u20AC\ud83d\ude00\/")", "f.json");
  CHECK(json.read_string() == "ä€😀/");
}

TEST_CASE("json: integers are exact, and fractions are no integers") {
  const auto read = [](const std::string& text) {
    const std::string document = "[" + text + "]";
    JsonReader json(document, "f.json");
    json.enter_array();
    json.next_item();
    return json.read_integer();
  };
  CHECK(read("9223372036854775807") == 9223372036854775807);
  CHECK(read("-9223372036854775807") == -9223372036854775807);
  CHECK(read("123456789012345678") == 123456789012345678);
  CHECK(read("1234567890123456789 ") == 1234567890123456789);
  CHECK(read("1e3") == 1000);
  CHECK(read("1000.0") == 1000);
  CHECK(read("-0") == 0);
  for (const char* text : {"0.5", "9223372036854775808", "1e19", "1e-1", "\"1\"", "true", "01"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(read(text), InputError);
  }
}

TEST_CASE("json: fields are known, unique, and found in any order") {
  constexpr std::array<std::string_view, 2> kNames{"a", "b"};
  const auto read = [&](std::string_view text) {
    JsonReader json(text, "f.json");
    std::string order;
    json.require_fields(kNames,
                        json.read_fields(kNames,
                                         [&](std::size_t field) {
                                           order += kNames[field];
                                           json.skip_value();
                                         }),
                        1);
    return order;
  };
  CHECK(read(R"({"a": 1, "b": 2})") == "ab");
  CHECK(read(R"({"b": 2, "a": [{}]})") == "ba");
  CHECK_THROWS_WITH(read(R"({"a": 1, "a": 2})"), "f.json:1:10: $.a: the field occurs twice");
  CHECK_THROWS_WITH(read(R"({"c": 1})"),
                    "f.json:1:2: $.c: unknown field; the fields here are a, b");
  CHECK_THROWS_WITH(read(R"({"b": 1})"), "f.json:1:1: $: the field \"a\" is missing");
}

TEST_CASE("json: an error is one line of bounded length, whatever the input") {
  const std::string key(5000, 'k');
  const std::string error = error_of("{\"" + key + "\\n\": [\"" + std::string(5000, 'v') + "\x01");
  CHECK(error.size() < 700);
  CHECK(error.find('\n') == std::string::npos);
}

TEST_CASE("json: a deep path is shown by its two ends") {
  std::string text, end;
  for (int level = 0; level < 30; ++level) {
    text += "{\"k" + std::to_string(level) + "\": ";
    end += '}';
  }
  CHECK(error_of(text + "x" + end).find(" $.k0.k1.k2.k3.k4....k25.k26.k27.k28.k29: expected") !=
        std::string::npos);
}

TEST_CASE("json: the writer lays out lines, and inline containers within them") {
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  json.field("a", 1);
  json.key("b");
  json.begin_array();
  json.begin_object(JsonWriter::Layout::kInline);
  json.field("c", "x");
  json.key("d");
  json.begin_array();
  json.value(0.5);
  json.value(true);
  json.null();
  json.end_array();
  json.end_object();
  json.end_array();
  json.key("e");
  json.begin_array();
  json.end_array();
  json.end_object();
  json.finish();
  CHECK(
      text ==
      "{\n \"a\": 1,\n \"b\": [\n  {\"c\": \"x\", \"d\": [0.5, true, null]}\n ],\n \"e\": []\n}\n");
}

}  // namespace
}  // namespace baechi
