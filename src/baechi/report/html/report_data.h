// SPDX-License-Identifier: Apache-2.0
// What a report's page reads: one JSON document with the operators as columns, and one object per
// plan. Private to report/; html/model.js is its reader.
#pragma once

#include <span>
#include <string>

#include "baechi/graph/unroll.h"
#include "baechi/report/html/report_plan.h"

namespace baechi {

std::string report_data(const StepGraph& step, std::span<const ReportPlan> plans);

}  // namespace baechi
