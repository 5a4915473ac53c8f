// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/export/exports.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/io/graph_def/write_graph_def.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/io/onnx/write_onnx.h"
#include "baechi/report/picture/plan_dot.h"
#include "baechi/report/picture/plan_svg.h"
#include "baechi/report/text/csv_field.h"

namespace baechi {
namespace {

DeviceId device_of(const Plan& plan, OpId op) { return plan.schedule.slots[op].device; }

const Device& spec_of(const Plan& plan, DeviceId device) {
  return plan.cluster.devices[device.index()];
}

std::string to_csv(const OpGraph& graph, const Plan& plan) {
  std::string text =
      "operator,kind,device,start_ns,end_ns,permanent_bytes,temporary_bytes,output_bytes\r\n";
  for (const OpId op : graph.ops()) {
    const OpSlot& slot = plan.schedule.slots[op];
    text += csv_field(graph[op].name) + "," + csv_field(graph[op].kind) + "," +
            csv_field(spec_of(plan, slot.device).name);
    for (const std::int64_t number :
         {slot.start.count(), slot.end.count(), graph[op].permanent.count(),
          graph[op].temporary.count(), graph.output_bytes(op).count()})
      text += "," + std::to_string(number);
    text += "\r\n";
  }
  return text;
}

std::string to_tensorflow(const OpGraph& graph, const Plan& plan) {
  const IdVector<DeviceId, std::string> names = tensorflow_devices(plan.cluster);
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  for (const OpId op : graph.ops()) json.field(graph[op].name, names[device_of(plan, op)]);
  json.end_object();
  json.finish();
  return text;
}

std::vector<std::string_view> parts_of(std::string_view name) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = name.find_first_of("/.");
    parts.push_back(name.substr(0, end));
    if (end == std::string_view::npos) return parts;
    name.remove_prefix(end + 1);
  }
}

// An operator that holds weights, as the module that a device map knows it by.
struct Module {
  std::string name;  // with "." between the levels
  OpId op{0};
  DeviceId device{0};
};

// By levels: a module comes right before all that it contains.
bool before(const Module& a, const Module& b) {
  const auto rank = [](char c) { return c == '.' ? 0 : 1 + static_cast<unsigned char>(c); };
  return std::ranges::lexicographical_compare(a.name, b.name, std::less<>{}, rank, rank);
}

std::vector<Module> modules_of(const OpGraph& graph, const Plan& plan) {
  std::vector<Module> modules;
  for (const OpId op : graph.ops()) {
    if (graph[op].permanent == Bytes(0)) continue;
    modules.push_back({std::string(graph[op].name), op, device_of(plan, op)});
    std::string& name = modules.back().name;
    std::ranges::replace(name, '/', '.');
    name.erase(0, std::min(name.find_first_not_of('.'), name.size()));
  }
  if (modules.empty())
    throw InputError(graph.name(), "no operator holds permanent memory: there is no module to map");
  std::ranges::stable_sort(modules, before);
  for (std::size_t i = 1; i < modules.size(); ++i) {
    const Module &a = modules[i - 1], &b = modules[i];
    if (a.name == b.name && a.device != b.device)
      throw InputError(graph.name(),
                       "operators " + in_quotes(graph[a.op].name) + " and " +
                           in_quotes(graph[b.op].name) + " are one module, on two devices: " +
                           spec_of(plan, a.device).name + " and " + spec_of(plan, b.device).name);
  }
  return modules;
}

// The length of the shortest prefix of levels of `name` that `other` does not begin with; all of
// `name` when there is none.
std::size_t own_prefix(std::string_view name, std::string_view other) {
  const auto differ = std::ranges::mismatch(name, other);
  auto at = static_cast<std::size_t>(differ.in1 - name.begin());
  if (at == name.size()) return at;
  // `name` goes on within a level, or with a further one.
  const bool further = name[at] == '.' && at == other.size();
  return std::min(name.size(), name.find('.', further ? at + 1 : at));
}

// The numbers of devices as Hugging Face counts them: those of one kind together, on all hosts.
IdVector<DeviceId, std::size_t> numbers_in_kind(const ClusterSpec& cluster) {
  std::map<std::string_view, std::size_t> seen;
  IdVector<DeviceId, std::size_t> numbers;
  for (const Device& device : cluster.devices) numbers.push_back(seen[framework_kind(device)]++);
  return numbers;
}

