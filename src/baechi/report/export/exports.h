// SPDX-License-Identifier: Apache-2.0
// Plans as the settings of programs that run models: which part goes on which device, in their
// words (docs/how_to/exports.md).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/graph/op_graph.h"
#include "baechi/schedule/plan.h"

namespace baechi {

struct ExportFormat {
  std::string_view name;  // on the command line and in Python
  std::string_view summary;
  std::string (*write)(const OpGraph&, const Plan&);  // throws InputError when it cannot say it
  bool placement_alone = false;  // for a program that runs the model in an order of its own
};
std::span<const ExportFormat> export_formats();

// Throws InputError that lists the known names.
const ExportFormat& find_export_format(std::string_view name);

// How many of a model's layers each device has, for plans that give whole layers to devices, in
// order: layer 0 and the next few to one device, the following ones to another. Layers are numbered
// parts of the operators' names ("layers/3/mlp", "encoder.layer_3.dense"); of several numbered
// families the one that holds the most permanent memory counts, and of a layer what holds permanent
// memory. Throws InputError that says why a plan is not of this kind. Devices without a layer: 0.
std::vector<std::size_t> layers_per_device(const OpGraph& graph, const Plan& plan);

}  // namespace baechi
