// SPDX-License-Identifier: Apache-2.0
// The names of a graph: private to graph/, shared by OpGraph and its builder.
#pragma once

#include <tsl/robin_map.h>

#include <string_view>

#include "baechi/base/id.h"
#include "baechi/graph/name_arena.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

struct OpGraph::Names {
  NameArena arena;
  tsl::robin_map<std::string_view, OpId> op_by_name;
};

}  // namespace baechi
