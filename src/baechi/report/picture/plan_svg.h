// SPDX-License-Identifier: Apache-2.0
// A plan as an SVG picture: a lane per device, time flowing to the right, passes of
// micro-batches in colours, and why devices are idle. Beyond the paper.
#pragma once

#include <string>

#include "baechi/graph/unroll.h"
#include "baechi/schedule/plan.h"

namespace baechi {

// Operators of one micro-batch and direction that follow each other are one pass. Pointing at it
// tells its times. The file stands alone.
std::string plan_svg(const StepGraph& step, const Plan& plan);

}  // namespace baechi
