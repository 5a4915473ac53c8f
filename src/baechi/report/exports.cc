// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/exports.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "baechi/base/error.h"
#include "baechi/io/json_writer.h"
#include "baechi/report/csv_field.h"
#include "baechi/report/plan_dot.h"

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

// What frameworks call a kind: to them an a100 and a t4 are both GPUs.
std::string_view framework_kind(const Device& device) {
  return device.kind == "cpu" ? "CPU" : device.kind == "tpu" ? "TPU" : "GPU";
}

// The number of a device among those of its kind, as frameworks count them.
std::size_t number_in_kind(const Plan& plan, DeviceId device, bool on_host) {
  const Device& spec = spec_of(plan, device);
  std::size_t number = 0;
  for (std::size_t i = 0; i < device.index(); ++i) {
    const Device& other = plan.cluster.devices[i];
    if (framework_kind(other) == framework_kind(spec) && (!on_host || other.host == spec.host))
      ++number;
  }
  return number;
}

// Numbered in the order in which the cluster first names them.
std::size_t task_of(const Plan& plan, const std::string& host, std::size_t& num_hosts) {
  std::vector<std::string_view> hosts;
  for (const Device& device : plan.cluster.devices)
    if (std::find(hosts.begin(), hosts.end(), device.host) == hosts.end())
      hosts.emplace_back(device.host);
  num_hosts = hosts.size();
  return static_cast<std::size_t>(std::find(hosts.begin(), hosts.end(), host) - hosts.begin());
}

std::string tensorflow_device(const Plan& plan, DeviceId device) {
  const Device& spec = spec_of(plan, device);
  std::size_t num_hosts = 0;
  const std::size_t task = task_of(plan, spec.host, num_hosts);
  return "/job:" + std::string(num_hosts > 1 ? "worker" : "localhost") +
         "/replica:0/task:" + std::to_string(task) +
         "/device:" + std::string(framework_kind(spec)) + ":" +
         std::to_string(number_in_kind(plan, device, true));
}

std::string to_tensorflow(const OpGraph& graph, const Plan& plan) {
  IdVector<DeviceId, std::string> names;
  for (std::size_t i = 0; i < plan.cluster.devices.size(); ++i)
    names.push_back(tensorflow_device(plan, DeviceId(i)));
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

// The modules of a model by name, down to what holds weights.
struct Module {
  std::map<std::string, Module, std::less<>> children;
  std::optional<DeviceId> here;  // it holds weights itself
  std::optional<DeviceId> all;   // the device of everything below, if it is one
  bool mixed = false;
};

void add_module(Module& root, std::string_view name, DeviceId device) {
  Module* at = &root;
  const auto touch = [device](Module& module) {
    module.mixed = module.mixed || (module.all.has_value() && *module.all != device);
    module.all = device;
  };
  touch(root);
  for (const std::string_view part : parts_of(name)) {
    at = &at->children[std::string(part)];
    touch(*at);
  }
  at->here = device;
}

class DeviceMapWriter {
 public:
  DeviceMapWriter(JsonWriter& json, const Plan& plan) : json_(json), plan_(plan) {}

  void write(const Module& module, const std::string& name) {
    if (!module.mixed) {
      value(name, *module.all);
      return;
    }
    if (module.here.has_value()) value(name, *module.here);
    for (const auto& [part, child] : module.children)
      write(child, name.empty() ? part : name + "." + part);
  }

 private:
  void value(const std::string& name, DeviceId device) {
    if (spec_of(plan_, device).kind == "cpu")
      json_.field(name, "cpu");
    else
      json_.field(name, number_in_kind(plan_, device, false));
  }

  JsonWriter& json_;
  const Plan& plan_;
};

std::string to_device_map(const OpGraph& graph, const Plan& plan) {
  Module root;
  for (const OpId op : graph.ops())
    if (graph[op].permanent > Bytes(0)) add_module(root, graph[op].name, device_of(plan, op));
  if (!root.all.has_value())
    throw InputError(graph.name(), "no operator holds permanent memory: there is no module to map");
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  DeviceMapWriter(json, plan).write(root, "");
  json.end_object();
  json.finish();
  return text;
}

struct LayerPlace {  // in a name: whose layer, and which
  std::string family;
  std::size_t number = 0;
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
  std::string before;
  for (const std::string_view part : parts_of(name)) {
    if (const auto number = number_of(part); number.has_value() && !before.empty())
      return LayerPlace{before, *number};
    const std::size_t line = part.rfind('_');
    if (line != std::string_view::npos)
      if (const auto number = number_of(part.substr(line + 1)); number.has_value())
        return LayerPlace{before + "/" + std::string(part.substr(0, line)), *number};
    before += "/" + std::string(part);
  }
  return std::nullopt;
}

struct Layer {
  std::optional<DeviceId> device;
  OpId example{0};
};
struct Family {
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

std::string to_dot(const OpGraph& graph, const Plan& plan) { return plan_dot(graph, plan); }

constexpr std::array<ExportFormat, 6> kFormats{{
    {"csv", "a row per operator: device, times, memory", to_csv},
    {"dot", "Graphviz: coloured by device, at most 300 nodes", to_dot},
    {"device-map", "Hugging Face device_map: the device of every module that holds weights",
     to_device_map},
    {"tensorflow", "TensorFlow device string per node", to_tensorflow},
    {"vllm", "vLLM pipeline: layers per rank, for plans that cut between layers", to_vllm},
    {"llama-cpp", "llama.cpp: layers per device, for plans that cut between layers", to_llama_cpp},
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
