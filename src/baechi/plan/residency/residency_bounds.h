// SPDX-License-Identifier: Apache-2.0
// Lower bounds on plans that may keep tensors in a host's memory (docs/explanation/bounds.md). Beyond the paper.
#pragma once

#include <vector>

#include "baechi/plan/residency/residency_choice.h"
#include "baechi/schedule/plan.h"

namespace baechi {

// Those of the graph with ample memory and without colocation groups, which residency may break; and,
// where transfers wait on queues of the devices beside the host, what has to cross each link.
std::vector<NamedBound> residency_bounds(const ResidencyProblem& problem,
                                         bool copies_apart = false);

}  // namespace baechi
