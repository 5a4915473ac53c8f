// SPDX-License-Identifier: Apache-2.0
// A plan as a trace in the Trace Event Format (JSON) that Perfetto and chrome://tracing open.
#pragma once

#include <string>

#include "baechi/graph/unroll.h"
#include "baechi/schedule/plan.h"

namespace baechi {

// Devices are processes; computing and transfers are their threads; a flow leads from the operator
// that makes a tensor over its transfer to the first operator that reads it there; "memory" counts
// the bytes that a device holds; shared channels are threads of one more process. Events are in the
// order of time, metadata first. In a step of several micro-batches operators lie in slices "forward
// 3" and "backward 3" of their passes, which viewers colour by name, and "idle" says why a device runs
// nothing. Equal plans give equal text.
std::string trace_events(const StepGraph& step, const Plan& plan);

}  // namespace baechi
