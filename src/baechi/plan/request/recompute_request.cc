// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/request/recompute_request.h"

#include <algorithm>

#include "baechi/plan/request/planner_options.h"

namespace baechi {

std::string nothing_to_repeat(const OpGraph& graph) {
  if (graph.memory_mode() == MemoryMode::kRetain)
    return "nothing is recomputed: the graph's memory mode is retain, which keeps all outputs of "
           "the forward pass";
  const bool backward = std::any_of(graph.ops().begin(), graph.ops().end(),
                                    [&](OpId op) { return graph[op].backward; });
  return backward ? "nothing is recomputed: no operator of the forward pass may run again"
                  : "nothing is recomputed: no operator of the graph is marked as backward";
}

std::string why_no_recompute(const PlanRequest& request) {
  if (request.place.order == ExecutionOrder::kNone)
    return "without an order a device would run operators again as soon as it could, and nothing "
           "would be saved: ask for the planned order or that of the program";
  if (request.place.expert != nullptr) return "an expert's placement has no second runs";
  return "";
}

void check_recompute(const StepRequest& request) {
  if (request.second_runs() == Recompute::kNone) return;
  if (const std::string why = why_no_recompute(request.search); !why.empty())
    throw OptionError("recompute", why);
}

}  // namespace baechi
