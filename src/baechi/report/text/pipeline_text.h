// SPDX-License-Identifier: Apache-2.0
// A pipeline for people and for programs: what limits it, why its devices are idle, and what another
// number of micro-batches or more memory would bring. Beyond the paper.
#pragma once

#include <string>
#include <vector>

#include "baechi/io/json/json_writer.h"
#include "baechi/report/facts/bubbles.h"
#include "baechi/schedule/plan.h"
#include "baechi/study/next_steps.h"

namespace baechi {

struct PipelineExplanation {
  IdVector<DeviceId, DeviceBubbles> bubbles;
  PipelineLimit limit;
  std::vector<ScenarioOutcome> next;
  bool scaled = false;  // the costs of other numbers, from those of one batch size
};

std::string pipeline_text(const Plan& plan, const PipelineExplanation& told);

// As the field "pipeline": {"micro_batches", "limit", "next"}.
void write_pipeline(JsonWriter& json, const Plan& plan, const PipelineExplanation& told);

// A table of one line per device, with shares of the step.
std::string bubbles_text(const Plan& plan, const IdVector<DeviceId, DeviceBubbles>& bubbles);
// Of one device, as the field "idle": {"fill", ...}, nanoseconds.
void write_bubbles(JsonWriter& json, const DeviceBubbles& bubbles);

}  // namespace baechi
