// SPDX-License-Identifier: Apache-2.0
// Plans of models of numbered layers: which layers are on which device, and what runs before and
// behind them.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "baechi/graph/op_graph.h"
#include "baechi/schedule/plan.h"

namespace baechi {

// The module that an operator is part of, by its name: "." between the levels instead of "/". A call of
// PyTorch ("layers.0.mlp:mm:0") is of what stands before its ":", a weight of what holds it.
std::string module_name(const OpGraph& graph, OpId op);

// Throws InputError when a module's name, of which the operator is a part, is that of a call
// ("add@0"): a call that reads weights of the module around it is no module.
void check_no_call(const OpGraph& graph, OpId op, std::string_view module);

// The length of the shortest prefix of levels of `name` that `other` does not begin with; all of
// `name` when there is none.
std::size_t own_prefix(std::string_view name, std::string_view other);

struct LayerPlace {  // in a name: whose layer, and which
  std::string family;
  std::size_t number = 0;
  std::string module;  // the layer as a module: "layers.3"
};
// The first numbered part: "layers/3" or "layer_3".
std::optional<LayerPlace> layer_of(std::string_view name);

struct Layer {
  DeviceId device{0};  // of the first operator that holds memory
  OpId example{0};     // that one
};
struct Family {
  std::string name;
  Bytes permanent;
  std::map<std::size_t, Layer> layers;
  std::optional<std::pair<OpId, OpId>> split;  // two operators of one layer on two devices

  bool has(std::string_view op_name) const;
};
// Layers are numbered parts of the operators' names ("layers/3/mlp", "encoder.layer_3.dense"); of
// several numbered families the one that holds the most permanent memory, and of a layer what holds
// permanent memory. Throws InputError when there is none.
Family largest_family(const OpGraph& graph, const Plan& plan);

// How many of a model's layers each device has, for plans that give whole layers to devices, in
// order: layer 0 and the next few to one device, the following ones to another. Throws InputError
// that says why a plan is not of this kind. Devices without a layer: 0.
std::vector<std::size_t> layers_per_device(const OpGraph& graph, const Plan& plan);

// The forward operators with permanent memory that are in no layer, in the graph's order: `before`
// are those that a layer depends on.
struct Ends {
  std::vector<OpId> before, after;
};
Ends ends_of(const OpGraph& graph, const Family& family);

// One device's part of a model that a plan cuts into a chain: modules, each once.
struct Stage {
  DeviceId device{0};
  std::vector<std::string> before, layers, after;
};
// In the order of devices, those that hold something. Throws InputError, as layers_per_device does,
// when the plan is no chain in the order of devices.
std::vector<Stage> stages_of(const OpGraph& graph, const Plan& plan);

// The same in the order in which modules run, for plans in which a device may have several stages:
// each is a run of modules on one device, whole layers where a layer is on one.
std::vector<Stage> chain_of(const OpGraph& graph, const Plan& plan);

}  // namespace baechi
