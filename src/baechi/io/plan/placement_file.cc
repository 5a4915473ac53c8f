// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/plan/placement_file.h"

#include <tsl/robin_set.h>

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

// Checks all that can be checked without the graph and the cluster.
std::vector<PlacementEntry> read_entries(JsonReader& json) {
  enum : std::size_t { kFormatField, kVersion, kDeviceOf };
  static constexpr std::array<std::string_view, 3> kNames{"format", "version", "device_of"};
  std::vector<PlacementEntry> entries;
  tsl::robin_set<std::string_view> placed;
  const std::uint64_t seen = json.read_fields(kNames, [&](std::size_t field) {
    if (field == kFormatField) return read_format(json, kPlacementFormat);
    if (field == kVersion) return read_version(json);
    json.enter_object();
    while (json.next_key()) {
      if (!placed.insert(json.key()).second)
        json.fail("operator " + in_quotes(json.key()) + " is placed twice");
      PlacementEntry entry{json.key(), json.read_string(), 0};
      entry.offset = json.offset();
      entries.push_back(entry);
    }
  });
  json.require_fields(kNames, seen, kNames.size());
  json.finish();
  return entries;
}

}  // namespace

void check_placement_text(std::string_view text, const std::string& place) {
  JsonReader json(text, place);
  read_entries(json);
}

Placement parse_placement(std::string_view text, const std::string& place, const OpGraph& graph,
                          const Cluster& cluster) {
  const DocumentKind kind = document_kind(text, place);
  if (kind.format == "baechi-plan")
    return from_plan(parse_plan(text, place, graph), place, graph, cluster);
  if (kind.format == "baechi-graph" || kind.format == "baechi-cluster")
    throw InputError(place,
                     "this is a " + kind.format->substr(7) + ", expected a placement or a plan");

  JsonReader json(text, place);
  IdVector<OpId, std::optional<DeviceId>> device_of(graph.num_ops());
  for (const PlacementEntry& entry : read_entries(json)) {
    const auto fail = [&](const std::string& reason) {
      json.fail_at(entry.offset, "$.device_of", reason);
    };
    const std::optional<OpId> op = graph.find(entry.op);
    if (!op.has_value()) fail("the graph has no operator " + in_quotes(entry.op));
    device_of[*op] = cluster.find(entry.device);
    if (!device_of[*op].has_value()) fail("the cluster has no device " + in_quotes(entry.device));
  }
  Placement placement;
  for (const OpId op : graph.ops()) {
    if (!device_of[op].has_value())
      throw InputError(place, "operator " + in_quotes(graph[op].name) + " is not placed");
    placement.push_back(*device_of[op]);
  }
  return placement;
}

Placement read_placement(const std::filesystem::path& path, const OpGraph& graph,
                         const Cluster& cluster) {
  const SourceText source = read_text_file(path);
  return reading(source.name,
                 [&] { return parse_placement(source.text, source.name, graph, cluster); });
}

}  // namespace baechi
