// SPDX-License-Identifier: Apache-2.0
// Who places a step of several micro-batches. Beyond the paper.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/graph/unroll.h"
#include "baechi/plan/request/answer.h"
#include "baechi/plan/request/request.h"

namespace baechi {

// A step of more than one micro-batch; all that it refers to outlives it.
struct StepProblem {
  const CostModel& micro_batch;  // of the graph of one micro-batch
  const Unrolled& step;
  const CostModel& costs;  // of step.graph
  const PlanRequest& request;
  std::optional<Time> to_beat = {};  // the shortest step so far
};

// What one of them found, the best first looked at by its simulated step time.
struct StepAnswer {
  std::string method;                 // whose placement it is, as a row of `methods` names it
  std::optional<PlacedGraph> placed;  // of step.graph, with orders; it fits, by simulation
  Time makespan;                      // of `placed`
  std::optional<Time> in_sequence;    // of all micro-batches one after the other, each at its best
  std::vector<std::string> fallbacks;
  std::vector<MethodOutcome> methods;
  std::vector<OptimizerPass> passes;
  std::vector<NamedBound> bounds;
  std::vector<std::string> notes;
  std::optional<Unplaceable> unplaceable;  // where it is sure of the reason
};

struct StepMethod {
  std::string_view name;
  bool (*asked)(const PlanRequest& request);
  StepAnswer (*run)(const StepProblem& problem);
  bool whole_step = false;  // it looks at every operator of every micro-batch on its own
};
std::span<const StepMethod> step_methods();

// The methods of a step of one micro-batch on the unrolled graph.
StepAnswer place_unrolled(const StepProblem& problem);

// Stages, and an order of all micro-batches through them: `pipeline`, and named schedules beside it
// where they are asked for.
StepAnswer place_in_stages(const StepProblem& problem);

// Of a large step: cuts of all of it, with orders by the longest way to the end.
StepAnswer cut_step(const StepProblem& problem);

// Placements of one micro-batch, each under a few orders of the step: micro-batches one after the
// other, backward or forward first, and at most so many at a time.
StepAnswer replay_micro_batch(const StepProblem& problem);

}  // namespace baechi
