// SPDX-License-Identifier: Apache-2.0
// A plan: the answer that leaves the product, complete enough to be stored, checked, explained and
// run without asking the planner again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"
#include "baechi/graph/recomputation.h"
#include "baechi/graph/replicas.h"
#include "baechi/graph/residency.h"
#include "baechi/schedule/execution_order.h"
#include "baechi/schedule/optimizer_pass.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

struct PlanDevice {  // what the simulator saw on one device
  Bytes peak;
  Time peak_at;
  std::optional<OpId> peak_op;
  Time busy;
  Bytes sent, received;
  std::optional<Bytes> run_peak = {};  // foreseen by who runs the plan, in an account of its own

  // What will be held at the most: the account of the run, where there is one.
  Bytes highest() const { return run_peak.value_or(peak); }

  friend bool operator==(const PlanDevice&, const PlanDevice&) = default;
};

struct NamedBound {  // no placement has a shorter step than `value`
  std::string name;  // "longest path", "load", "star", ...
  Time value;

  friend bool operator==(const NamedBound&, const NamedBound&) = default;
};

struct MethodOutcome {  // one row of the table of methods that were tried
  std::string method;
  std::optional<Time> makespan;        // absent: it found no plan that fits
  std::vector<std::string> fallbacks;  // what it took to fit, in order
  std::string reason;                  // why there is no plan, for people
  std::size_t devices_used = 0;        // that run at least one operator; 0 without a plan
  IdVector<DeviceId, Bytes> peaks;     // empty without a plan

  friend bool operator==(const MethodOutcome&, const MethodOutcome&) = default;
};

struct Plan {
  std::string graph_name;
  ClusterSpec cluster;
  MemoryMode memory_mode = MemoryMode::kDataflow;
  ExecutionOrder order = ExecutionOrder::kPlanned;  // of the executor that the plan is for
  // Of how many micro-batches the step consists, in each replica. With more than one, operators and
  // tensors here are those of the unrolled graph (graph/unroll.h).
  std::uint32_t micro_batches = 1;
  // Operators that run a second time, sorted. With any, operators and tensors here are those of the
  // graph that recomputing() makes of them.
  std::vector<Recomputation> recomputed = {};
  // Copies of the placement on devices of their own. With several, operators and tensors here are
  // those of the graph that replicated() makes of it, before it is unrolled.
  Replicas replicas = {};
  // What is kept in a host's memory. With any, operators and tensors here are those of the graph
  // that residing() makes of it.
  Residency residency = {};
  std::string method;                  // whose plan this is: "m-sct", "refine", "expert", ...
  std::vector<std::string> fallbacks;  // "headroom", "reserve", "repair", ... as they were needed
  Schedule schedule;                   // simulated and verified on the original graph
  IdVector<DeviceId, PlanDevice> devices;
  std::vector<NamedBound> bounds;      // valid lower bounds, the strongest first
  std::vector<OptimizerPass> passes;   // of the Graph Optimizer; empty when it was not asked
  std::vector<MethodOutcome> methods;  // what was tried, in order
  std::vector<std::string> notes;      // warnings and remarks for people

  // Whether who will run it has an account of its own of the memory.
  bool has_run_peaks() const { return !devices.empty() && devices.begin()->run_peak.has_value(); }
  Time makespan() const { return schedule.makespan; }
  // makespan / strongest bound - 1; absent when there is no positive bound.
  std::optional<double> gap() const {
    if (bounds.empty() || bounds.front().value <= Time(0)) return std::nullopt;
    return static_cast<double>(makespan().count()) /
               static_cast<double>(bounds.front().value.count()) -
           1.0;
  }

  friend bool operator==(const Plan&, const Plan&) = default;
};

// What the plan's executor runs, for the simulator to replay.
PlacedGraph placed_graph_of(const Plan& plan, const OpGraph& graph);

}  // namespace baechi