// An entry's name is the shortest prefix that no module on another device shares. Of those, in
// order, the nearest on either side share the most.
std::string to_device_map(const OpGraph& graph, const Plan& plan) {
  const std::vector<Module> modules = modules_of(graph, plan);
  const IdVector<DeviceId, std::size_t> numbers = numbers_in_kind(plan.cluster);
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  std::optional<std::string_view> last;
  for (std::size_t first = 0, end = 0; first < modules.size(); first = end) {
    const DeviceId device = modules[first].device;
    while (end < modules.size() && modules[end].device == device) ++end;
    for (std::size_t i = first; i < end; ++i) {
      const std::string_view name = modules[i].name;
      std::size_t length = 0;
      if (first > 0) length = own_prefix(name, modules[first - 1].name);
      if (end < modules.size()) length = std::max(length, own_prefix(name, modules[end].name));
      const std::string_view entry = name.substr(0, length);
      if (last == entry) continue;
      last = entry;
      if (spec_of(plan, device).kind == "cpu")
        json.field(entry, "cpu");
      else
        json.field(entry, numbers[device]);
    }
  }
  json.end_object();
  json.finish();
  return text;
}

struct LayerPlace {  // in a name: whose layer, and which
  std::string family;
  std::size_t number = 0;
  std::string module;  // the layer as a module: "layers.3"
};

// Absent when it is no number, or a very long one.
std::optional<std::size_t> number_of(std::string_view digits) {
  if (digits.empty() || digits.size() > 6) return std::nullopt;
  std::size_t number = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9') return std::nullopt;
    number = number * 10 + static_cast<std::size_t>(c - '0');
  }
  return number;
}

// The first numbered part: "layers/3" or "layer_3".
std::optional<LayerPlace> layer_of(std::string_view name) {
  std::string before, module;
  for (const std::string_view part : parts_of(name)) {
    if (!module.empty()) module += '.';
    module += part;
    if (const auto number = number_of(part); number.has_value() && !before.empty())
      return LayerPlace{before, *number, module};
    const std::size_t line = part.rfind('_');
    if (line != std::string_view::npos)
      if (const auto number = number_of(part.substr(line + 1)); number.has_value())
        return LayerPlace{before + "/" + std::string(part.substr(0, line)), *number, module};
    before += "/" + std::string(part);
  }
  return std::nullopt;
}

struct Layer {
  std::optional<DeviceId> device;
  OpId example{0};
};
struct Family {
  std::string name;
  Bytes permanent;
  std::map<std::size_t, Layer> layers;
  std::optional<std::pair<OpId, OpId>> split;  // two operators of one layer on two devices
};

Family largest_family(const OpGraph& graph, const Plan& plan) {
  std::map<std::string, Family> families;
  for (const OpId op : graph.ops()) {
    if (graph[op].permanent == Bytes(0)) continue;
    const std::optional<LayerPlace> place = layer_of(graph[op].name);
    if (!place.has_value()) continue;
    Family& family = families[place->family];
    family.name = place->family;
    family.permanent += graph[op].permanent;
    Layer& layer = family.layers[place->number];
    if (!layer.device.has_value())
      layer = {device_of(plan, op), op};
    else if (*layer.device != device_of(plan, op) && !family.split.has_value())
      family.split = std::pair(layer.example, op);
  }
  const Family* largest = nullptr;
  for (const auto& [name, family] : families)
    if (largest == nullptr || family.permanent > largest->permanent) largest = &family;
  if (largest == nullptr)
    throw InputError(graph.name(),
                     "no operator with permanent memory has a numbered layer in its "
                     "name, such as layers/3/mlp");
  return *largest;
}

std::string joined_counts(const std::vector<std::size_t>& counts) {
  std::string text;
  for (const std::size_t count : counts) text += (text.empty() ? "" : ",") + std::to_string(count);
  return text;
}

std::string to_vllm(const OpGraph& graph, const Plan& plan) {
  std::vector<std::size_t> counts = layers_per_device(graph, plan);
  std::erase(counts, 0U);  // no pipeline rank without layers
  return "VLLM_PP_LAYER_PARTITION=" + joined_counts(counts) + "\n";
}

std::string to_llama_cpp(const OpGraph& graph, const Plan& plan) {
  return "--split-mode layer --tensor-split " + joined_counts(layers_per_device(graph, plan)) +
         "\n";
}

