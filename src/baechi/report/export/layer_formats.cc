// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/export/layer_formats.h"

#include <optional>
#include <string_view>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/io/graph_def/write_graph_def.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/report/export/layers.h"

namespace baechi {
namespace {

const std::string& device_name(const Plan& plan, DeviceId device) {
  return plan.cluster.devices[device.index()].name;
}

std::string joined_counts(const std::vector<std::size_t>& counts) {
  std::string text;
  for (const std::size_t count : counts) text += (text.empty() ? "" : ",") + std::to_string(count);
  return text;
}

// What runs on an end of the layers must be on the device of the layer there; `why` is said when not.
void check_end(const OpGraph& graph, const Plan& plan, const Family& family, bool before,
               const std::string& why) {
  const Ends ends = ends_of(graph, family);
  const Layer& end = before ? family.layers.begin()->second : family.layers.rbegin()->second;
  for (const OpId op : before ? ends.before : ends.after)
    if (const DeviceId device = plan.schedule.slots[op].device; device != end.device)
      throw InputError(graph.name(), why + ": " + in_quotes(graph[op].name) + ", which runs " +
                                         (before ? "before" : "after") + " the layers, is on " +
                                         device_name(plan, device) + ", the " +
                                         (before ? "first" : "last") + " layer on " +
                                         device_name(plan, end.device));
}

// What runs before the first layer is the first stage's, and what runs after the last is the last
// one's: a split lies in front of a layer.
void check_ends(const OpGraph& graph, const Plan& plan, const Family& family) {
  for (const bool before : {true, false})
    check_end(graph, plan, family, before, "the plan is not a pipeline");
}

// Which devices are no GPUs to llama.cpp: of those only the first layers' may be.
void check_llama_cpp_devices(const OpGraph& graph, const Plan& plan,
                             const std::vector<std::size_t>& counts) {
  std::optional<DeviceId> gpu;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    const DeviceId device(i);
    if (!is_llama_cpp_cpu(graph, plan.cluster.devices[i]))
      gpu = device;
    else if (gpu.has_value())
      throw InputError(graph.name(),
                       "llama.cpp keeps the first layers on the CPU, and the plan "
                       "has layers on " +
                           device_name(plan, device) + " behind those on " +
                           device_name(plan, *gpu) +
                           ": name the CPU first in the cluster, and place again");
  }
}

// Megatron's embedding and loss are one piece each.
void check_one_piece(const OpGraph& graph, const Plan& plan, const std::vector<Stage>& stages,
                     std::vector<std::string> Stage::* modules, const char* what) {
  const Stage* found = nullptr;
  for (const Stage& stage : stages) {
    if ((stage.*modules).empty()) continue;
    if (found != nullptr)
      throw InputError(
          graph.name(),
          std::string("Megatron has ") + what + " in one stage, and the plan has " +
              in_quotes((found->*modules).front()) + " on " + device_name(plan, found->device) +
              " and " + in_quotes((stage.*modules).front()) + " on " +
              device_name(plan, stage.device) + ": pin them to one device, and place again");
    found = &stage;
  }
}

// Megatron's layout has letters for an embedding, layers of one kind and a loss.
void check_no_other_layers(const OpGraph& graph, const Family& family) {
  const Ends ends = ends_of(graph, family);
  for (const auto* ops : {&ends.before, &ends.after})
    for (const OpId op : *ops)
      if (layer_of(graph[op].name).has_value())
        throw InputError(graph.name(),
                         "this layout of Megatron has one kind of numbered layers, " +
                             in_quotes(graph[family.layers.begin()->second.example].name) +
                             " is in one, and " + in_quotes(graph[op].name) +
                             " in another: write the layout by hand");
}

}  // namespace

void check_one_host(const OpGraph& graph, const Plan& plan, std::string_view program) {
  for (const Device& device : plan.cluster.devices)
    if (const Device& first = plan.cluster.devices.front(); device.host != first.host)
      throw InputError(graph.name(), std::string(program) +
                                         " numbers the devices of one host, and " + first.name +
                                         " and " + device.name +
                                         " are on two: plan for a cluster of one host");
}

