// SPDX-License-Identifier: Apache-2.0
// A plan for a step of micro-batches: which number of them, and who of the methods does best with
// it. Beyond the paper.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph.h"
#include "baechi/graph/unroll.h"
#include "baechi/plan/request/answer.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/steps/sizes.h"

namespace baechi {

// `sizes` is the graph of a micro-batch, or, where the request has a mini-batch, the graph at one or
// more batch sizes. A micro-batch is then the mini-batch divided by their number; its costs lie
// between those of the sizes (graph/interpolated.h), or grow in proportion where there is one size
// only, which a note says. Of several numbers the one with the shortest step is taken, and notes
// tell what the others would have taken.
//
// Throws InputError as make_plan() does and as checked_numbers() does, and for micro-batches that are
// outside of the sizes.
StepPlan make_step_plan(std::vector<OpGraph> sizes, const Cluster& cluster,
                        const PlanRequest& request, PlanTimes* times = nullptr);

// The numbers of micro-batches that the request lets a step have, smallest first. Throws InputError
// for what no cluster could mend: a number that does not divide the mini-batch, several numbers
// without a mini-batch, `auto` with one size, an option or a method that is not for such steps.
std::vector<std::uint32_t> checked_numbers(const GraphSizes& sizes, const PlanRequest& request);

// For those who plan the same again and again: make_plan() where the request is about the graph as
// it is, else make_step_plan() without its step, which step_of() makes again.
PlanResult plan_sizes(const GraphSizes& sizes, const Cluster& cluster, const PlanRequest& request);
bool asks_for_steps(const GraphSizes& sizes, const PlanRequest& request);

// Of a step of so many micro-batches the graph of one, and the step; with one, the mini-batch as a
// whole.
OpGraph micro_batch_of(const GraphSizes& sizes, const PlanRequest& request,
                       std::uint32_t micro_batches);
Unrolled step_of(const GraphSizes& sizes, const PlanRequest& request, std::uint32_t micro_batches);

// How many samples a step of so many micro-batches has, if the graph says for how many its costs are.
std::optional<std::int64_t> samples_of_step(const GraphSizes& sizes, const PlanRequest& request,
                                            std::uint32_t micro_batches);

// That costs for one batch size were scaled to another, for people; empty if they were not.
std::string scaling_words(const GraphSizes& sizes, const PlanRequest& request);

}  // namespace baechi
