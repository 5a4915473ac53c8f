// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/profile/profile_file.h"

#include <tsl/robin_set.h>

#include <utility>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/io/json/json_reader.h"
#include "baechi/io/json/json_values.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/io/profile/onnx_runtime_profile.h"
#include "baechi/io/text/source_place.h"
#include "baechi/io/text/text_file.h"

namespace baechi {
namespace {

using Type = JsonReader::Type;
using Layout = JsonWriter::Layout;

constexpr std::string_view kProfileFormat = "baechi-profile";

class ProfileReader {
 public:
  ProfileReader(std::string_view text, const std::string& place) : json_(text, place) {}

  Profile read() {
    json_.read_object(3, JsonField{"format", [&] { read_format(json_, kProfileFormat); }},
                      JsonField{"version", [&] { read_version(json_); }},
                      JsonField{"operators", [&] { json_.read_array([&] { read_operator(); }); }},
                      JsonField{"source", [&] { profile_.source = json_.read_string(); }},
                      JsonField{"batch_size", [&] {
                                  profile_.batch_size = json_.read_integer();
                                  if (*profile_.batch_size < 1)
                                    json_.fail("a batch size is at least 1");
                                }});
    json_.finish();
    return std::move(profile_);
  }

 private:
  void read_operator();
  void read_times(OperatorProfile& op);
  void read_memory(OperatorProfile& op);
  void read_sizes(std::vector<std::optional<Bytes>>& sizes);

  JsonReader json_;
  Profile profile_;
  tsl::robin_set<std::string_view> names_;
};

void ProfileReader::read_operator() {
  OperatorProfile op;
  json_.read_object(1,
                    JsonField{"name",
                              [&] {
                                const std::string_view name = json_.read_string();
                                if (name.empty()) json_.fail("an operator has an empty name");
                                if (!names_.insert(name).second)
                                  json_.fail("operator " + in_quotes(name) + " occurs twice");
                                op.name = name;
                              }},
                    JsonField{"time", [&] { read_times(op); }},
                    JsonField{"memory", [&] { read_memory(op); }},
                    JsonField{"outputs", [&] { read_sizes(op.transferred); }},
                    JsonField{"allocated", [&] { read_sizes(op.allocated); }});
  profile_.operators.push_back(std::move(op));
}

void ProfileReader::read_times(OperatorProfile& op) {
  if (json_.peek() != Type::kObject) {
    op.times.push_back({std::string(kAnyKind), read_time(json_)});
    return;
  }
  json_.enter_object();
  while (json_.next_key()) {
    const std::string_view kind = json_.key();
    if (kind.empty()) json_.fail("a device kind without a name");
    for (const KindTime& earlier : op.times)
      if (earlier.kind == kind) json_.fail("the field occurs twice");
    op.times.push_back({std::string(kind), read_time(json_)});
  }
}

void ProfileReader::read_memory(OperatorProfile& op) {
  json_.read_object(0, JsonField{"permanent", [&] { op.permanent = read_bytes(json_); }},
                    JsonField{"temporary", [&] { op.temporary = read_bytes(json_); }});
}

// By port; null where it was not measured.
void ProfileReader::read_sizes(std::vector<std::optional<Bytes>>& sizes) {
  json_.read_array([&] {
    sizes.emplace_back();
    if (json_.peek() == Type::kNull)
      json_.skip_value();
    else
      sizes.back() = read_bytes(json_);
  });
}

void write_sizes(JsonWriter& json, std::string_view field,
                 const std::vector<std::optional<Bytes>>& sizes) {
  if (sizes.empty()) return;
  json.begin_array(field);
  for (const std::optional<Bytes>& size : sizes) {
    if (size.has_value())
      json.value(size->count());
    else
      json.null();
  }
  json.end_array();
}

void write_operator(JsonWriter& json, const OperatorProfile& op) {
  json.begin_object(Layout::kInline);
  json.field("name", op.name);
  if (!op.times.empty()) {
    json.begin_object("time");
    for (const KindTime& time : op.times) json.field(time.kind, time.time.count());
    json.end_object();
  }
  if (op.permanent.has_value() || op.temporary.has_value()) {
    json.begin_object("memory");
    if (op.permanent.has_value()) json.field("permanent", op.permanent->count());
    if (op.temporary.has_value()) json.field("temporary", op.temporary->count());
    json.end_object();
  }
  write_sizes(json, "outputs", op.transferred);
  write_sizes(json, "allocated", op.allocated);
  json.end_object();
}

}  // namespace

Profile parse_profile(std::string_view text, const std::string& place) {
  if (looks_like_onnx_runtime_profile(text)) return parse_onnx_runtime_profile(text, place);
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin != text.npos && text[begin] == '{')
    if (const DocumentKind kind = document_kind(text, place); kind.format.has_value() &&
                                                              kind.format != kProfileFormat &&
                                                              kind.format->starts_with("baechi-"))
      throw InputError(
          place, "this is a " + printable(kind.format->substr(7), 60) + ", expected a profile");
  return ProfileReader(text, place).read();
}

Profile read_profile(const std::filesystem::path& path) {
  const SourceText source = read_text_file(path);
  return reading(source.name, [&] { return parse_profile(source.text, source.name); });
}

std::string profile_to_json(const Profile& profile) {
  return json_document([&](JsonWriter& json) {
    json.field("format", kProfileFormat);
    json.field("version", 1);
    if (!profile.source.empty()) json.field("source", profile.source);
    if (profile.batch_size.has_value()) json.field("batch_size", *profile.batch_size);
    json.begin_array("operators");
    for (const OperatorProfile& op : profile.operators) write_operator(json, op);
    json.end_array();
  });
}

}  // namespace baechi