bool is_llama_cpp_cpu(const OpGraph& graph, const Device& device) {
  const std::string_view kind = framework_kind(device);
  if (kind == "TPU")
    throw InputError(graph.name(), "llama.cpp has no TPUs, and " + device.name + " is one");
  return kind == "CPU";
}

std::string to_vllm(const OpGraph& graph, const Plan& plan) {
  std::vector<std::size_t> counts = layers_per_device(graph, plan);
  for (std::size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > 0 && framework_kind(plan.cluster.devices[i]) == "CPU")
      throw InputError(graph.name(),
                       "a rank of vLLM's pipeline is an accelerator, and the plan has "
                       "layers on " +
                           plan.cluster.devices[i].name + ": plan for a cluster without CPUs");
  check_ends(graph, plan, largest_family(graph, plan));
  std::erase(counts, 0U);  // no pipeline rank without layers
  return "VLLM_PP_LAYER_PARTITION=" + joined_counts(counts) + "\n";
}

// llama.cpp offloads the last layers and, as one more behind them, the output, and splits these as
// --tensor-split says: so the last device that has layers has one more.
std::string to_llama_cpp(const OpGraph& graph, const Plan& plan) {
  check_one_host(graph, plan, "llama.cpp");
  const std::vector<std::size_t> counts = layers_per_device(graph, plan);
  check_llama_cpp_devices(graph, plan, counts);
  check_end(graph, plan, largest_family(graph, plan), false,
            "llama.cpp has the output with the last layer");
  std::vector<std::size_t> split;
  std::size_t offloaded = 0, last = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (is_llama_cpp_cpu(graph, plan.cluster.devices[i])) continue;
    if (counts[i] > 0) last = split.size();
    offloaded += counts[i];
    split.push_back(counts[i]);
  }
  if (offloaded == 0) return "--gpu-layers 0\n";
  ++split[last];
  return "--gpu-layers " + std::to_string(offloaded + 1) + " --split-mode layer --tensor-split " +
         joined_counts(split) + "\n";
}

std::string to_split_spec(const OpGraph& graph, const Plan& plan) {
  layers_per_device(graph, plan);  // refuses what is not layer-wise
  const Family family = largest_family(graph, plan);
  check_ends(graph, plan, family);
  return json_document([&](JsonWriter& json) {
    std::optional<DeviceId> last;
    for (const auto& [number, layer] : family.layers) {
      if (last.has_value() && layer.device != *last)
        json.field(layer_of(graph[layer.example].name)->module, "beginning");
      last = layer.device;
    }
  });
}

std::string to_module_fqns(const OpGraph& graph, const Plan& plan) {
  std::string text;
  JsonWriter json(text);
  json.begin_array();
  for (const Stage& stage : stages_of(graph, plan)) {
    json.begin_array(JsonWriter::Layout::kInline);
    for (const auto* modules : {&stage.before, &stage.layers, &stage.after})
      for (const std::string& module : *modules) json.value(module);
    json.end_array();
  }
  json.end_array();
  json.finish();
  return text;
}

std::string to_megatron(const OpGraph& graph, const Plan& plan) {
  const std::vector<Stage> stages = stages_of(graph, plan);
  check_no_other_layers(graph, largest_family(graph, plan));
  check_one_piece(graph, plan, stages, &Stage::before, "what runs before the layers");
  check_one_piece(graph, plan, stages, &Stage::after, "what runs after the layers");
  std::string layout;
  for (const Stage& stage : stages) {
    if (!layout.empty()) layout += '|';
    if (&stage == &stages.front()) layout += 'E';
    if (!stage.layers.empty()) layout += 't';
    if (stage.layers.size() > 1) layout += "*" + std::to_string(stage.layers.size());
  }
  return "--pipeline-model-parallel-size " + std::to_string(stages.size()) +
         " --pipeline-model-parallel-layout \"" + layout + "L\"\n";
}

}  // namespace baechi
