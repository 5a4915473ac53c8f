// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/placement_file.h"

#include <array>
#include <optional>
#include <string>

#include "baechi/base/error.h"
#include "baechi/io/json_reader.h"
#include "baechi/io/json_values.h"
#include "baechi/io/plan_file.h"
#include "baechi/io/text_file.h"

namespace baechi {
namespace {

constexpr std::string_view kFormat = "baechi-placement";

std::string in_quotes(std::string_view name) { return "'" + std::string(name) + "'"; }

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

}  // namespace

Placement parse_placement(std::string_view text, const std::string& place, const OpGraph& graph,
                          const Cluster& cluster) {
  if (document_kind(text, place).format == "baechi-plan")
    return from_plan(parse_plan(text, place, graph), place, graph, cluster);

  enum : std::size_t { kFormatField, kVersion, kDeviceOf };
  static constexpr std::array<std::string_view, 3> kNames{"format", "version", "device_of"};
  IdVector<OpId, std::optional<DeviceId>> device_of(graph.num_ops());
  JsonReader json(text, place);
  const auto read_device_of = [&] {
    json.enter_object();
    while (json.next_key()) {
      const std::optional<OpId> op = graph.find(json.key());
      const std::string name = in_quotes(json.key());
      const std::optional<DeviceId> device = cluster.find(json.read_string());
      if (!op.has_value()) json.fail("the graph has no operator " + name);
      if (!device.has_value()) json.fail("the cluster has no such device");
      if (device_of[*op].has_value()) json.fail("operator " + name + " is placed twice");
      device_of[*op] = device;
    }
  };
  const std::uint64_t seen = json.read_fields(kNames, [&](std::size_t field) {
    if (field == kFormatField) {
      if (json.read_string() != kFormat) json.fail("expected \"baechi-placement\"");
    } else if (field == kVersion) {
      if (json.read_integer() != 1) json.fail("this version of baechi reads version 1");
    } else {
      read_device_of();
    }
  });
  json.require_fields(kNames, seen, kNames.size());
  json.finish();

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
  return parse_placement(source.text, source.name, graph, cluster);
}

}  // namespace baechi
