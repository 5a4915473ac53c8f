// SPDX-License-Identifier: Apache-2.0
// One's own stages and order, for named schedules and for none. Beyond the paper.
#pragma once

#include <string>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/place/pipeline/blocks.h"
#include "baechi/place/pipeline/play.h"
#include "baechi/place/pipeline/stages.h"
#include "baechi/schedule/schedule.h"

namespace baechi::pipeline {

// A stage for each device that has operators. Throws InputError where a placement parts what stages
// have together, or the stages of two devices wait for each other.
Division as_placed(const Blocks& blocks, const Placement& placement);

// `order` has what each device runs, in words of in_words(). Throws InputError where these are not
// all parts of all micro-batches, each once and on the device of its stage.
Actions as_ordered(const StageGraph& graph, const Cluster& cluster,
                   const IdVector<DeviceId, std::vector<std::string>>& order);

}  // namespace baechi::pipeline
