// SPDX-License-Identifier: Apache-2.0
// Whether the graph of a step is that of its micro-batches, rule by rule from the graph of one: with
// code of its own. Beyond the paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "baechi/graph/op_graph.h"

namespace baechi {

// One sentence per fault of `step` as the unrolled graph of `one` (docs/reference/semantics.md,
// "Micro-batches"): copies missing or too many, what a copy or a sum holds, takes, outputs, waits
// for or shares a device with. Empty when it is right. Stops after so many.
std::vector<std::string> check_micro_batches(const OpGraph& one, const OpGraph& step,
                                             std::uint32_t micro_batches,
                                             std::size_t max_violations = 20);

}  // namespace baechi
