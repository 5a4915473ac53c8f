// SPDX-License-Identifier: Apache-2.0
// What m-TOPO, m-ETF and m-SCT are compared with (Paper 5): one device, chance, equal bytes, and a
// human's placement.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/base/random.h"
#include "baechi/place/allowed_devices.h"
#include "baechi/place/fill/fill.h"
#include "baechi/place/placer.h"
#include "baechi/place/sequential_peak.h"

namespace baechi {
namespace {

// The step time of the whole graph on one device; absent when some operator may not run there.
std::optional<Time> total_time(const CostModel& costs, DeviceId device) {
  Time total;
  for (const OpId op : costs.graph().ops()) {
    if (!costs.may_run(op, device)) return std::nullopt;
    total += *costs.compute_time(op, device);
  }
  return total;
}

// The device that may run the most operators, and the first it may not run: why no single one
// serves.
DoesNotFit no_single_device(const CostModel& costs) {
  std::size_t best = 0;
  std::optional<OpId> culprit;
  for (const DeviceId device : costs.cluster().devices()) {
    std::size_t count = 0;
    std::optional<OpId> first;
    for (const OpId op : costs.graph().topological_order()) {
      if (costs.may_run(op, device)) {
        ++count;
      } else if (!first.has_value()) {
        first = op;
      }
    }
    if (!culprit.has_value() || count > best) culprit = first;
    best = std::max(best, count);
  }
  return {*culprit, Bytes(0)};
}

}  // namespace

// The fastest of the devices that hold the whole graph; among equally fast ones the smallest id.
PlaceResult place_single(const CostModel& costs, const PlaceOptions& options) {
  const OpGraph& graph = costs.graph();
  const bool keep_all = options.memory == MemoryPolicy::kReserve;
  const SequentialPeak peak = sequential_peak(graph, graph.topological_order(), keep_all);
  std::optional<std::pair<Time, DeviceId>> best;
  std::optional<Bytes> least_short;
  for (const DeviceId device : costs.cluster().devices()) {
    const std::optional<Time> time = total_time(costs, device);
    if (!time.has_value()) continue;
    if (const Bytes lacks = peak.bytes - costs.cluster()[device].capacity; lacks > Bytes(0))
      least_short = std::min(least_short.value_or(lacks), lacks);
    else
      best = std::min(best.value_or(std::pair(*time, device)), std::pair(*time, device));
  }
  if (best.has_value())
    return in_topological_order(costs, Placement(graph.num_ops(), best->second));
  if (least_short.has_value() && peak.op.has_value()) return DoesNotFit{*peak.op, *least_short};
  return no_single_device(costs);
}

// Every operator or colocation group on a device drawn from those that may run it and still have
// room for its permanent memory.
PlaceResult place_random(const CostModel& costs, const PlaceOptions& options) {
  const OpGraph& graph = costs.graph();
  const Cluster& cluster = costs.cluster();
  const AllowedDevices allowed(costs);
  Random random(options.seed);
  IdVector<OpId, std::optional<DeviceId>> device(graph.num_ops());
  IdVector<DeviceId, Bytes> permanent(cluster.num_devices());

  for (const OpId op : graph.topological_order()) {
    if (device[op].has_value()) continue;
    std::vector<OpId> members{op};
    if (const auto group = graph[op].group)
      members.assign(graph.members(*group).begin(), graph.members(*group).end());
    Bytes need;
    for (const OpId member : members) need += graph[member].permanent;

    std::vector<DeviceId> choices;
    std::optional<Bytes> least_short;
    for (const DeviceId candidate : cluster.devices()) {
      if (!allowed(op, candidate)) continue;
      const Bytes lacks = permanent[candidate] + need - cluster[candidate].capacity;
      least_short = std::min(least_short.value_or(lacks), lacks);
      if (lacks <= Bytes(0)) choices.push_back(candidate);
    }
    if (choices.empty()) return DoesNotFit{op, least_short.value_or(Bytes(0))};
    const DeviceId chosen = choices[random.below(choices.size())];
    permanent[chosen] += need;
    for (const OpId member : members) device[member] = chosen;
  }
  Placement placement;
  placement.reserve(graph.num_ops());
  for (const OpId op : graph.ops()) placement.push_back(*device[op]);
  return in_topological_order(costs, std::move(placement));
}

// Equal bytes for every device along the topological order, as device_map="auto" does. It sees
// weights only; a graph without any is balanced by all that its operators need.
PlaceResult place_balanced(const CostModel& costs, const PlaceOptions& options) {
  const OpGraph& graph = costs.graph();
  FillPlan plan{IdVector<OpId, Bytes>(graph.num_ops()), {}};
  Bytes total;
  for (const OpId op : graph.ops()) total += plan.need[op] = graph[op].permanent;
  if (total == Bytes(0)) {
    plan.need = operator_needs(graph);
    for (const Bytes need : plan.need) total += need;
  }
  const auto n = static_cast<std::int64_t>(costs.cluster().num_devices());
  plan.cap.assign(costs.cluster().num_devices(), Bytes(scale_up(total.count(), 1, n, "memory")));
  return fill_devices(costs, plan, options);
}

// The placement of `options.expert`, checked: a wrong one is the user's error.
PlaceResult place_expert(const CostModel& costs, const PlaceOptions& options) {
  const OpGraph& graph = costs.graph();
  if (options.expert == nullptr) throw InputError("method 'expert' needs a placement");
  const Placement& expert = *options.expert;
  if (expert.size() != graph.num_ops())
    throw InputError("the expert placement is for " + std::to_string(expert.size()) +
                     " operators, the graph has " + std::to_string(graph.num_ops()));
  const auto named = [&](OpId op) { return "operator " + in_quotes(graph[op].name); };
  for (const OpId op : graph.ops()) {
    if (expert[op].index() >= costs.cluster().num_devices())
      throw InputError("the expert placement puts " + named(op) +
                       " on a device that the cluster does not have");
    if (!costs.may_run(op, expert[op]))
      throw InputError("the expert placement puts " + named(op) + " on device '" +
                       costs.cluster()[expert[op]].name + "', which may not run it");
    if (const auto group = graph[op].group)
      if (const OpId first = graph.members(*group).front(); expert[first] != expert[op])
        throw InputError("the expert placement parts " + named(first) + " from " + named(op) +
                         ", which share a colocation group");
  }
  return in_topological_order(costs, expert);
}

}  // namespace baechi
