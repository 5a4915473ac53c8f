// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/export/layer_formats.h"

#include <optional>
#include <string_view>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
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

// What runs before the first layer is the first stage's, and what runs after the last is the last
// one's: a split lies in front of a layer.
void check_ends(const OpGraph& graph, const Plan& plan, const Family& family) {
  const auto check = [&](const std::vector<OpId>& ops, const Layer& end, bool before) {
    for (const OpId op : ops)
      if (const DeviceId device = plan.schedule.slots[op].device; device != end.device)
        throw InputError(graph.name(), "the plan is not a pipeline: " + in_quotes(graph[op].name) +
                                           ", which runs " + (before ? "before" : "after") +
                                           " the layers, is on " + device_name(plan, device) +
                                           ", the " + (before ? "first" : "last") + " layer on " +
                                           device_name(plan, end.device));
  };
  const Ends ends = ends_of(graph, plan, family);
  check(ends.before, family.layers.begin()->second, true);
  check(ends.after, family.layers.rbegin()->second, false);
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

}  // namespace

std::string to_vllm(const OpGraph& graph, const Plan& plan) {
  std::vector<std::size_t> counts = layers_per_device(graph, plan);
  std::erase(counts, 0U);  // no pipeline rank without layers
  return "VLLM_PP_LAYER_PARTITION=" + joined_counts(counts) + "\n";
}

std::string to_llama_cpp(const OpGraph& graph, const Plan& plan) {
  return "--split-mode layer --tensor-split " + joined_counts(layers_per_device(graph, plan)) +
         "\n";
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
    if (last.has_value() && layer.device != *last)
      json.field(layer_of(graph[layer.example].name)->module, "beginning");
    last = layer.device;
  }
  json.end_object();
  json.finish();
  return text;
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
