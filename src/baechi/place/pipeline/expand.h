// SPDX-License-Identifier: Apache-2.0
// From stages and the order of their parts to operators of the unrolled graph. Beyond the paper.
#pragma once

#include "baechi/graph/unroll.h"
#include "baechi/place/pipeline/blocks.h"
#include "baechi/place/pipeline/play.h"
#include "baechi/place/pipeline/stages.h"
#include "baechi/schedule/schedule.h"

namespace baechi::pipeline {

// The device of every operator of the step, and what each device runs in which order: operators of
// the step that micro-batches wait for, the parts as in `actions`, and all others of the step.
PlacedGraph expand(const Blocks& blocks, const Division& division, const Actions& actions,
                   const Unrolled& unrolled);

}  // namespace baechi::pipeline
