// SPDX-License-Identifier: Apache-2.0
// A plan as a picture of characters: per device when it computes, when it sends or receives, and
// how full it is; below, where the critical path is.
#pragma once

#include <cstddef>
#include <string>

#include "baechi/graph/unroll.h"
#include "baechi/schedule/plan.h"

namespace baechi {

struct TerminalStyle {
  std::size_t width = 100;  // of the longest line, in columns; at least 40
  bool color = false;       // ANSI escape codes
  bool ascii = false;       // instead of Unicode block characters
  bool load = false;        // of several micro-batches, too: how busy, not with which
};

// Of several micro-batches: which one each device runs (a digit its forward pass, a letter its
// backward pass), and why devices are idle.
std::string terminal_view(const StepGraph& step, const Plan& plan, const TerminalStyle& style);

// The same, as numbers: {"column_ns", "devices": [{"name", "computing_ns", "moving_ns",
// "memory_bytes"}]}; of several micro-batches "micro_batches", and of every device "idle".
std::string terminal_view_json(const StepGraph& step, const Plan& plan, std::size_t columns);

}  // namespace baechi
