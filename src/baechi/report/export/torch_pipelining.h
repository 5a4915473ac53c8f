// SPDX-License-Identifier: Apache-2.0
// A plan as torch.distributed.pipelining runs it: stages, and what each rank does in which order.
#pragma once

#include <string>

#include "baechi/graph/op_graph.h"
#include "baechi/schedule/plan.h"

namespace baechi {

// Of a plan whose stages are a chain: each is a run of whole modules on one device and hands what it
// makes to the next alone. `graph` is that of one micro-batch. Throws InputError, which names the
// operators, for any other plan.
std::string to_torch_pipelining(const OpGraph& graph, const Plan& plan);

}  // namespace baechi
