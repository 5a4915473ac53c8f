// SPDX-License-Identifier: Apache-2.0
#include "baechi/dnn_partitioning/dnnp_instance.h"

#include <algorithm>

#include "baechi/base/error.h"
#include "baechi/base/wide.h"
#include "baechi/place/allowed_devices.h"

namespace baechi::dnnp {
namespace {

void sort_unique(std::vector<Index>& values) {
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

void add_parts(const CostModel& costs, const DnnpCosts& moves, Instance& in) {
  const Cluster& cluster = costs.cluster();
  std::optional<DeviceId> host;
  for (const DeviceId device : cluster.devices()) {
    if (moves.is_host(device)) {
      host = host.value_or(device);
      continue;
    }
    in.parts.push_back(device);
    in.capacity.push_back(cluster[device].capacity.count());
  }
  in.num_accelerators = in.parts.size();
  in.has_host = host.has_value();
  in.parts.push_back(host.value_or(DeviceId(0)));
  in.capacity.push_back(kNever);
}

void add_groups(const CostModel& costs, Instance& in) {
  const OpGraph& graph = costs.graph();
  const AllowedDevices allowed(costs);
  std::vector<std::optional<Index>> of_group(graph.num_groups());
  in.group_of.assign(graph.num_ops(), 0);
  std::size_t position = 0;
  for (const OpId op : graph.topological_order()) {
    std::optional<Index> alone;
    std::optional<Index>& group =
        graph[op].group.has_value() ? of_group[graph[op].group->index()] : alone;
    if (!group.has_value()) {
      group = static_cast<Index>(in.groups.size());
      in.groups.emplace_back();
      in.groups.back().position = position;
      in.time.resize(in.time.size() + in.num_parts(), 0);
    }
    ++position;
    in.group_of[op.index()] = *group;
    Instance::Group& row = in.groups[*group];
    row.ops.push_back(op);
    row.bytes += graph[op].permanent.count();
    for (std::size_t part = 0; part < in.num_parts(); ++part) {
      Ns& time = in.time[*group * in.num_parts() + part];
      const bool exists = part < in.num_accelerators || in.has_host;
      time = exists && allowed(op, in.parts[part]) && time < kNever
                 ? time + costs.compute_time(op, in.parts[part])->count()
                 : kNever;
    }
  }
}

void add_nets(const CostModel& costs, const DnnpCosts& moves, Instance& in) {
  const OpGraph& graph = costs.graph();
  for (const OpId op : graph.ops()) {
    const Index source = in.group_of[op.index()];
    Instance::Net net{source, {}};
    for (const Edge& edge : graph.out_edges(op)) {
      const Index reader = in.group_of[edge.to.index()];
      if (reader == source) continue;
      in.groups[source].after.push_back(reader);
      in.groups[reader].before.push_back(source);
      if (edge.tensor.has_value()) net.readers.push_back(reader);
    }
    if (net.readers.empty()) continue;
    sort_unique(net.readers);
    const auto id = static_cast<Index>(in.nets.size());
    in.groups[source].makes.push_back(id);
    for (const Index reader : net.readers) in.groups[reader].reads.push_back(id);
    in.nets.push_back(std::move(net));
    for (std::size_t part = 0; part < in.num_parts(); ++part) {
      const bool free = part == in.host();
      in.out.push_back(free ? 0 : moves.out(op, in.parts[part]).count());
      in.in.push_back(free ? 0 : moves.in(op, in.parts[part]).count());
    }
  }
  for (Instance::Group& group : in.groups) {
    sort_unique(group.before);
    sort_unique(group.after);
  }
}

void add_types(Instance& in) {
  const auto same = [&](std::size_t a, std::size_t b) {
    if (in.capacity[a] != in.capacity[b]) return false;
    for (std::size_t group = 0; group < in.groups.size(); ++group)
      if (in.time_on(group, a) != in.time_on(group, b)) return false;
    for (std::size_t net = 0; net < in.nets.size(); ++net)
      if (in.out_of(net, a) != in.out_of(net, b) || in.in_to(net, a) != in.in_to(net, b))
        return false;
    return true;
  };
  std::vector<std::size_t> first;
  for (std::size_t part = 0; part < in.num_accelerators; ++part) {
    const auto known = std::ranges::find_if(first, [&](std::size_t a) { return same(a, part); });
    in.type.push_back(static_cast<Index>(known - first.begin()));
    if (known == first.end()) first.push_back(part);
  }
}

}  // namespace

Instance tabulate(const CostModel& costs) {
  const DnnpCosts moves(costs);
  Instance in;
  in.costs = &costs;
  add_parts(costs, moves, in);
  add_groups(costs, in);
  add_nets(costs, moves, in);
  WideInt total = 0;
  for (const Ns time : in.time)
    if (time < kNever) total += time;
  for (const Ns time : in.out) total += time;
  for (const Ns time : in.in) total += time;
  if (total >= kNever) throw InputError("the graph's times are too long to place it for them");
  add_types(in);
  return in;
}

}  // namespace baechi::dnnp
