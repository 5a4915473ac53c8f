// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/exact/exact_instance.h"

#include <algorithm>

#include "baechi/base/wide.h"
#include "baechi/cluster/transfer_queues.h"
#include "baechi/place/allowed_devices.h"
#include "baechi/place/topological_sequences.h"

namespace baechi::exact {
namespace {

void add_operators(const CostModel& costs, std::span<const OpId> order, Instance& in) {
  const OpGraph& graph = costs.graph();
  const AllowedDevices allowed(costs);
  in.num_ops = graph.num_ops();
  in.flows_in.resize(in.num_ops);
  in.flows_out.resize(in.num_ops);
  in.ancestors.assign(in.num_ops, 0);
  for (const OpId op : graph.ops()) {
    in.temporary.push_back(graph[op].temporary.count());
    if (graph[op].variable) in.variables.push_back(op.value());
    for (const DeviceId device : costs.cluster().devices())
      in.time.push_back(allowed(op, device) ? costs.compute_time(op, device)->count() : kNever);
    in.outputs.emplace_back();
    for (const TensorId tensor : graph.outputs(op)) in.outputs.back().push_back(tensor.value());
  }
  in.rank.resize(in.num_ops);
  for (const OpId op : order) {
    in.rank[op.index()] = static_cast<Index>(in.order.size());
    in.order.push_back(op.value());
    for (const Edge& edge : graph.in_edges(op))
      in.ancestors[op.index()] |= in.ancestors[edge.from.index()] | op_bit(edge.from.index());
  }
}

void add_tensors(const CostModel& costs, Instance& in) {
  const OpGraph& graph = costs.graph();
  for (const TensorId tensor : graph.tensors()) {
    Instance::Tensor row{.producer = graph.producer(tensor).value(),
                         .readers = {},
                         .bytes = graph.size(tensor).count(),
                         .at_home = graph.home_size(tensor).count(),
                         .lasts = false,
                         .kept = graph.retains_outputs(graph.producer(tensor))};
    for (const Edge& edge : graph.consumers(tensor)) row.readers.push_back(edge.to.value());
    row.lasts = row.kept || row.readers.empty();
    in.tensors.push_back(std::move(row));
    for (const DeviceId from : costs.cluster().devices())
      for (const DeviceId to : costs.cluster().devices())
        in.transfer.push_back(from == to ? 0 : costs.transfer_time(tensor, from, to).count());
  }
}

// Tensors of one operator for another travel side by side, or one after the other where they queue.
void add_flows(const CostModel& costs, Instance& in) {
  const OpGraph& graph = costs.graph();
  for (const OpId op : graph.ops()) {
    for (const Edge& edge : graph.in_edges(op)) {  // sorted by `from`
      if (in.flows_in[op.index()].empty() || in.flows.back().from != edge.from.value()) {
        const auto flow = static_cast<Index>(in.flows.size());
        in.flows_in[op.index()].push_back(flow);
        in.flows_out[edge.from.index()].push_back(flow);
        in.flows.push_back({edge.from.value(), op.value(), {}});
      }
      if (edge.tensor.has_value()) in.flows.back().tensors.push_back(edge.tensor->value());
    }
  }
  for (const Instance::Flow& flow : in.flows)
    for (std::size_t from = 0; from < in.num_devices; ++from)
      for (std::size_t to = 0; to < in.num_devices; ++to) {
        Ns time = 0;
        for (const Index tensor : flow.tensors) {
          const Ns one = in.transfer_time(tensor, from, to);
          time = in.mode == CommunicationMode::kParallel ? std::max(time, one) : time + one;
        }
        in.flow_time.push_back(time);
      }
}

// What is on a device beside permanent memory while `op` runs, at least. An operator that takes no
// time frees its inputs at the moment it takes its outputs, so they need not be there together.
std::int64_t running_bytes(const CostModel& costs, OpId op, bool takes_time) {
  const OpGraph& graph = costs.graph();
  std::int64_t bytes = graph[op].temporary.count() + graph.output_bytes(op).count();
  if (!takes_time) return bytes;
  for (const Edge& edge : graph.in_edges(op))
    if (edge.tensor.has_value()) bytes += graph.home_size(*edge.tensor).count();
  return bytes;
}

void add_units(const CostModel& costs, Instance& in) {
  const OpGraph& graph = costs.graph();
  std::vector<std::optional<Index>> of_group(graph.num_groups());
  for (const OpId op : graph.ops()) {
    std::optional<Index> alone;
    std::optional<Index>& unit =
        graph[op].group.has_value() ? of_group[graph[op].group->index()] : alone;
    if (!unit.has_value()) {
      unit = static_cast<Index>(in.units.size());
      in.units.emplace_back();
    }
    in.unit_of.push_back(*unit);
    Instance::Unit& row = in.units[*unit];
    row.ops.push_back(op.value());
    const Ns* times = &in.time[op.index() * in.num_devices];
    const bool takes_time = *std::min_element(times, times + in.num_devices) > 0;
    row.permanent += graph[op].permanent.count();
    row.held += graph[op].permanent.count();
    row.running = std::max(row.running, running_bytes(costs, op, takes_time));
    // All of these live when the last of their producers that take time starts.
    for (const Index tensor : in.outputs[op.index()])
      if (takes_time && in.tensors[tensor].lasts) row.held += in.tensors[tensor].at_home;
  }
  for (Instance::Unit& unit : in.units)
    for (std::size_t device = 0; device < in.num_devices; ++device)
      if (in.time_on(unit.ops.front(), device) < kNever &&
          std::max(unit.permanent + unit.running, unit.held) <= in.capacity[device])
        unit.devices |= only(device);
}

void add_queues(const CostModel& costs, Instance& in) {
  const Cluster& cluster = costs.cluster();
  in.queues.resize(in.num_devices * in.num_devices);
  if (in.mode == CommunicationMode::kParallel) return;
  const TransferQueues waiting(cluster);
  in.num_queues = waiting.size();
  for (const DeviceId from : cluster.devices())
    for (const DeviceId to : cluster.devices()) {
      if (from == to) continue;
      std::vector<Index>& queues = in.queues[from.index() * in.num_devices + to.index()];
      waiting.for_each(from, to,
                       [&](std::size_t queue) { queues.push_back(static_cast<Index>(queue)); });
    }
}

bool exchangeable(const CostModel& costs, DeviceId a, DeviceId b) {
  const Cluster& cluster = costs.cluster();
  if (costs.class_of(a) != costs.class_of(b) || cluster[a].capacity != cluster[b].capacity ||
      cluster.link(a, b) != cluster.link(b, a))
    return false;
  for (const OpId op : costs.graph().ops())
    if (costs.pin(op) == a || costs.pin(op) == b) return false;
  return std::ranges::all_of(cluster.devices(), [&](DeviceId other) {
    return other == a || other == b ||
           (cluster.link(a, other) == cluster.link(b, other) &&
            cluster.link(other, a) == cluster.link(other, b));
  });
}

void add_twins(const CostModel& costs, Instance& in) {
  for (const DeviceId a : costs.cluster().devices()) {
    in.twins.push_back(0);
    for (const DeviceId b : costs.cluster().devices())
      if (a != b && exchangeable(costs, a, b)) in.twins.back() |= only(b.index());
  }
}

// A thousandth of what 63 bits hold: the searches multiply moments by 128.
bool totals_fit(const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  const Cluster& cluster = costs.cluster();
  WideInt total = 0;
  for (const DeviceId from : cluster.devices()) {
    for (const OpId op : graph.ops())
      if (const auto time = costs.compute_time(op, from)) total += time->count();
    for (const DeviceId to : cluster.devices())
      for (const TensorId tensor : graph.tensors())
        if (from != to) total += costs.transfer_time(tensor, from, to).count();
  }
  WideInt bytes = 0;
  for (const OpId op : graph.ops())
    bytes += graph[op].permanent.count() + graph[op].temporary.count();
  for (const TensorId tensor : graph.tensors())
    bytes += static_cast<WideInt>(graph.size(tensor).count()) *
             static_cast<WideInt>(1 + graph.consumers(tensor).size());
  return total < kNever / 1024 && bytes < kNever;
}

}  // namespace

std::optional<Instance> tabulate(const CostModel& costs, std::span<const OpId> order) {
  if (costs.graph().num_ops() > kMostOps || costs.cluster().num_devices() > kMostDevices ||
      !totals_fit(costs) || costs.cluster().host_time().has_value() ||
      costs.cluster().sends_block() || costs.cluster().message_time().has_value())
    return std::nullopt;
  Instance in;
  in.costs = &costs;
  in.num_devices = costs.cluster().num_devices();
  in.mode = costs.cluster().communication();
  for (const DeviceId device : costs.cluster().devices())
    in.capacity.push_back(costs.cluster()[device].capacity.count());
  if (order.empty())
    add_operators(costs, critical_path_first_sequence(costs), in);
  else
    add_operators(costs, order, in);
  add_tensors(costs, in);
  add_flows(costs, in);
  add_units(costs, in);
  add_queues(costs, in);
  add_twins(costs, in);
  return in;
}

}  // namespace baechi::exact
