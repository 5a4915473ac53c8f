// SPDX-License-Identifier: Apache-2.0
// What-if and sweep as one HTML page that needs nothing else: a chart, and all figures in a table
// (docs/how_to/report.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "baechi/study/sweep.h"
#include "baechi/study/what_if.h"

namespace baechi {

// Equal input gives equal text. `title` is of the model; the first outcome is what the others are
// compared with.
std::string what_if_page(std::string_view title, const std::vector<ScenarioOutcome>& outcomes);

// A curve per method over the devices or, where only one number of them was asked for, over the
// memory; one per method and memory where both vary.
std::string sweep_page(std::string_view title, const std::vector<GridPoint>& points);

}  // namespace baechi
