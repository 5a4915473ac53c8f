// SPDX-License-Identifier: Apache-2.0
// graph.json out (docs/reference/file_formats.md).
#pragma once

#include <string>

#include "baechi/graph/op_graph.h"

namespace baechi {

// One operator per line; read_graph() gives an equal graph back, with the same operator ids.
std::string graph_to_json(const OpGraph& graph);

}  // namespace baechi
