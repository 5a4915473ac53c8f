// SPDX-License-Identifier: Apache-2.0
// A plan, or two beside each other, as one HTML file that needs nothing else: timeline, memory,
// critical path, methods, bounds, costs, warnings (docs/how_to/report.md).
#pragma once

#include <span>
#include <string>

#include "baechi/graph/unroll.h"
#include "baechi/report/html/report_plan.h"

namespace baechi {

// Equal input gives equal text. Requires one or two plans of this step.
std::string html_report(const StepGraph& step, std::span<const ReportPlan> plans);

}  // namespace baechi
