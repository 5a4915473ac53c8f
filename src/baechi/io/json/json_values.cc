// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/json/json_values.h"

#include <array>
#include <cstdint>

#include "baechi/io/text/quantity_text.h"

namespace baechi {
namespace {

template <class Enum, std::size_t N>
Enum read_choice(JsonReader& json, const std::array<std::string_view, N>& names) {
  const std::string_view text = json.read_string();
  std::string known;
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i] == text) return static_cast<Enum>(i);
    known += (i == 0 ? "\"" : i + 1 == N ? " or \"" : ", \"") + std::string(names[i]) + "\"";
  }
  json.fail("expected " + known + ", found \"" + std::string(text) + "\"");
}

constexpr std::array<std::string_view, 2> kMemoryModes{"dataflow", "retain"};
constexpr std::array<std::string_view, 3> kCommunicationModes{"parallel", "sequential", "duplex"};
constexpr std::array<std::string_view, 2> kSends{"free", "blocking"};
enum class Per : std::uint8_t { kMicroBatch, kStep };
constexpr std::array<std::string_view, 2> kPer{"micro-batch", "step"};

template <class Quantity, class Parse>
Quantity read_quantity(JsonReader& json, const char* what, const Parse& parse) {
  if (json.peek() != JsonReader::Type::kString) return Quantity(json.read_non_negative(what));
  const std::string_view text = json.read_string();
  return json.located([&] { return parse(text); });
}

}  // namespace

Time read_time(JsonReader& json) { return read_quantity<Time>(json, "a time", parse_time); }
Bytes read_bytes(JsonReader& json) {
  return read_quantity<Bytes>(json, "a number of bytes", parse_bytes);
}
Bandwidth read_bandwidth(JsonReader& json) {
  return read_quantity<Bandwidth>(json, "a bandwidth", parse_bandwidth);
}

Speed read_speed(JsonReader& json) {
  const Decimal decimal = json.read_decimal();
  if (decimal.negative) json.fail("a speed cannot be negative");
  const auto scaled = scale(decimal, kFullSpeed.count(), 1);
  if (!scaled.has_value()) json.fail("the speed is too large");
  if (!scaled->exact) json.fail("a speed has at most six decimals");
  return Speed(scaled->value);
}

MemoryMode read_memory_mode(JsonReader& json) {
  return read_choice<MemoryMode>(json, kMemoryModes);
}
CommunicationMode read_communication(JsonReader& json) {
  return read_choice<CommunicationMode>(json, kCommunicationModes);
}
Sends read_sends(JsonReader& json) { return read_choice<Sends>(json, kSends); }
bool read_per_step(JsonReader& json) { return read_choice<Per>(json, kPer) == Per::kStep; }

std::string_view memory_mode_name(MemoryMode mode) {
  return kMemoryModes.at(static_cast<std::size_t>(mode));
}
std::string_view communication_name(CommunicationMode mode) {
  return kCommunicationModes.at(static_cast<std::size_t>(mode));
}
std::string_view sends_name(Sends sends) { return kSends.at(static_cast<std::size_t>(sends)); }

void read_format(JsonReader& json, std::string_view format) {
  const std::string_view found = json.read_string();
  if (found != format)
    json.fail("expected \"" + std::string(format) + "\", found \"" + std::string(found) + "\"");
}

void read_version(JsonReader& json) {
  const std::int64_t found = json.read_integer();
  if (found != 1)
    json.fail("version " + std::to_string(found) +
              " is not supported: this baechi reads version 1");
}

DocumentKind document_kind(std::string_view text, const std::string& place) {
  JsonReader json(text, place);
  DocumentKind kind;
  json.enter_object();
  while (json.next_key()) {
    kind.fields.emplace_back(json.key());
    if (json.key() == "format") {
      kind.format = std::string(json.read_string());
      break;
    }
    json.skip_value();
  }
  return kind;
}

}  // namespace baechi
