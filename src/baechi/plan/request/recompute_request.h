// SPDX-License-Identifier: Apache-2.0
// What second runs are not for. Beyond the paper.
#pragma once

#include <string>

#include "baechi/graph/op_graph.h"
#include "baechi/plan/request/request.h"

namespace baechi {

// For people: why nothing runs again where nothing may.
std::string nothing_to_repeat(const OpGraph& graph);

// Throws InputError where the request asks for second runs along with what they are not for.
void check_recompute(const StepRequest& request);
// Why it would, if it asked for them; empty: it would not.
std::string why_no_recompute(const PlanRequest& request);

}  // namespace baechi
