// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/cluster/cluster_json.h"

#include <array>
#include <utility>

#include "baechi/io/cluster/write_cluster.h"
#include "baechi/io/json/json_values.h"
#include "baechi/io/text/quantity_text.h"

namespace baechi {
namespace {

constexpr std::size_t kMaxLinks = 100'000;
constexpr std::string_view kDefaultHost = "localhost";

constexpr std::array<std::string_view, 5> kScopes{"default", "other-host", "same-host", "kinds",
                                                  "pair"};  // as enum LinkScope

bool has_ends(LinkScope scope) { return scope == LinkScope::kKinds || scope == LinkScope::kPair; }

Device read_device(JsonReader& json) {
  Device device{{}, {}, {}, std::string(kDefaultHost), kFullSpeed};
  json.read_object(3, JsonField{"name", [&] { device.name = std::string(json.read_string()); }},
                   JsonField{"kind", [&] { device.kind = std::string(json.read_string()); }},
                   JsonField{"capacity", [&] { device.capacity = read_bytes(json); }},
                   JsonField{"host", [&] { device.host = std::string(json.read_string()); }},
                   JsonField{"speed", [&] { device.speed = read_speed(json); }});
  return device;
}

LinkScope read_scope(JsonReader& json) {
  const std::string_view text = json.read_string();
  for (std::size_t i = 0; i < kScopes.size(); ++i)
    if (kScopes[i] == text) return static_cast<LinkScope>(i);
  json.fail("expected \"default\", \"other-host\", \"same-host\", \"kinds\" or \"pair\", found \"" +
            std::string(text) + "\"");
}

LinkRule read_link(JsonReader& json) {
  LinkRule rule;
  const std::uint64_t seen = json.read_object(
      2, JsonField{"scope", [&] { rule.scope = read_scope(json); }},
      JsonField{"latency", [&] { rule.latency = read_time(json); }},
      JsonField{"bandwidth", [&] { rule.bandwidth = read_bandwidth(json); }},
      JsonField{"from", [&] { rule.from = std::string(json.read_string()); }},
      JsonField{"to", [&] { rule.to = std::string(json.read_string()); }},
      JsonField{"both_ways", [&] { rule.both_ways = json.read_bool(); }},
      JsonField{"channels",
                [&] { json.read_array([&] { rule.channels.emplace_back(json.read_string()); }); }});
  const auto was_seen = [&](std::size_t field) { return (seen >> field & 1) != 0; };
  enum : std::size_t { kFrom = 3, kTo, kBothWays };
  for (const std::size_t end : {kFrom, kTo}) {
    const std::string name = end == kFrom ? "from" : "to";
    if (has_ends(rule.scope) && !was_seen(end)) json.fail("the field \"" + name + "\" is missing");
    if (!has_ends(rule.scope) && was_seen(end))
      json.fail("\"" + name + "\" needs the scope \"kinds\" or \"pair\"");
  }
  if (!has_ends(rule.scope) && was_seen(kBothWays))
    json.fail("\"both_ways\" needs the scope \"kinds\" or \"pair\"");
  return rule;
}

HostTime read_host_time(JsonReader& json) {
  HostTime host;
  json.read_object(2, JsonField{"call", [&] { host.call = read_time(json); }},
                   JsonField{"send", [&] { host.send = read_time(json); }},
                   JsonField{"step", [&] { host.step = read_time(json); }});
  return host;
}

MessageTime read_message_time(JsonReader& json) {
  MessageTime message;
  json.read_object(2, JsonField{"send", [&] { message.send = read_time(json); }},
                   JsonField{"receive", [&] { message.receive = read_time(json); }});
  return message;
}

void write_device(JsonWriter& json, const Device& device) {
  json.begin_object(JsonWriter::Layout::kInline);
  json.field("name", device.name);
  json.field("kind", device.kind);
  json.field("capacity", exact_text(device.capacity));
  if (device.host != kDefaultHost) json.field("host", device.host);
  if (device.speed != kFullSpeed) {
    json.key("speed");
    json.number(exact_text(device.speed));
  }
  json.end_object();
}

void write_link(JsonWriter& json, const LinkRule& rule) {
  json.begin_object(JsonWriter::Layout::kInline);
  json.field("scope", kScopes.at(static_cast<std::size_t>(rule.scope)));
  if (has_ends(rule.scope)) {
    json.field("from", rule.from);
    json.field("to", rule.to);
    if (!rule.both_ways) json.field("both_ways", false);
  }
  json.field("latency", exact_text(rule.latency));
  if (rule.bandwidth.has_value()) json.field("bandwidth", exact_text(*rule.bandwidth));
  if (!rule.channels.empty()) {
    json.values("channels", rule.channels);
  }
  json.end_object();
}

}  // namespace

ClusterSpec read_cluster_object(JsonReader& json, bool standalone) {
  enum : std::size_t {
    kDevices,
    kCommunication,
    kLinks,
    kName,
    kHostTime,
    kSends,
    kFormat,
    kVersion
  };
  static constexpr std::array<std::string_view, 8> kNames{
      "devices", "communication", "links", "name", "host_time", "sends", "format", "version"};
  json.peek();
  const std::size_t begin = json.offset();
  const std::string path = json.path();
  ClusterSpec spec;
  const std::span<const std::string_view> names(kNames.data(), standalone ? 8 : 6);
  const std::uint64_t seen = json.read_fields(names, [&](std::size_t field) {
    switch (field) {
      case kDevices:
        json.read_array([&] {
          if (spec.devices.size() == kMaxDevices)
            json.fail("more than " + std::to_string(kMaxDevices) + " devices");
          spec.devices.push_back(read_device(json));
        });
        break;
      case kLinks:
        json.read_array([&] {
          if (spec.links.size() == kMaxLinks) json.fail("too many links");
          spec.links.push_back(read_link(json));
        });
        break;
      case kCommunication:
        spec.communication = read_communication(json);
        break;
      case kName:
        spec.name = std::string(json.read_string());
        break;
      case kHostTime:
        spec.host_time = read_host_time(json);
        break;
      case kSends:
        if (json.peek() == JsonReader::Type::kObject)
          spec.message_time = read_message_time(json);
        else
          spec.sends = read_sends(json);
        break;
      case kFormat:
        read_format(json, "baechi-cluster");
        break;
      case kVersion:
        read_version(json);
        break;
      default:
        break;
    }
  });
  json.require_fields(kNames, seen, 1);
  if (standalone)
    json.require_fields(kNames,
                        seen | (std::uint64_t{1} << kCommunication) | (std::uint64_t{1} << kLinks) |
                            (std::uint64_t{1} << kName) | (std::uint64_t{1} << kHostTime) |
                            (std::uint64_t{1} << kSends),
                        8);
  try {
    return Cluster(std::move(spec)).spec();  // checks what concerns several fields
  } catch (const InputError& error) {
    json.fail_at(begin, path, error.what());
  }
}

void write_cluster_object(JsonWriter& json, const ClusterSpec& spec, bool standalone) {
  json.begin_object();
  if (standalone) {
    json.field("format", "baechi-cluster");
    json.field("version", 1);
  }
  if (!spec.name.empty()) json.field("name", spec.name);
  json.field("communication", communication_name(spec.communication));
  if (spec.message_time.has_value()) {
    json.key("sends");
    json.begin_object(JsonWriter::Layout::kInline);
    json.field("send", exact_text(spec.message_time->send));
    json.field("receive", exact_text(spec.message_time->receive));
    json.end_object();
  } else if (spec.sends != Sends::kFree) {
    json.field("sends", sends_name(spec.sends));
  }
  if (spec.host_time.has_value()) {
    json.begin_object("host_time", JsonWriter::Layout::kInline);
    json.field("call", exact_text(spec.host_time->call));
    json.field("send", exact_text(spec.host_time->send));
    if (spec.host_time->step > Time(0)) json.field("step", exact_text(spec.host_time->step));
    json.end_object();
  }
  json.begin_array("devices");
  for (const Device& device : spec.devices) write_device(json, device);
  json.end_array();
  json.begin_array("links");
  for (const LinkRule& rule : spec.links) write_link(json, rule);
  json.end_array();
  json.end_object();
}

std::string cluster_to_json(const ClusterSpec& spec) {
  std::string text;
  JsonWriter json(text);
  write_cluster_object(json, spec, true);
  json.finish();
  return text;
}

}  // namespace baechi
