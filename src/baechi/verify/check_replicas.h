// SPDX-License-Identifier: Apache-2.0
// Whether a graph is that of replicas which reduce what their micro-batches give the step, and
// whether they are apart: with code of its own. Beyond the paper.
#pragma once

#include <string>
#include <vector>

#include "baechi/graph/op_graph.h"
#include "baechi/graph/replicas.h"
#include "baechi/graph/unroll.h"
#include "baechi/schedule/plan.h"

namespace baechi {

// One sentence per fault of `all` as the graph of replicas of `one` (docs/reference/semantics.md,
// "Replicas"): tensors in no bucket or two, what a replica's operator or one of a ring holds,
// takes, outputs, waits for or shares a device with. Empty when it is right.
std::vector<std::string> check_replicas(const OpGraph& one, const OpGraph& all,
                                        const Replicas& replicas);

// One sentence per device that has operators of two replicas.
std::vector<std::string> check_apart(const StepGraph& step, const Plan& plan);

}  // namespace baechi
