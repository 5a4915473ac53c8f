// SPDX-License-Identifier: Apache-2.0
// Operators whose names are like one that does not exist: for messages about a misspelt name.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/graph/op_graph.h"

namespace baechi {

// At most `count`, the nearest first: names that contain the text (the shortest first), then names
// that few edits away turn into it. Letter case does not matter.
std::vector<std::string> near_names(const OpGraph& graph, std::string_view text,
                                    std::size_t count = 5);

// The operator of that name. Throws InputError with the near names when there is none.
OpId find_operator(const OpGraph& graph, std::string_view name);

}  // namespace baechi