// What runs before the first layer is the first stage's, and what runs after the last is the last
// one's: a split lies in front of a layer.
void check_ends(const OpGraph& graph, const Plan& plan, const Family& family) {
  std::set<OpId> in_layers;
  const Layer &first = family.layers.begin()->second, &last = family.layers.rbegin()->second;
  Time begins = plan.schedule.slots[first.example].start;
  for (const OpId op : graph.ops()) {
    if (graph[op].permanent == Bytes(0) || graph[op].backward) continue;
    const std::optional<LayerPlace> place = layer_of(graph[op].name);
    if (place.has_value() && place->family == family.name) {
      in_layers.insert(op);
      begins = std::min(begins, plan.schedule.slots[op].start);
    }
  }
  for (const OpId op : graph.ops()) {
    if (graph[op].permanent == Bytes(0) || graph[op].backward || in_layers.contains(op)) continue;
    const bool before = plan.schedule.slots[op].start < begins;
    const Layer& end = before ? first : last;
    if (device_of(plan, op) != *end.device)
      throw InputError(graph.name(), "the plan is not a pipeline: " + in_quotes(graph[op].name) +
                                         ", which runs " + (before ? "before" : "after") +
                                         " the layers, is on " +
                                         spec_of(plan, device_of(plan, op)).name + ", the " +
                                         (before ? "first" : "last") + " layer on " +
                                         spec_of(plan, *end.device).name);
  }
}

std::string to_split_spec(const OpGraph& graph, const Plan& plan) {
  layers_per_device(graph, plan);  // refuses what is not layer-wise
  const Family family = largest_family(graph, plan);
  check_ends(graph, plan, family);
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  std::optional<DeviceId> last;
  for (const auto& [number, layer] : family.layers) {
    if (last.has_value() && layer.device != last)
      json.field(layer_of(graph[layer.example].name)->module, "beginning");
    last = layer.device;
  }
  json.end_object();
  json.finish();
  return text;
}

std::string to_dot(const OpGraph& graph, const Plan& plan) { return plan_dot(graph, plan); }
std::string to_svg(const OpGraph& graph, const Plan& plan) { return plan_svg(graph, plan); }

std::string to_onnx_runtime(const OpGraph& graph, const Plan& plan) {
  static_cast<void>(graph);
  return "session.layer_assignment_settings=" + onnx_runtime_layer_assignment(plan) + "\n";
}

constexpr std::array<ExportFormat, 9> kFormats{{
    {"csv", "a row per operator: device, times, memory", to_csv},
    {"dot", "Graphviz: coloured by device, at most 300 nodes", to_dot},
    {"svg", "a picture: a lane per device, data flowing down, at most 300 nodes", to_svg},
    {"device-map", "Hugging Face device_map: the device of every module that holds weights",
     to_device_map, true},
    {"tensorflow", "TensorFlow device string per node", to_tensorflow, true},
    {"onnxruntime", "ONNX Runtime session option: which annotation of --to onnx runs where",
     to_onnx_runtime, true},
    {"split-spec", "torch.distributed.pipelining: the layers before which to split", to_split_spec,
     true},
    {"vllm", "vLLM pipeline: layers per rank, for plans that cut between layers", to_vllm, true},
    {"llama-cpp", "llama.cpp: layers per device, for plans that cut between layers", to_llama_cpp,
     true},
}};

}  // namespace

std::span<const ExportFormat> export_formats() { return kFormats; }

const ExportFormat& find_export_format(std::string_view name) {
  std::string known;
  for (const ExportFormat& format : kFormats) {
    if (format.name == name) return format;
    known += (known.empty() ? "" : ", ") + std::string(format.name);
  }
  throw InputError("export", "there is no format '" + std::string(name) + "', only " + known);
}

std::vector<std::size_t> layers_per_device(const OpGraph& graph, const Plan& plan) {
  const Family family = largest_family(graph, plan);
  if (family.split.has_value()) {
    const auto [a, b] = *family.split;
    throw InputError(graph.name(), "the plan is not layer-wise: '" + std::string(graph[a].name) +
                                       "' is on " + spec_of(plan, device_of(plan, a)).name + ", '" +
                                       std::string(graph[b].name) + "' of the same layer on " +
                                       spec_of(plan, device_of(plan, b)).name);
  }
  std::vector<std::size_t> counts(plan.cluster.devices.size());
  std::optional<DeviceId> last;
  for (const auto& [number, layer] : family.layers) {
    if (last.has_value() && *layer.device < *last)
      throw InputError(graph.name(), "the plan is not layer-wise in the order of devices: layer " +
                                         std::to_string(number) + " is on " +
                                         spec_of(plan, *layer.device).name +
                                         ", the one before it on " + spec_of(plan, *last).name);
    last = layer.device;
    ++counts[layer.device->index()];
  }
  return counts;
}

}  // namespace baechi
