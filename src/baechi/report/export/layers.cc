// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/export/layers.h"

#include <algorithm>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"

namespace baechi {
namespace {

constexpr std::string_view kUpdate = "update:";  // of a weight

DeviceId placed_on(const Plan& plan, OpId op) { return plan.schedule.slots[op].device; }

const std::string& name_of(const Plan& plan, DeviceId device) {
  return plan.cluster.devices[device.index()].name;
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

// The module that an operator outside of the layers is part of: the largest that holds no layer.
std::string end_module(const OpGraph& graph, OpId op, std::string_view layer) {
  const std::string name = module_name(graph, op);
  if (layer.starts_with(name + "."))
    throw InputError(graph.name(), "operator " + in_quotes(graph[op].name) +
                                       " holds permanent memory beside the layers that are part "
                                       "of it: it is no module that a stage could have");
  std::string module = name.substr(0, own_prefix(name, layer));
  check_no_call(graph, op, module);
  return module;
}

// The one on the device, begun if need be.
Stage& stage_on(std::vector<Stage>& stages, DeviceId device) {
  const auto at = std::ranges::lower_bound(stages, device, {}, &Stage::device);
  if (at != stages.end() && at->device == device) return *at;
  return *stages.insert(at, Stage{.device = device, .before = {}, .layers = {}, .after = {}});
}

void add_once(std::vector<std::string>& modules, std::string module) {
  if (std::ranges::find(modules, module) == modules.end()) modules.push_back(std::move(module));
}

// Adds a module that is in no layer to its stage.
class EndModules {
 public:
  EndModules(const OpGraph& graph, const Plan& plan, std::string_view layer)
      : graph_(graph), plan_(plan), layer_(layer) {}

  std::string take(OpId op) {
    std::string module = end_module(graph_, op, layer_);
    const auto [known, added] = seen_.try_emplace(module, op);
    if (!added && placed_on(plan_, known->second) != placed_on(plan_, op))
      throw InputError(graph_.name(),
                       "operators " + in_quotes(graph_[known->second].name) + " and " +
                           in_quotes(graph_[op].name) + " are parts of one module, " + module +
                           ", on two devices: " + name_of(plan_, placed_on(plan_, known->second)) +
                           " and " + name_of(plan_, placed_on(plan_, op)));
    return module;
  }

 private:
  const OpGraph& graph_;
  const Plan& plan_;
  std::string layer_;
  std::map<std::string, OpId> seen_;
};

// Whether what an operator makes reaches a layer of the forward pass.
IdVector<OpId, bool> precede_layers(const OpGraph& graph, const Family& family) {
  IdVector<OpId, bool> precedes(graph.num_ops(), false);
  std::vector<OpId> open;
  for (const OpId op : graph.ops())
    if (!graph[op].backward && family.has(graph[op].name)) open.push_back(op);
  while (!open.empty()) {
    const OpId op = open.back();
    open.pop_back();
    for (const Edge& edge : graph.in_edges(op)) {
      if (precedes[edge.from]) continue;
      precedes[edge.from] = true;
      open.push_back(edge.from);
    }
  }
  return precedes;
}

// Stages as they come: a further one where the device changes.
struct Runs {
  std::vector<Stage> stages;

  void add(DeviceId device, std::vector<std::string> Stage::* part, const std::string& module) {
    const auto has = [&](const Stage& stage) {
      return std::ranges::find(stage.*part, module) != (stage.*part).end();
    };
    if (std::ranges::any_of(stages, has)) return;
    if (stages.empty() || stages.back().device != device)
      stages.push_back(Stage{.device = device, .before = {}, .layers = {}, .after = {}});
    (stages.back().*part).push_back(module);
  }
};

// What holds permanent memory in each layer, in the order in which it runs.
std::map<std::size_t, std::vector<OpId>> layer_ops(const OpGraph& graph, const Family& family) {
  std::map<std::size_t, std::vector<OpId>> ops;
  for (const OpId op : graph.topological_order())
    if (graph[op].permanent > Bytes(0) && !graph[op].backward && family.has(graph[op].name))
      ops[layer_of(graph[op].name)->number].push_back(op);
  return ops;
}

[[noreturn]] void refuse_end(const OpGraph& graph, const Plan& plan, OpId op, bool before,
                             DeviceId layer) {
  throw InputError(graph.name(),
                   "the plan is not a chain in the order of devices: " + in_quotes(graph[op].name) +
                       ", which runs " + (before ? "before" : "after") + " the layers, is on " +
                       name_of(plan, placed_on(plan, op)) + ", the " + (before ? "first" : "last") +
                       " layer on " + name_of(plan, layer));
}

}  // namespace

std::string module_name(const OpGraph& graph, OpId op) {
  std::string_view written = graph[op].name;
  const bool update = written.starts_with(kUpdate);
  if (update) written.remove_prefix(kUpdate.size());
  std::string name(written.substr(0, written.find(':')));
  std::ranges::replace(name, '/', '.');
  name.erase(0, std::min(name.find_first_not_of('.'), name.size()));
  if (update || graph[op].variable) name.resize(name.rfind('.') + 1);
  if (name.ends_with('.')) name.pop_back();
  return name;
}

void check_no_call(const OpGraph& graph, OpId op, std::string_view module) {
  const std::size_t mark = module.rfind('@');
  if (mark == std::string_view::npos || !number_of(module.substr(mark + 1)).has_value()) return;
  throw InputError(graph.name(),
                   "operator " + in_quotes(graph[op].name) +
                       " is a call that reads weights of the module around it, and no module that "
                       "could be named: give these weights a module of their own, and plan again");
}

std::size_t own_prefix(std::string_view name, std::string_view other) {
  const auto differ = std::ranges::mismatch(name, other);
  auto at = static_cast<std::size_t>(differ.in1 - name.begin());
  if (at == name.size()) return at;
  // `name` goes on within a level, or with a further one.
  const bool further = name[at] == '.' && at == other.size();
  return std::min(name.size(), name.find('.', further ? at + 1 : at));
}

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

bool Family::has(std::string_view op_name) const {
  const std::optional<LayerPlace> place = layer_of(op_name);
  return place.has_value() && place->family == name;
}

Family largest_family(const OpGraph& graph, const Plan& plan) {
  std::map<std::string, Family> families;
  for (const OpId op : graph.ops()) {
    if (graph[op].permanent == Bytes(0) || graph[op].name.starts_with(kUpdate)) continue;
    const std::optional<LayerPlace> place = layer_of(graph[op].name);
    if (!place.has_value()) continue;
    Family& family = families[place->family];
    family.name = place->family;
    family.permanent += graph[op].permanent;
    const auto [layer, added] =
        family.layers.try_emplace(place->number, Layer{placed_on(plan, op), op});
    if (!added && layer->second.device != placed_on(plan, op) && !family.split.has_value())
      family.split = std::pair(layer->second.example, op);
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

std::vector<std::size_t> layers_per_device(const OpGraph& graph, const Plan& plan) {
  const Family family = largest_family(graph, plan);
  if (family.split.has_value()) {
    const auto [a, b] = *family.split;
    throw InputError(graph.name(), "the plan is not layer-wise: '" + std::string(graph[a].name) +
                                       "' is on " + name_of(plan, placed_on(plan, a)) + ", '" +
                                       std::string(graph[b].name) + "' of the same layer on " +
                                       name_of(plan, placed_on(plan, b)));
  }
  std::vector<std::size_t> counts(plan.cluster.devices.size());
  std::optional<DeviceId> last;
  for (const auto& [number, layer] : family.layers) {
    if (last.has_value() && layer.device < *last)
      throw InputError(graph.name(), "the plan is not layer-wise in the order of devices: layer " +
                                         std::to_string(number) + " is on " +
                                         name_of(plan, layer.device) + ", the one before it on " +
                                         name_of(plan, *last));
    last = layer.device;
    ++counts[layer.device.index()];
  }
  return counts;
}

Ends ends_of(const OpGraph& graph, const Family& family) {
  const IdVector<OpId, bool> before = precede_layers(graph, family);
  Ends ends;
  // A call behind the layers that reads a weight of what is before them: the two are tied.
  const auto is_tied = [&](OpId op) {
    return !before[op] && std::ranges::any_of(graph.in_edges(op), [&](const Edge& edge) {
      return graph[edge.from].variable && before[edge.from] && !family.has(graph[edge.from].name);
    });
  };
  for (const OpId op : graph.ops()) {
    if (graph[op].backward || family.has(graph[op].name)) continue;
    if (graph[op].variable && graph.out_edges(op).empty()) continue;  // nothing reads it
    if (graph[op].permanent == Bytes(0) && !is_tied(op)) continue;
    (before[op] ? ends.before : ends.after).push_back(op);
  }
  return ends;
}

std::vector<Stage> stages_of(const OpGraph& graph, const Plan& plan) {
  layers_per_device(graph, plan);  // refuses what is not layer-wise
  const Family family = largest_family(graph, plan);
  const Ends ends = ends_of(graph, family);
  const Layer &first = family.layers.begin()->second, &last = family.layers.rbegin()->second;
  std::vector<Stage> stages;
  for (const auto& [number, layer] : family.layers)
    stage_on(stages, layer.device).layers.push_back(layer_of(graph[layer.example].name)->module);
  EndModules modules(graph, plan, stages.front().layers.front());
  for (const OpId op : ends.before) {
    const DeviceId device = placed_on(plan, op);
    if (device > first.device) refuse_end(graph, plan, op, true, first.device);
    add_once(stage_on(stages, device).before, modules.take(op));
  }
  for (const OpId op : ends.after) {
    const DeviceId device = placed_on(plan, op);
    if (device < last.device) refuse_end(graph, plan, op, false, last.device);
    add_once(stage_on(stages, device).after, modules.take(op));
  }
  return stages;
}

std::vector<Stage> chain_of(const OpGraph& graph, const Plan& plan) {
  const Family family = largest_family(graph, plan);
  const Ends ends = ends_of(graph, family);
  Runs runs;
  EndModules modules(graph, plan,
                     layer_of(graph[family.layers.begin()->second.example].name)->module);
  for (const OpId op : ends.before) runs.add(placed_on(plan, op), &Stage::before, modules.take(op));
  for (const auto& [number, ops] : layer_ops(graph, family)) {
    const auto device = placed_on(plan, ops.front());
    const auto here = [&](OpId op) { return placed_on(plan, op) == device; };
    const bool whole = std::ranges::all_of(ops, here);
    for (const OpId op : ops) {
      const std::string name = module_name(graph, op);
      if (!whole) check_no_call(graph, op, name);
      runs.add(placed_on(plan, op), &Stage::layers,
               whole ? layer_of(graph[op].name)->module : name);
    }
  }
  for (const OpId op : ends.after) runs.add(placed_on(plan, op), &Stage::after, modules.take(op));
  return runs.stages;
}

}  // namespace baechi
