// SPDX-License-Identifier: Apache-2.0
// Loops of a GraphDef as TensorFlow 1 and frozen graphs have them: cycles of Merge, Switch and
// NextIteration instead of one While (beyond the paper, whose graphs are unrolled). Private to io/.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

namespace baechi {

// The node whose name each node of a loop goes by; other nodes are not in it. A loop has the name
// of its LoopCond. It holds what is on the cycle, and the Enters and Exits that belong to it alone;
// a loop within a loop is part of it. The names are those of `bytes`.
using GraphDefLoops = std::unordered_map<std::string_view, std::string_view>;
GraphDefLoops loops_of_graph_def(std::string_view bytes, const std::string& place);

// The same GraphDef with one node "While" for each loop: it takes what the loop takes and gives
// what others read of it. Throws InputError for what is no GraphDef.
std::string fold_loops(std::string_view bytes, const std::string& place,
                       const GraphDefLoops& loops);

}  // namespace baechi
