// SPDX-License-Identifier: Apache-2.0
#include "baechi/study/least.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/plan/fit/memory_needs.h"
#include "baechi/plan/request/answer.h"
#include "baechi/plan/steps/step_plan.h"
#include "baechi/plan/steps/step_request.h"
#include "baechi/study/cluster_edits.h"
#include "baechi/study/unless_cancelled.h"

namespace baechi {
namespace {

// A plan on that cluster, or none; `proved` when none can exist.
struct Probe {
  std::optional<Plan> plan = {};
  bool proved = false;
};

Probe try_cluster(const GraphSizes& sizes, ClusterSpec spec, StepRequest request) {
  throw_if_cancelled(request.search.place.cancel);
  request.search.suggest = false;
  const Cluster cluster(std::move(spec));
  PlanResult result = plan_sizes(sizes, cluster, request);
  if (auto* plan = std::get_if<Plan>(&result)) return {std::move(*plan)};
  throw_if_cancelled(request.search.place.cancel);
  return {std::nullopt, std::get<Unplaceable>(result).proved};
}

// What plans may be about: the graph, or the step of each number of micro-batches.
class Steps {
 public:
  Steps(const GraphSizes& sizes, const StepRequest& request) {
    if (!asks_for_steps(sizes, request)) {
      graphs_.push_back(&sizes.first());
      return;
    }
    for (const std::uint32_t number : checked_numbers(sizes, request))
      steps_.push_back(step_of(sizes, request, number));
    for (const Unrolled& step : steps_) graphs_.push_back(&step.graph);
  }
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;

  const std::vector<const OpGraph*>& graphs() const { return graphs_; }

 private:
  std::vector<Unrolled> steps_;
  std::vector<const OpGraph*> graphs_;
};

bool surely_too_small(const Steps& steps, const ClusterSpec& spec) {
  const Cluster cluster(spec);
  return std::ranges::all_of(steps.graphs(), [&](const OpGraph* graph) {
    const CostModel costs(*graph, cluster);
    return prove_cannot_fit(costs, Units(costs)).has_value();
  });
}

// The least capacity that arithmetic does not rule out; at most `high`, which it does not.
Bytes least_possible(const Steps& steps, const ClusterSpec& spec, Bytes high) {
  Bytes low(1);
  while (low < high) {
    const Bytes middle = low + Bytes((high - low).count() / 2);
    if (surely_too_small(steps, with_memory(spec, middle)))
      low = middle + Bytes(1);
    else
      high = middle;
  }
  return high;
}

// Room for everything at once on any device.
Bytes all_memory(const Steps& steps, std::size_t num_devices) {
  Bytes most(1);
  for (const OpGraph* graph : steps.graphs()) {
    Bytes all(1);
    for (const OpId op : graph->ops())
      all += (*graph)[op].permanent + (*graph)[op].temporary +
             graph->output_bytes(op) * static_cast<std::int64_t>(num_devices);
    most = std::max(most, all);
  }
  return most;
}

// Whether arithmetic rules out so many devices, and so fewer.
bool rules_out(const GraphSizes& sizes, const StepRequest& request, const ClusterSpec& cluster,
               std::size_t devices) try {
  return surely_too_small(Steps(sizes, request), with_devices(cluster, devices));
} catch (const InputError&) {  // a device that is pinned to is left out, or a number overflows
  return false;
}

Bytes highest_peak(const Plan& plan) {
  Bytes highest(1);  // a capacity is at least a byte
  for (const PlanDevice& device : plan.devices) highest = std::max(highest, device.peak);
  return highest;
}

}  // namespace

std::optional<LeastMemory> least_memory(const GraphSizes& sizes, const ClusterSpec& cluster,
                                        const StepRequest& request) {
  StepRequest probing = request;
  probing.search.bounds = false;
  const Steps steps(sizes, probing);
  Bytes high = all_memory(steps, cluster.devices.size());
  std::optional<Plan> best;
  // Of a capacity that there is a plan for its highest peak may do, too. That is tried: a method
  // may find no plan where it has no more than another plan of its own takes.
  bool stopped = false;
  const auto take = [&](Bytes capacity) {
    std::optional<Probe> probe = unless_cancelled(best.has_value(), [&] {
      return try_cluster(sizes, with_memory(cluster, capacity), probing);
    });
    stopped = !probe.has_value();
    if (stopped || !probe->plan.has_value()) return false;
    best = std::move(probe->plan);
    high = capacity;
    return true;
  };
  const auto take_peak = [&] {
    if (const Bytes peak = highest_peak(*best); peak < high) take(peak);
  };
  if (!take(high)) return std::nullopt;
  take_peak();
  const Bytes possible = least_possible(steps, cluster, high);
  Bytes low = possible;
  while (!stopped && high > low && high - low >= std::max(Bytes(1), Bytes(high.count() / 1000))) {
    const Bytes middle = low + Bytes((high - low).count() / 2);
    if (take(middle)) {
      take_peak();
      low = std::min(low, high);
    } else {
      low = middle + Bytes(1);
    }
  }
  // The plan was made on a cluster with at least that much: it is the answer's own.
  best->cluster = with_memory(cluster, high);
  return LeastMemory{.capacity = high, .impossible_below = possible, .plan = *std::move(best)};
}

std::optional<FewestDevices> fewest_devices(const GraphSizes& sizes, const ClusterSpec& cluster,
                                            std::size_t max_devices, const StepRequest& request) {
  check_tried_devices(std::max<std::size_t>(1, max_devices));
  checked_numbers(sizes, request);
  const ClusterSpec sorted = largest_first(cluster);
  if (rules_out(sizes, request, sorted, max_devices)) return std::nullopt;
  std::size_t impossible = 0;
  ClusterSpec tried;  // grows by one device at a time: finding names for many takes long
  for (std::size_t count = 1; count <= max_devices; ++count) {
    if (count <= sorted.devices.size()) tried = sorted;
    tried = with_devices(std::move(tried), count);
    Probe probe;
    try {
      probe = try_cluster(sizes, tried, request);
    } catch (const InputError&) {
      if (count >= cluster.devices.size()) throw;
      probe.proved = lacks_pinned_device(sizes.first(), tried);
    }
    if (probe.plan.has_value())
      return FewestDevices{
          .count = count, .impossible_up_to = impossible, .plan = *std::move(probe.plan)};
    if (probe.proved && impossible + 1 == count) impossible = count;
  }
  return std::nullopt;
}

}  // namespace baechi
