// SPDX-License-Identifier: Apache-2.0
// Graphviz DOT out: what feeds what, colocation groups as clusters, operators coloured by device.
#pragma once

#include <string>
#include <string_view>

#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

struct PlacementColors {  // borrowed
  const Placement* placement = nullptr;
  const ClusterSpec* cluster = nullptr;
};

// With a placement, operators are coloured and labelled by device.
std::string graph_to_dot(const OpGraph& graph, const PlacementColors& colors = {});

// Text in quotes, as DOT has it; the light fill of a device.
std::string dot_text(std::string_view text);
std::string_view dot_fill(DeviceId device);

}  // namespace baechi
