// SPDX-License-Identifier: Apache-2.0
// pipeline: stages of one micro-batch's graph on devices, and an order of all micro-batches through
// them. Beyond the paper.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "baechi/base/cancel.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/unroll.h"
#include "baechi/place/pipeline/named.h"
#include "baechi/place/placer.h"

namespace baechi {

// A step of micro-batches: their graph and that of the whole step, on one cluster.
struct MicroBatchedStep {
  const CostModel& micro_batch;
  const Unrolled& unrolled;
  const CostModel& step;
};

struct PipelineOptions {
  std::int64_t work = 3'000'000;  // parts of micro-batches that the search plays
  const CancelFlag* cancel = nullptr;
  std::optional<Time> to_beat = {};  // another step: stages far behind it are not searched further
  // The stages of a named schedule, instead of those that it would make: operators of the
  // micro-batch by device. With an order, in words of in_words(), that runs instead.
  const Placement* expert = nullptr;
  const IdVector<DeviceId, std::vector<std::string>>* order = nullptr;
};

// Placement and order of the step's operators, judged by the Execution Simulator. No longer than
// any named schedule that fits.
PlaceResult place_pipeline(const MicroBatchedStep& step, const PipelineOptions& options);

// A named schedule, over stages of equally many layers on the devices as they are numbered, or over
// the best of `pipeline`'s divisions.
enum class NamedStages : std::uint8_t { kEqualLayers, kDivided };
PlaceResult place_named(const MicroBatchedStep& step, const pipeline::NamedSchedule& schedule,
                        NamedStages stages, const PipelineOptions& options);

// One's own stages and order: PipelineOptions::expert and order.
PlaceResult place_as_ordered(const MicroBatchedStep& step, const PipelineOptions& options);

// The methods that place steps of several micro-batches.
struct StepPlacer {
  std::string_view name;  // on the command line, in Python and in test names
  std::string_view summary;
  bool baseline = false;                              // a yardstick: shown as it is
  const pipeline::NamedSchedule* schedule = nullptr;  // absent: place_pipeline()
  NamedStages stages = NamedStages::kDivided;
};
std::span<const StepPlacer> step_placers();  // `pipeline` first
// Whether it is the name of one of them, which place no step of one micro-batch.
bool places_in_stages(std::string_view method);
// Whether it runs a named schedule that has one stage per device, and so over one's own stages.
bool takes_stages(std::string_view method);
// What is wrong with that method where a step has one micro-batch, for people.
std::string for_several_only(std::string_view method);
PlaceResult place_step(const StepPlacer& placer, const MicroBatchedStep& step,
                       const PipelineOptions& options);

}  // namespace baechi
