// SPDX-License-Identifier: Apache-2.0
// The names of a graph: private to graph/, shared by OpGraph and its builder.
#pragma once

#include "baechi/graph/name_arena.h"
#include "baechi/graph/name_index.h"

namespace baechi {

struct OpGraphNames {
  NameArena arena;
  NameIndex op_by_name;
};

}  // namespace baechi
