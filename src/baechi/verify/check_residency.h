// SPDX-License-Identifier: Apache-2.0
// That a step which keeps tensors in a host's memory is the one its list of them makes of the graph.
#pragma once

#include <string>
#include <vector>

#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"
#include "baechi/graph/residency.h"

namespace baechi {

// One sentence per broken rule; shares no code with residing(). `original` is of several micro-batches where
// `one` is the graph of one of them.
std::vector<std::string> check_residency(const OpGraph& original, const OpGraph& step,
                                         const ClusterSpec& cluster, const Residency& residency,
                                         const OpGraph* one = nullptr);

}  // namespace baechi
