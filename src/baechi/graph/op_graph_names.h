// SPDX-License-Identifier: Apache-2.0
// The names of a graph: private to graph/, shared by OpGraph and its builder.
#pragma once

#include "baechi/graph/name_arena.h"
#include "baechi/graph/name_index.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

struct OpGraph::Names {
  NameArena arena;
  NameIndex op_by_name;
};

}  // namespace baechi
