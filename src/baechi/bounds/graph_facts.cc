// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/graph_facts.h"

#include <algorithm>

#include "baechi/bounds/theorems.h"

namespace baechi {
namespace {

// The shortest time of every operator over all kinds.
IdVector<OpId, Time> shortest_times(const OpGraph& graph) {
  IdVector<OpId, std::optional<Time>> shortest(graph.num_ops());
  for (const KindId kind : graph.kinds()) {
    const auto& times = graph.times(kind);
    for (const OpId op : graph.ops())
      if (times[op].has_value())
        shortest[op] = std::min(shortest[op].value_or(*times[op]), *times[op]);
  }
  IdVector<OpId, Time> result(graph.num_ops());
  for (const OpId op : graph.ops()) result[op] = shortest[op].value_or(Time(0));
  return result;
}

void count_elements(const OpGraph& graph, GraphFacts& facts) {
  facts.num_ops = graph.num_ops();
  facts.num_edges = graph.num_edges();
  facts.num_tensors = graph.num_tensors();
  facts.num_groups = graph.num_groups();
  for (const OpId op : graph.ops()) {
    if (graph[op].backward) ++facts.num_backward_ops;
    if (graph[op].pin.has_value()) ++facts.num_pinned_ops;
    for (const Edge& edge : graph.out_edges(op))
      if (!edge.tensor.has_value()) ++facts.num_control_edges;
  }
  for (const GroupId group : graph.groups()) {
    facts.num_grouped_ops += graph.members(group).size();
    facts.largest_group = std::max(facts.largest_group, graph.members(group).size());
  }
}

void measure_shape(const OpGraph& graph, GraphFacts& facts) {
  const IdVector<OpId, Time> times = shortest_times(graph);
  IdVector<OpId, Time> finish(graph.num_ops());
  IdVector<OpId, std::size_t> level(graph.num_ops());
  std::vector<std::size_t> on_level;
  for (const OpId op : graph.topological_order()) {
    for (const Edge& edge : graph.in_edges(op)) {
      finish[op] = std::max(finish[op], finish[edge.from]);
      level[op] = std::max(level[op], level[edge.from] + 1);
    }
    finish[op] += times[op];
    facts.work += times[op];
    facts.critical_path = std::max(facts.critical_path, finish[op]);
    if (level[op] >= on_level.size()) on_level.resize(level[op] + 1);
    facts.width = std::max(facts.width, ++on_level[level[op]]);
  }
  facts.depth = on_level.size();
  for (const KindId kind : graph.kinds()) {
    KindWork work{std::string(graph.kind_name(kind)), 0, Time(0)};
    for (const std::optional<Time>& time : graph.times(kind)) {
      if (!time.has_value()) continue;
      ++work.num_ops;
      work.work += *time;
    }
    facts.kinds.push_back(work);
  }
}

void measure_memory(const OpGraph& graph, GraphFacts& facts) {
  for (const OpId op : graph.ops()) {
    const Bytes outputs = graph.output_bytes(op);
    const Bytes need = graph[op].permanent + graph[op].temporary + outputs;
    facts.permanent += graph[op].permanent;
    if (graph[op].variable) {
      ++facts.num_variables;
      facts.variables += graph[op].permanent;
    }
    facts.outputs += outputs;
    facts.largest_temporary = std::max(facts.largest_temporary, graph[op].temporary);
    if (!facts.largest_op.has_value() || need > facts.largest_need) {
      facts.largest_op = op;
      facts.largest_need = need;
    }
  }
}

}  // namespace

GraphFacts graph_facts(const OpGraph& graph) {
  GraphFacts facts;
  count_elements(graph, facts);
  measure_shape(graph, facts);
  measure_memory(graph, facts);
  facts.num_written = graph.writes().size();
  return facts;
}

ClusterFacts cluster_facts(const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  const Cluster& cluster = costs.cluster();
  ClusterFacts facts;
  facts.rho = rho(costs);
  facts.sct_assumption = sct_assumption_holds(costs);
  const Bytes total = graph_facts(graph).total_memory();
  for (const DeviceId device : cluster.devices()) {
    facts.total_capacity += cluster[device].capacity;
    const auto runs_here = [&](OpId op) { return costs.may_run(op, device); };
    if (total <= cluster[device].capacity && std::ranges::all_of(graph.ops(), runs_here))
      facts.fits_one_device = true;
  }
  for (const OpId op : graph.ops())
    if (std::ranges::none_of(cluster.devices(),
                             [&](DeviceId device) { return costs.may_run(op, device); }))
      ++facts.num_unplaceable_ops;
  return facts;
}

}  // namespace baechi
