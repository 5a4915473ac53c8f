// SPDX-License-Identifier: Apache-2.0
// A plan as an SVG picture: a lane per device, data flowing down.
#pragma once

#include <cstddef>
#include <string>

#include "baechi/graph/op_graph.h"
#include "baechi/schedule/plan.h"

namespace baechi {

// What plan_picture() chooses to show. Pointing at a node tells its name, times and colocation
// group, whose members have the same stripe; edges between devices say how much is sent. The file
// stands alone.
std::string plan_svg(const OpGraph& graph, const Plan& plan, std::size_t max_nodes = 300);

}  // namespace baechi
