// SPDX-License-Identifier: Apache-2.0
// What limits a pipeline, and what another number of micro-batches or more memory would bring.
// Beyond the paper.
#pragma once

#include <optional>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/base/units.h"
#include "baechi/plan/steps/sizes.h"
#include "baechi/schedule/plan.h"
#include "baechi/study/what_if.h"

namespace baechi {

// The device that computes, or the pair of devices that sends, for the longest part of the step: its
// stage is what every other one waits for in the end.
struct PipelineLimit {
  DeviceId device{0};               // that computes, or sends
  std::optional<DeviceId> to = {};  // ... to this one
  Time busy = {};
};
PipelineLimit pipeline_limit(const Plan& plan);

// Plans again, each with kBudgetOfMany: for the next smaller and the next larger number of
// micro-batches that divides the mini-batch, if the graph says for how many samples its costs are,
// and for twice the memory. Steps of more than kMostForNextSteps operators are left alone: these
// take too long for a question that nobody asked.
inline constexpr std::size_t kMostForNextSteps = 20'000;
std::vector<ScenarioOutcome> next_steps(const GraphSizes& sizes, const Plan& plan,
                                        const CancelFlag* cancel);

}  // namespace baechi
