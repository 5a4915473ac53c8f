// SPDX-License-Identifier: Apache-2.0
// Whether replicas may be had, and of how many micro-batches. Beyond the paper.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph.h"
#include "baechi/plan/request/request.h"

namespace baechi {

// Why there may be no replicas of the graph; empty: there may. Bytes that it does not tell of would
// be reduced for nothing.
std::string why_no_replicas(const OpGraph& graph);

// Of the numbers of micro-batches those that a number of replicas divides. Throws InputError where
// the request asks for replicas along with what they are not for, or for a number that divides
// none.
std::vector<std::uint32_t> shared_by_replicas(std::span<const std::uint32_t> micro_batches,
                                              const StepRequest& request);

// Throws InputError where the cluster or the graph cannot have them. `counts` are as StepRequest's.
void check_replicas(const OpGraph& graph, const Cluster& cluster,
                    std::span<const std::uint32_t> micro_batches,
                    std::span<const std::uint32_t> counts);

}  // namespace baechi
