// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/residing_starts.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <queue>
#include <string>
#include <tuple>
#include <utility>
#include <variant>

#include "baechi/graph/residency.h"
#include "baechi/graph/topological_order.h"
#include "baechi/optimize/list_schedule.h"
#include "baechi/plan/planner.h"
#include "baechi/plan/recompute/ample_memory.h"
#include "baechi/plan/residency/residency_orders.h"
#include "baechi/plan/steps/step_search.h"
#include "baechi/schedule/step_order.h"
#include "baechi/simulate/simulator.h"

namespace baechi {
namespace {

constexpr double kRoomFor = 1.1;  // times what the step takes on one device

Cluster without_store(const Cluster& cluster, DeviceId store) {
  ClusterSpec spec = cluster.spec();
  spec.devices.erase(spec.devices.begin() + static_cast<std::ptrdiff_t>(store.index()));
  const Device& host = cluster[store];
  std::erase_if(spec.links, [&](const LinkRule& rule) {
    const std::string& gone = rule.scope == LinkScope::kPair ? host.name : host.kind;
    return (rule.scope == LinkScope::kPair || rule.scope == LinkScope::kKinds) &&
           (rule.from == gone || rule.to == gone);
  });
  return Cluster(std::move(spec));
}

// As a plan for the other devices has it, whose ids skip the store.
std::optional<SequenceOfOne> planned(const OpGraph& graph, std::uint32_t micro_batches,
                                     const Cluster& cluster, DeviceId store,
                                     const PlanRequest& request) {
  const PlanResult result = micro_batches == 1
                                ? make_plan(CostModel(graph, cluster), request)
                                : plan_step(graph, unroll(graph, micro_batches), cluster, request);
  const Plan* plan = std::get_if<Plan>(&result);
  if (plan == nullptr) return std::nullopt;
  SequenceOfOne one;
  for (const OpId op : graph.ops()) one.device.push_back(plan->schedule.slots[op].device);
  if (micro_batches == 1) {
    one.sequence = sequence_of(plan->schedule, graph);
  } else {
    const auto order = graph.topological_order();
    one.sequence.assign(order.begin(), order.end());
  }
  for (DeviceId& device : one.device)
    if (device >= store) device = DeviceId(device.index() + 1);
  return one;
}

// The block of every operator, by what it reads of variables that its block has not read yet.
IdVector<OpId, std::size_t> blocks_of(const OpGraph& graph, const std::vector<OpId>& sequence,
                                      Bytes most) {
  IdVector<OpId, std::size_t> block(graph.num_ops()), read_in(graph.num_ops());
  std::size_t current = 1;
  Bytes read;
  for (const OpId op : sequence) {
    Bytes more;
    for (const Edge& edge : graph.in_edges(op))
      if (edge.tensor.has_value() && graph[edge.from].variable && read_in[edge.from] != current)
        more += graph.size(*edge.tensor);
    if (read + more > most && read > Bytes(0)) {
      ++current;
      read = Bytes(0);
    }
    for (const Edge& edge : graph.in_edges(op)) {
      if (!edge.tensor.has_value() || !graph[edge.from].variable || read_in[edge.from] == current)
        continue;
      read_in[edge.from] = current;
      read += graph.size(*edge.tensor);
    }
    block[op] = current;
  }
  return block;
}

// The block of every operator of micro-batches: what one device has of the sequence.
IdVector<OpId, std::size_t> stages_of(const Unrolled& step, const SequenceOfOne& one) {
  IdVector<OpId, std::size_t> stage(one.sequence.size());
  std::size_t current = 0;
  std::optional<DeviceId> last;
  for (const OpId op : one.sequence) {
    if (!step.micro_batch[op].has_value()) continue;
    if (last != one.device[op]) ++current;
    last = one.device[op];
    stage[op] = current;
  }
  return stage;
}

}  // namespace

PlannedStarts sequences_of_one(const CostModel& costs, std::uint32_t micro_batches,
                               const PlanRequest& request) {
  const OpGraph& graph = costs.graph();
  const DeviceId store = store_of(costs.cluster());
  const Cluster devices = without_store(costs.cluster(), store);
  PlannedStarts found{starts_in_parts(costs)};
  if (devices.num_devices() == 1) return found;
  Bytes all, there;
  for (const OpId op : graph.ops()) all += graph[op].permanent + graph.output_bytes(op);
  for (const DeviceId device : devices.devices()) there += devices[device].capacity;
  const CostModel given(graph, devices);
  const Cluster all_hold =
      roomier(given, kRoomFor * static_cast<double>(all.count()) /
                         static_cast<double>(std::max(there, Bytes(1)).count()));
  add_new(planned(graph, micro_batches, all_hold, store, request), found.sequences);
  found.is_planned = true;
  return found;
}

std::optional<SequenceOfOne> sequence_of_known(const CostModel& costs, const Plan& known) {
  const OpGraph& graph = costs.graph();
  const DeviceId store = store_of(costs.cluster());
  SequenceOfOne one;
  for (const OpId op : graph.ops()) one.device.push_back(known.schedule.slots[op].device);
  for (const bool variables : {false, true})
    for (const OpId op : graph.ops()) {
      if (one.device[op] != store || graph[op].variable != variables) continue;
      for (const Edge& edge : graph.in_edges(op))
        if (!graph[edge.from].variable) one.device[op] = one.device[edge.from];
      for (const Edge& edge : graph.out_edges(op))
        if (one.device[op] == store) one.device[op] = one.device[edge.to];
    }
  for (const OpId op : graph.ops())
    if (one.device[op] == store || !costs.may_run(op, one.device[op])) return std::nullopt;
  one.sequence = order_by_key(graph, [&](OpId op) { return known.schedule.slots[op].start; });
  return one;
}

ResidencyStart start_in_groups(const ResidencyProblem& problem, const SequenceOfOne& one,
                               const InGroups& grouping) {
  const Unrolled& step = problem.step;
  const OpGraph& graph = step.graph;
  IdVector<OpId, std::size_t> position(one.sequence.size());
  for (std::size_t i = 0; i < one.sequence.size(); ++i) position[one.sequence[i]] = i;
  const bool several = step.micro_batches > 1;
  IdVector<OpId, std::size_t> block(one.sequence.size());
  if (several && one.in_rounds)
    block = stages_of(step, one);
  else if (several)
    block = blocks_of(graph, one.sequence, grouping.block);
  // Updates run as soon as they may, which frees their gradients.
  using Key = std::tuple<std::uint32_t, std::size_t, std::uint32_t, std::size_t>;
  const auto key_of = [&](OpId op) {
    const OpId original = step.original[op];
    if (!several || !step.micro_batch[op].has_value())
      return Key(0, 0, 0, several || is_update(step, op) ? 0 : position[original]);
    const std::uint32_t m = *step.micro_batch[op];
    return Key(m / grouping.micro_batches, block[original], m, position[original]);
  };
  Placement device;
  for (const OpId op : graph.ops()) device.push_back(one.device[step.original[op]]);
  const std::vector<OpId> sequence = order_by_key(graph, key_of);
  DeviceOrder order(problem.costs.cluster().num_devices());
  for (const OpId op : sequence) order[device[op]].push_back(op);
  if (one.in_rounds) {  // no device waits for what comes first while it could go on
    IdVector<OpId, Time> priority(graph.num_ops());
    for (std::size_t i = 0; i < sequence.size(); ++i)
      priority[sequence[i]] = Time(static_cast<std::int64_t>(sequence.size() - i));
    order = *list_schedule(problem.costs, device, priority).placed.order;
  }
  if (several) order = with_sums_behind(step, order);
  return start_of(problem.costs, std::move(device), std::move(order));
}

std::vector<InGroups> groupings(const Cluster& cluster, std::uint32_t micro_batches) {
  if (micro_batches == 1) return {{}};
  const Bytes least = least_memory(cluster);
  std::vector<InGroups> all;
  for (const std::uint32_t parts : {1U, 2U, micro_batches})
    if (micro_batches % parts == 0 &&
        (parts == 1 || all.back().micro_batches > micro_batches / parts))
      for (const std::int64_t part : {32, 8})
        if (parts < micro_batches || part == 8)
          all.push_back({micro_batches / parts, Bytes(least.count() / part)});
  return all;
}

Bytes least_memory(const Cluster& cluster) {
  Bytes least = cluster[DeviceId(0)].capacity;
  for (const DeviceId device : cluster.devices()) least = std::min(least, cluster[device].capacity);
  return least;
}

}  // namespace baechi
