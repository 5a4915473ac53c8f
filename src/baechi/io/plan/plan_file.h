// SPDX-License-Identifier: Apache-2.0
// plan.json in and out (docs/reference/file_formats.md). A plan names operators and devices, so it
// outlives the numbering of either.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "baechi/graph/op_graph.h"
#include "baechi/graph/unroll.h"
#include "baechi/schedule/plan.h"

namespace baechi {

// Equal plans of equal graphs give equal text: no dates, no timings of the planner.
std::string plan_to_json(const Plan& plan, const OpGraph& graph);

// Throws InputError when the file is malformed or when it is no plan of this graph: an operator is
// missing, unknown or placed twice, a tensor does not exist. Whether the schedule keeps the rules
// of execution is verify/'s question, not this one's.
Plan read_plan(const std::filesystem::path& path, const OpGraph& graph);
Plan parse_plan(std::string_view text, const std::string& place, const OpGraph& graph);

// A plan of any number of micro-batches as its file has it. Of one, it is the whole plan. Of more,
// `placed` is what runs where and in which order, and `plan` lacks its slots and transfers: they
// follow by simulation (io/step/open_plan.h).
struct StepFile {
  Unrolled step;
  Plan plan;
  std::optional<PlacedGraph> placed;
  std::optional<OpGraph> original = {};  // the graph as given, where the step is another
};
StepFile parse_step_plan(std::string_view text, const std::string& place, OpGraph graph);
// The other way, for a plan whose ids are those of `step`.
std::string plan_to_json(const Plan& plan, const Unrolled& step);

// As far as a plan can be checked without its graph.
void check_plan_text(std::string_view text, const std::string& place);

}  // namespace baechi
