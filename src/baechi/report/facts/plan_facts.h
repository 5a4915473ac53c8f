// SPDX-License-Identifier: Apache-2.0
// All that pictures of a plan show and the plan itself does not say: bars, memory curves and what
// they are made of, reasons to wait, the critical path, broken rules.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/graph/op_graph.h"
#include "baechi/graph/unroll.h"
#include "baechi/report/facts/bubbles.h"
#include "baechi/report/facts/memory_curves.h"
#include "baechi/report/facts/timeline_bars.h"
#include "baechi/report/facts/waits.h"
#include "baechi/schedule/plan.h"
#include "baechi/simulate/critical_path.h"
#include "baechi/simulate/held_memory.h"

namespace baechi {

struct PeakFacts {  // by the schedule, whatever the plan claims
  Bytes bytes;
  Time at;
  std::array<Bytes, 4> parts;       // by MemoryUse
  std::vector<HeldMemory> holders;  // the largest first (ties: smallest operator)
  std::size_t more_holders = 0;     // that are not listed
};

struct PlanFactsLimits {  // what a page can show
  std::size_t bars = 30'000;
  std::size_t transfers = 30'000;
  std::size_t curve_points = 16'000;  // over all devices
  std::size_t holders = 12;           // per device
  std::size_t bubbles = 20'000;       // the longest
  std::size_t path_parts = 20'000;
};

// Links of the critical path that follow each other; `longest` is one of them.
struct PathPart {
  std::size_t longest = 0;  // into the path's links
  Time start, end;
};

struct PlanFacts {
  IdVector<DeviceId, std::vector<TimelineBar>> bars;
  std::vector<std::size_t> transfers;  // those that are shown
  IdVector<DeviceId, MemoryCurve> curves;
  bool curves_thinned = false;
  IdVector<DeviceId, PeakFacts> peaks;
  Waits waits;
  IdVector<DeviceId, DeviceBubbles> bubbles;  // of several micro-batches; else empty
  CriticalPath path;                          // empty when something starts for no reason
  std::vector<PathPart> path_parts;           // one per link, or fewer when there are too many
  std::vector<std::string> broken;            // what verify/ objects to
};

PlanFacts plan_facts(const StepGraph& step, const Plan& plan, const PlanFactsLimits& limits = {});

}  // namespace baechi
