// SPDX-License-Identifier: Apache-2.0
// What another cluster, or another mini-batch, would bring: every scenario is planned anew. Beyond
// the paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/steps/sizes.h"

namespace baechi {

struct Scenario {
  std::string name;
  ClusterSpec cluster;
  // Of the mini-batch; absent: the request's, or the graph's own.
  std::optional<std::int64_t> batch_size = {};
};

struct ScenarioOutcome {
  std::string name;
  std::size_t devices = 0, devices_used = 0;
  std::optional<std::int64_t> batch_size = {};  // of the mini-batch
  std::uint32_t micro_batches = 1;              // that a step of the plan consists of
  std::optional<Time> makespan = {};            // absent: no plan was found
  std::optional<double> gap = {};
  std::string method;  // whose plan it is; kPresentPlan when it is the old one
  std::vector<std::string> fallbacks;
  Bytes highest_peak = {};
  bool proved = false;  // that nothing fits
  std::string reason;   // when there is no plan

  friend bool operator==(const ScenarioOutcome&, const ScenarioOutcome&) = default;
};

// The cluster as it is comes first; then one device of each sort more and fewer, half and twice
// the memory, faster links than the present ones (of the device presets), devices twice as fast,
// devices of kinds that the graph knows times for and the cluster does not have, and half and twice
// the mini-batch when the graph says for which its costs are and the numbers of micro-batches that
// the request asks for divide it. Throws InputError as checked_numbers() does.
std::vector<Scenario> standard_scenarios(const GraphSizes& sizes, const ClusterSpec& cluster,
                                         const StepRequest& request);

// What an outcome's method is when planning anew found nothing shorter than the plan of the cluster
// as it is, replayed on the scenario's.
inline constexpr std::string_view kPresentPlan = "present plan";
// What it begins with, before the name of another scenario, when that one has less of everything and
// yet the shorter plan, which is then this one's as well.
inline constexpr std::string_view kPlanOf = "plan of: ";

struct ScenarioRun {
  ScenarioOutcome outcome;
  std::optional<Plan> plan = {};
};

// Plans as plan_sizes() does, and keeps the better of that and of `present`, a plan of the same
// graph (whatever the batch) whose devices are found by name: more devices or memory are never
// worse. A scenario that cannot be (an operator pinned to a device that is gone, a pair of devices
// without a link, times that overflow) is an outcome without a plan, with the reason.
ScenarioRun run_scenario(const GraphSizes& sizes, const Scenario& scenario, StepRequest request,
                         const Plan* present = nullptr);

// Runs them all; the first one's plan is the present one for the others, and more of anything never
// makes a step longer: see kPlanOf. `told`, if given, hears of
// each before it is run. Stopped by the request's flag: those so far, of which the last is the best
// plan that its search had found; throws Cancelled when there is none.
std::vector<ScenarioOutcome> run_scenarios(const GraphSizes& sizes,
                                           const std::vector<Scenario>& scenarios,
                                           const StepRequest& request,
                                           const std::function<void(const Scenario&)>& told = {});

}  // namespace baechi
