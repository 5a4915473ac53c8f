// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/plan/placement_file.h"

#include <tsl/robin_set.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/io/json/json_reader.h"
#include "baechi/io/json/json_values.h"
#include "baechi/io/plan/plan_file.h"
#include "baechi/io/text/text_file.h"

namespace baechi {
namespace {

constexpr std::string_view kPlacementFormat = "baechi-placement";

// Devices go by name: a plan for another cluster serves when the names are the same.
Placement from_plan(const Plan& plan, const std::string& place, const OpGraph& graph,
                    const Cluster& cluster) {
  Placement placement;
  for (const OpId op : graph.ops()) {
    const std::string& name = plan.cluster.devices[plan.schedule.slots[op].device.index()].name;
    const std::optional<DeviceId> device = cluster.find(name);
    if (!device.has_value())
      throw InputError(place, "operator " + in_quotes(graph[op].name) + " is on device " +
                                  in_quotes(name) + ", which the cluster does not have");
    placement.push_back(*device);
  }
  return placement;
}

struct PlacementEntry {
  std::string_view op, device;
  std::size_t offset = 0;  // in the text, for errors
};
struct OrderEntry {
  std::string_view device, actions;
  std::size_t offset = 0;
};
struct PlacementText {
  std::vector<PlacementEntry> entries;
  std::vector<OrderEntry> order;
};

bool is_part_of_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// Whether `part` is some of the words of a name: "layers/1" of "optimizer/layers/1/norm".
bool has_part(std::string_view name, std::string_view part) {
  if (part.empty()) return false;
  for (std::size_t at = name.find(part); at != name.npos; at = name.find(part, at + 1)) {
    const std::size_t end = at + part.size();
    const bool begins = at == 0 || !is_part_of_word(name[at - 1]) || !is_part_of_word(part.front());
    const bool ends =
        end == name.size() || !is_part_of_word(name[end]) || !is_part_of_word(part.back());
    if (begins && ends) return true;
  }
  return false;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  bool inside = false;
  for (const char c : text) {
    const bool between = c == ' ' || c == ',';
    if (!between && !inside) words.emplace_back();
    if (!between) words.back() += c;
    inside = !between;
  }
  return words;
}

// Checks all that can be checked without the graph and the cluster.
PlacementText read_entries(JsonReader& json) {
  enum : std::size_t { kFormatField, kVersion, kDeviceOf, kOrder };
  static constexpr std::array<std::string_view, 4> kNames{"format", "version", "device_of",
                                                          "order"};
  PlacementText text;
  tsl::robin_set<std::string_view> placed;
  const std::uint64_t seen = json.read_fields(kNames, [&](std::size_t field) {
    if (field == kFormatField) return read_format(json, kPlacementFormat);
    if (field == kVersion) return read_version(json);
    json.enter_object();
    while (field == kOrder && json.next_key()) {
      for (const OrderEntry& known : text.order)
        if (known.device == json.key())
          json.fail("device " + in_quotes(json.key()) + " comes twice");
      OrderEntry entry{json.key(), json.read_string(), 0};
      entry.offset = json.offset();
      text.order.push_back(entry);
    }
    if (field == kOrder) return;
    while (json.next_key()) {
      if (!placed.insert(json.key()).second)
        json.fail("operator " + in_quotes(json.key()) + " is placed twice");
      PlacementEntry entry{json.key(), json.read_string(), 0};
      entry.offset = json.offset();
      text.entries.push_back(entry);
    }
  });
  json.require_fields(kNames, seen, kOrder);
  json.finish();
  return text;
}

}  // namespace

void check_placement_text(std::string_view text, const std::string& place) {
  JsonReader json(text, place);
  read_entries(json);
}

Placement parse_placement(std::string_view text, const std::string& place, const OpGraph& graph,
                          const Cluster& cluster, std::optional<DeviceWords>* order) {
  const DocumentKind kind = document_kind(text, place);
  if (kind.format == "baechi-plan")
    return from_plan(parse_plan(text, place, graph), place, graph, cluster);
  if (kind.format == "baechi-graph" || kind.format == "baechi-cluster")
    throw InputError(place,
                     "this is a " + kind.format->substr(7) + ", expected a placement or a plan");

  JsonReader json(text, place);
  IdVector<OpId, std::optional<DeviceId>> device_of(graph.num_ops());
  const PlacementText read = read_entries(json);
  const auto known_device = [&](std::string_view name, std::size_t offset, const char* path) {
    const std::optional<DeviceId> device = cluster.find(name);
    if (!device.has_value())
      json.fail_at(offset, path, "the cluster has no device " + in_quotes(name));
    return *device;
  };
  for (const PlacementEntry& entry : read.entries) {
    const DeviceId device = known_device(entry.device, entry.offset, "$.device_of");
    if (const std::optional<OpId> op = graph.find(entry.op)) device_of[*op] = device;
  }
  // All others go by the longest part of their names.
  std::vector<std::pair<OpId, std::size_t>> others;
  for (const OpId op : graph.ops())
    if (!device_of[op].has_value()) others.emplace_back(op, 0);
  for (const PlacementEntry& entry : read.entries) {
    bool found = graph.find(entry.op).has_value();
    for (auto& [op, length] : others) {
      if (!has_part(graph[op].name, entry.op)) continue;
      found = true;
      if (entry.op.size() > length) device_of[op] = cluster.find(entry.device);
      length = std::max(length, entry.op.size());
    }
    if (!found)
      json.fail_at(entry.offset, "$.device_of",
                   "the graph has no operator " + in_quotes(entry.op) +
                       ", and no other whose name has that as a part");
  }
  if (!read.order.empty() && order == nullptr)
    throw InputError(place, "an order is of no use here");
  if (!read.order.empty()) order->emplace(cluster.num_devices());
  for (const OrderEntry& entry : read.order)
    (**order)[known_device(entry.device, entry.offset, "$.order")] = words_of(entry.actions);
  for (const OpId op : graph.topological_order())
    if (!device_of[op].has_value() && graph[op].forward.has_value())
      device_of[op] = device_of[*graph[op].forward];
  Placement placement;
  for (const OpId op : graph.ops()) {
    if (!device_of[op].has_value())
      throw InputError(place, "operator " + in_quotes(graph[op].name) + " is not placed");
    placement.push_back(*device_of[op]);
  }
  return placement;
}

Placement read_placement(const std::filesystem::path& path, const OpGraph& graph,
                         const Cluster& cluster, std::optional<DeviceWords>* order) {
  const SourceText source = read_text_file(path);
  return reading(source.name,
                 [&] { return parse_placement(source.text, source.name, graph, cluster, order); });
}

}  // namespace baechi
