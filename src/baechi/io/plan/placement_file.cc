// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/plan/placement_file.h"

#include <tsl/robin_map.h>
#include <tsl/robin_set.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
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

// Where the parts of a name may begin and end: "layers/1" of "optimizer/layers/1/norm".
std::vector<std::size_t> borders_of(std::string_view name) {
  std::vector<std::size_t> borders{0};
  for (std::size_t at = 1; at < name.size(); ++at)
    if (!is_part_of_word(name[at - 1]) || !is_part_of_word(name[at])) borders.push_back(at);
  borders.push_back(name.size());
  return borders;
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
  tsl::robin_map<std::string_view, std::size_t> entry_of;
  std::vector<bool> is_used;
  std::size_t longest = 0;
  for (const PlacementEntry& entry : read.entries) {
    const DeviceId device = known_device(entry.device, entry.offset, "$.device_of");
    const std::optional<OpId> op = graph.find(entry.op);
    if (op.has_value()) device_of[*op] = device;
    is_used.push_back(op.has_value());
    entry_of.emplace(entry.op, entry_of.size());
    longest = std::max(longest, entry.op.size());
  }
  // All others go by the longest part of their names, and of two of one length by the entry that
  // comes first.
  for (const OpId op : graph.ops()) {
    if (device_of[op].has_value()) continue;
    const std::string_view name = graph[op].name;
    const std::vector<std::size_t> borders = borders_of(name);
    const PlacementEntry* found = nullptr;
    for (const std::size_t begin : borders)
      for (const std::size_t end : borders) {
        if (end <= begin || end - begin > longest) continue;
        const auto part = entry_of.find(name.substr(begin, end - begin));
        if (part == entry_of.end()) continue;
        const PlacementEntry& entry = read.entries[part->second];
        is_used[part->second] = true;
        if (found == nullptr || entry.op.size() > found->op.size() ||
            (entry.op.size() == found->op.size() && &entry < found))
          found = &entry;
      }
    if (found != nullptr) device_of[op] = cluster.find(found->device);
  }
  for (std::size_t i = 0; i < is_used.size(); ++i)
    if (!is_used[i])
      json.fail_at(read.entries[i].offset, "$.device_of",
                   "the graph has no operator " + in_quotes(read.entries[i].op) +
                       ", and no other whose name has that as a part");
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
