// SPDX-License-Identifier: Apache-2.0
// What a request says of a step: whether it is about one, of which micro-batches it may consist, and
// what these are. Beyond the paper.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "baechi/graph/op_graph.h"
#include "baechi/graph/unroll.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/steps/sizes.h"

namespace baechi {

// Whether the request is about more than the graph as it is: several micro-batches or sizes, second
// runs, or tensors that a host keeps.
bool asks_for_steps(const GraphSizes& sizes, const StepRequest& request);

// The numbers of micro-batches that the request lets a step have, smallest first. Throws InputError
// for what no cluster could mend: a number that does not divide the mini-batch, several numbers
// without a mini-batch, `auto` with one size, an option or a method that is not for such steps.
std::vector<std::uint32_t> checked_numbers(const GraphSizes& sizes, const StepRequest& request);

// Of a step of so many micro-batches the graph of one, and the step; with one, the mini-batch as a
// whole.
OpGraph micro_batch_of(const GraphSizes& sizes, const StepRequest& request,
                       std::uint32_t micro_batches);
Unrolled step_of(const GraphSizes& sizes, const StepRequest& request, std::uint32_t micro_batches);

// How many samples a step of so many micro-batches has, if the graph says for how many its costs are.
std::optional<std::int64_t> samples_of_step(const GraphSizes& sizes, const StepRequest& request,
                                            std::uint32_t micro_batches);

// That costs for one batch size were scaled to another, for people; empty if they were not.
std::string scaling_words(const GraphSizes& sizes, const StepRequest& request);
std::string scaled_from(std::int64_t size, const std::string& samples);  // "4, 2"

}  // namespace baechi
