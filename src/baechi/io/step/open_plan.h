// SPDX-License-Identifier: Apache-2.0
// A plan's file with the graph that its ids belong to: of a step of micro-batches the unrolled one,
// with times by simulation. Beyond the paper.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "baechi/base/cancel.h"
#include "baechi/graph/op_graph.h"
#include "baechi/graph/unroll.h"
#include "baechi/schedule/plan.h"

namespace baechi {

struct OpenedPlan {
  Unrolled step;
  Plan plan;                             // about step.graph
  std::optional<OpGraph> original = {};  // the graph as given, where the step is another
};

// `graph` is that of one micro-batch. Throws InputError as read_plan() does, and when the order of a
// step of micro-batches waits for itself or does not take as long as the file says.
OpenedPlan open_plan(const std::filesystem::path& path, OpGraph graph,
                     const CancelFlag* cancel = nullptr);
OpenedPlan open_plan_text(std::string_view text, const std::string& place, OpGraph graph,
                          const CancelFlag* cancel = nullptr);

}  // namespace baechi
