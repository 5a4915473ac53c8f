// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/onnx/write_onnx.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/io/graph_def/write_graph_def.h"
#include "baechi/io/onnx/onnx.h"
#include "baechi/io/protobuf/wire_reader.h"

namespace baechi {
namespace {

constexpr std::string_view kLayerKey = "layer_ann";  // ONNX Runtime reads it
constexpr std::string_view kDeviceKey = "baechi.device";
constexpr std::string_view kConfiguration = "baechi";
constexpr std::int64_t kFirstMultiDeviceIr = 11;

// StringStringEntryProto, NodeDeviceConfigurationProto, ShardingSpecProto,
// DeviceConfigurationProto.
constexpr std::uint64_t kEntryKey = 1, kEntryValue = 2;
constexpr std::uint64_t kDeviceConfigurationId = 1, kDeviceSharding = 2;
constexpr std::uint64_t kShardingTensor = 1, kShardingDevice = 2;
constexpr std::uint64_t kConfigurationName = 1, kConfigurationSize = 2, kConfigurationDevice = 3;

void append_number_field(std::string& out, std::uint64_t field, std::uint64_t value) {
  append_varint(out, field << 3);
  append_varint(out, value);
}

std::string metadata(std::string_view key, std::string_view value) {
  std::string entry;
  append_bytes_field(entry, kEntryKey, key);
  append_bytes_field(entry, kEntryValue, value);
  return entry;
}

// The text in field `field` of a message.
std::string_view text_in(WireReader message, std::uint64_t field) {
  std::string_view text;
  while (message.next())
    if (message.field() == field) text = message.bytes();
  return text;
}

// Written by an earlier plan.
bool is_ours(const WireReader& field) {
  if (field.field() == onnx_field::kNodeMetadata) {
    const std::string_view key = text_in(field.message(), kEntryKey);
    return key == kLayerKey || key == kDeviceKey;
  }
  return field.field() == onnx_field::kNodeDevices &&
         text_in(field.message(), kDeviceConfigurationId) == kConfiguration;
}

// Every output as a whole on one device: sharded over a list of one, along no axis.
std::string device_annotation(const std::vector<std::string_view>& outputs, DeviceId device) {
  std::string annotation;
  append_bytes_field(annotation, kDeviceConfigurationId, kConfiguration);
  for (const std::string_view output : outputs) {
    if (output.empty()) continue;
    std::string sharding, devices;
    append_varint(devices, device.index());
    append_bytes_field(sharding, kShardingTensor, output);
    append_bytes_field(sharding, kShardingDevice, devices);  // packed
    append_bytes_field(annotation, kDeviceSharding, sharding);
  }
  return annotation;
}

std::string configuration(const ClusterSpec& cluster) {
  std::string text;
  append_bytes_field(text, kConfigurationName, kConfiguration);
  append_number_field(text, kConfigurationSize, cluster.devices.size());
  for (const Device& device : cluster.devices)
    append_bytes_field(text, kConfigurationDevice, device.name);
  return text;
}

class OnnxPlacer {
 public:
  OnnxPlacer(std::string_view bytes, const std::string& place, const OpGraph& graph,
             const Plan& plan)
      : bytes_(bytes),
        place_(place),
        graph_(graph),
        plan_(plan),
        runtime_names_(onnx_runtime_devices(plan.cluster)) {}

  std::string write() {
    const std::optional<WireReader> main = find_onnx_graph(bytes_, place_);
    if (!main.has_value()) throw InputError(place_, "the model has no graph");
    names_ = onnx_operator_names(read_onnx_graph(*main));
    for (WireReader model(bytes_, bytes_, place_); model.next();)
      if (model.field() == onnx_field::kModelIrVersion)
        multi_device_ = model.integer() >= kFirstMultiDeviceIr;
    std::string out;
    out.reserve(bytes_.size() + bytes_.size() / 8);
    for (WireReader model(bytes_, bytes_, place_); model.next();) {
      if (model.field() == onnx_field::kModelGraph)
        append_bytes_field(out, onnx_field::kModelGraph, graph(model.message()));
      else if (model.field() != onnx_field::kModelConfiguration ||
               text_in(model.message(), kConfigurationName) != kConfiguration)
        out += model.raw();
    }
    if (multi_device_)
      append_bytes_field(out, onnx_field::kModelConfiguration, configuration(plan_.cluster));
    return out;
  }

 private:
  std::string graph(WireReader message) {
    std::string out;
    std::size_t index = 0;
    while (message.next()) {
      if (message.field() == onnx_field::kGraphNode)
        append_bytes_field(out, onnx_field::kGraphNode,
                           node(message.message(), names_.nodes[index++]));
      else
        out += message.raw();
    }
    return out;
  }

  std::string node(WireReader message, const std::string& name) {
    const std::optional<OpId> op = graph_.find(name);
    if (!op.has_value())
      throw InputError(place_, "node " + in_quotes(name) + " is not in the planned graph");
    const DeviceId device = plan_.schedule.slots[*op].device;
    std::string out;
    std::vector<std::string_view> outputs;
    while (message.next()) {
      if (message.field() == onnx_field::kNodeOutput) outputs.push_back(message.bytes());
      if (!is_ours(message)) out += message.raw();
    }
    append_bytes_field(out, onnx_field::kNodeMetadata, metadata(kLayerKey, runtime_names_[device]));
    append_bytes_field(out, onnx_field::kNodeMetadata,
                       metadata(kDeviceKey, plan_.cluster.devices[device.index()].name));
    if (multi_device_)
      append_bytes_field(out, onnx_field::kNodeDevices, device_annotation(outputs, device));
    return out;
  }

  std::string_view bytes_;
  const std::string& place_;
  const OpGraph& graph_;
  const Plan& plan_;
  const IdVector<DeviceId, std::string> runtime_names_;
  OnnxOperatorNames names_;
  bool multi_device_ = false;
};

}  // namespace

IdVector<DeviceId, std::string> onnx_runtime_devices(const ClusterSpec& cluster) {
  std::map<std::string_view, std::size_t> seen;
  IdVector<DeviceId, std::string> names;
  for (const Device& device : cluster.devices) {
    const std::string_view kind = device.kind == "npu" ? "npu" : "gpu";
    names.push_back(framework_kind(device) == "CPU"
                        ? std::string("cpu")
                        : std::string(kind) + ":" + std::to_string(seen[kind]++));
  }
  return names;
}

std::string onnx_runtime_layer_assignment(const Plan& plan) {
  const IdVector<DeviceId, std::string> names = onnx_runtime_devices(plan.cluster);
  IdVector<DeviceId, bool> used(names.size(), false);
  for (const OpSlot& slot : plan.schedule.slots) used[slot.device] = true;
  std::string settings;
  std::set<std::string_view> listed;  // all CPUs have one name
  for (const DeviceId device : names.keys()) {
    if (!used[device] || !listed.insert(names[device]).second) continue;
    settings += (settings.empty() ? "" : ";") + names[device] + "(=" + names[device] + ")";
  }
  return settings;
}

void check_onnx(std::string_view bytes, const std::string& place) {
  if (!looks_like_onnx(bytes))
    throw InputError(place, "only an ONNX model can be written as one: give the .onnx file");
}

std::string placed_onnx(std::string_view bytes, const std::string& place, const OpGraph& graph,
                        const Plan& plan) {
  check_onnx(bytes, place);
  return OnnxPlacer(bytes, place, graph, plan).write();
}

}  // namespace baechi
