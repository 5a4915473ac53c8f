// SPDX-License-Identifier: Apache-2.0
// A plan as a picture of characters: per device when it computes, when it sends or receives, and
// how full it is; below, where the critical path is.
#pragma once

#include <cstddef>
#include <string>

#include "baechi/graph/op_graph.h"
#include "baechi/schedule/plan.h"

namespace baechi {

struct TerminalStyle {
  std::size_t width = 100;  // of the longest line, in columns; at least 40
  bool color = false;       // ANSI escape codes
  bool ascii = false;       // instead of Unicode block characters
};

std::string terminal_view(const OpGraph& graph, const Plan& plan, const TerminalStyle& style);

// The same, as numbers: {"column_ns", "devices": [{"name", "computing_ns", "moving_ns",
// "memory"}]}.
std::string terminal_view_json(const OpGraph& graph, const Plan& plan, std::size_t columns);

}  // namespace baechi
