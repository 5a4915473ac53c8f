// SPDX-License-Identifier: Apache-2.0
// A plan as text for a terminal: the table of methods, and what each device does.
#pragma once

#include <string>
#include <vector>

#include "baechi/graph/op_graph.h"
#include "baechi/plan/request/answer.h"
#include "baechi/schedule/plan.h"

namespace baechi {

// One row per method that was tried: step time, gap to the strongest bound, peaks, devices used,
// fall-backs, and the time it took to place. The winner is marked.
std::string methods_text(const Plan& plan, const std::vector<MethodTime>& times);
std::string methods_text(const std::vector<MethodOutcome>& methods,
                         const std::vector<MethodTime>& times);

// One row per pass of the Graph Optimizer: the graph before and after, and the CPU time, if known.
std::string passes_text(const std::vector<OptimizerPass>& passes, const std::vector<Time>& times);

// One row per device: operators, busy share, peak against capacity, what is sent and received.
std::string devices_text(const Plan& plan, const OpGraph& graph);

// The plan in ten lines: its headline, what other methods reached, and a row for each of a few
// devices.
std::string brief_text(const Plan& plan);

// " in program order", " without an order", or nothing: how the step of the plan is run.
std::string order_words(const Plan& plan);

// One sentence when fewer devices than the cluster has are as fast, up to a hundredth, as far as
// the methods tell; empty otherwise.
std::string fewer_devices_words(const Plan& plan);

// What a step takes where only the placement is taken over, beside what it takes as planned.
struct OrderlessStep {
  Time makespan;      // without an order
  std::string words;  // one sentence
};
OrderlessStep orderless_step(const OpGraph& graph, const Plan& plan);

// "step 267 ms by m-sct, at most 12% above the best possible (longest path 239 ms)".
std::string headline(const Plan& plan);
// " with 4 replicas", for which alone its bounds hold; nothing of one.
std::string with_replicas(const Plan& plan);

}  // namespace baechi
