// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/forward_only.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "baechi/base/in_quotes.h"
#include "baechi/base/short_text.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/optimize/contraction.h"
#include "baechi/optimize/grouping.h"
#include "baechi/optimize/pass_clock.h"
#include "baechi/simulate/execution_simulator.h"

namespace baechi {
namespace {

using Leaders = IdVector<OpId, std::optional<OpId>>;

// The forward operator where the chain that starts with each operator ends: a second derivative
// follows its derivative. Absent: the chain ends in the backward pass, or never.
Leaders ends_of_chains(const OpGraph& graph) {
  Leaders end(graph.num_ops());
  IdVector<OpId, char> seen(graph.num_ops());
  std::vector<OpId> chain;
  for (const OpId op : graph.ops()) {
    chain.clear();
    std::optional<OpId> at = op;
    while (at.has_value() && seen[*at] == 0) {
      seen[*at] = 1;
      chain.push_back(*at);
      if (!graph[*at].backward)
        end[*at] = at;
      else
        at = graph[*at].forward;
    }
    for (const OpId member : chain)
      if (at.has_value()) end[member] = end[*at];
  }
  return end;
}

// The forward operator that each operator follows; itself when it is one. Absent: there is none.
Leaders find_leaders(const OpGraph& graph) {
  Leaders leader = ends_of_chains(graph);
  IdVector<GroupId, std::optional<OpId>> forward_in(graph.num_groups());
  for (const OpId op : graph.ops()) {
    if (graph[op].backward) continue;
    if (const std::optional<GroupId> group = graph[op].group; group.has_value())
      if (!forward_in[*group].has_value()) forward_in[*group] = op;
  }
  for (const OpId op : graph.ops())
    if (!leader[op].has_value() && graph[op].group.has_value())
      leader[op] = forward_in[*graph[op].group];
  const auto follow = [&](OpId op, OpId neighbour) {
    if (!leader[op].has_value()) leader[op] = leader[neighbour];
  };
  const std::span<const OpId> order = graph.topological_order();
  for (const OpId op : order)
    for (const Edge& edge : graph.in_edges(op)) follow(op, edge.from);
  for (std::size_t i = order.size(); i-- > 0;)
    for (const Edge& edge : graph.out_edges(order[i])) follow(order[i], edge.to);
  return leader;
}

struct Crew {                 // a forward operator and who follows it
  std::vector<OpId> members;  // the forward operator first
  Bytes held;  // at the very most, besides the forward tensors: retained ones count by themselves
};

class ForwardGraph {
 public:
  ForwardGraph(const CostModel& costs, const Leaders& leader, MemorySuffices suffices)
      : costs_(costs),
        graph_(costs.graph()),
        leader_(leader),
        at_worst_(suffices == MemorySuffices::kForAllAnywhere),
        crew_(graph_.num_ops()) {
    for (const OpId op : graph_.ops())
      if (!graph_[op].backward) crew_[op].members.push_back(op);
    for (const OpId op : graph_.ops())
      if (graph_[op].backward) crew_[*leader_[op]].members.push_back(op);
    for (Crew& crew : crew_) measure(crew);
    for (const OpId op : graph_.ops()) temporary_ = std::max(temporary_, graph_[op].temporary);
  }

  // A forward operator that no device can run together with its followers.
  std::optional<OpId> without_device() const {
    for (const OpId op : graph_.ops())
      if (!graph_[op].backward && !can_run(crew_[op])) return op;
    return std::nullopt;
  }

  Contracted build() const {
    OpGraphBuilder builder(graph_.name());
    builder.set_memory_mode(at_worst_ ? MemoryMode::kRetain : graph_.memory_mode());
    if (graph_.batch_size().has_value()) builder.set_batch_size(*graph_.batch_size());
    IdVector<OpId, std::optional<OpId>> number(graph_.num_ops());
    std::vector<OpId> members;
    std::vector<std::uint32_t> begin{0};
    for (const OpId op : graph_.ops()) {
      if (graph_[op].backward) continue;
      const Crew& crew = crew_[op];
      number[op] = add_operator(builder, op, crew);
      members.insert(members.end(), crew.members.begin(), crew.members.end());
      begin.push_back(static_cast<std::uint32_t>(members.size()));
    }
    for (const OpId op : graph_.ops())
      if (number[op].has_value()) add_edges(builder, op, number);
    return {std::move(builder).build(),
            Expansion(std::move(members), std::move(begin), MemberOrder::kApart)};
  }

 private:
  void measure(Crew& crew) const {
    if (crew.members.empty()) return;
    const OpId forward = crew.members.front();
    for (const OpId op : crew.members) {
      crew.held += graph_[op].permanent;
      if (!at_worst_) continue;
      if (graph_[op].backward) crew.held += graph_.output_bytes(op);
      for (const Edge& edge : graph_.in_edges(op))
        if (edge.tensor.has_value() && leader_[edge.from] != forward &&
            (graph_[op].backward || graph_[edge.from].backward))
          crew.held += graph_.size(*edge.tensor);
    }
  }

  bool can_run(const Crew& crew) const {
    const auto devices = costs_.cluster().devices();
    return std::any_of(devices.begin(), devices.end(), [&](DeviceId device) {
      return std::all_of(crew.members.begin(), crew.members.end(),
                         [&](OpId op) { return costs_.may_run(op, device); });
    });
  }

  OpId add_operator(OpGraphBuilder& builder, OpId op, const Crew& crew) const {
    const bool variable = graph_[op].variable && crew.members.size() == 1;
    const OpId small =
        variable
            ? builder.add_operator(spec_of(graph_[op]))
            : builder.add_operator({.name = graph_[op].name,
                                    .kind = graph_[op].kind,
                                    .permanent = crew.held,
                                    .temporary = at_worst_ ? temporary_ : graph_[op].temporary});
    for (const auto& [kind, time] : summed_times(graph_, crew.members))
      builder.set_time(small, graph_.kind_name(kind), time);
    for (const OpId member : crew.members) {
      if (graph_[member].pin.has_value()) builder.set_pin(small, *graph_[member].pin);
      if (const std::optional<GroupId> group = graph_[member].group; group.has_value())
        builder.add_to_group(small, graph_[graph_.members(*group).front()].name);
    }
    for (const TensorId tensor : graph_.outputs(op))
      builder.add_output(small, (variable ? 1 : 2) * graph_.size(tensor));
    return small;
  }

  void add_edges(OpGraphBuilder& builder, OpId op,
                 const IdVector<OpId, std::optional<OpId>>& number) const {
    for (const Edge& edge : graph_.out_edges(op)) {
      if (!number[edge.to].has_value()) continue;
      if (!edge.tensor.has_value()) {
        builder.add_control_edge(*number[op], *number[edge.to]);
        continue;
      }
      const std::size_t port = edge.tensor->index() - (*graph_.outputs(op).begin()).index();
      builder.connect(*builder.output(*number[op], port), *number[edge.to]);
    }
  }

  const CostModel& costs_;
  const OpGraph& graph_;
  const Leaders& leader_;
  const bool at_worst_;        // memory is what could ever be held
  IdVector<OpId, Crew> crew_;  // empty for those who follow
  Bytes temporary_;            // the largest of all: it may fall into the moment when most is held
};

// What stays together in the small graph, and the most that a device may have to hold for it.
struct Load {
  Bytes held;
  IdVector<DeviceId, char> may_run;
};

std::vector<Load> loads_of(const CostModel& small) {
  const OpGraph& graph = small.graph();
  const OpLabels label = group_labels(graph);
  std::vector<std::optional<std::uint32_t>> index(graph.num_ops());
  std::vector<Load> loads;
  for (const OpId op : graph.ops()) {
    std::optional<std::uint32_t>& at = index[label[op]];
    if (!at.has_value()) {
      at = static_cast<std::uint32_t>(loads.size());
      loads.push_back({Bytes(0), IdVector<DeviceId, char>(small.cluster().num_devices(), 1)});
    }
    Load& load = loads[*at];
    load.held += graph[op].permanent + graph.output_bytes(op);
    for (const DeviceId device : small.cluster().devices())
      if (!small.may_run(op, device)) load.may_run[device] = 0;
    for (const Edge& edge : graph.in_edges(op))
      if (edge.tensor.has_value() && label[edge.from] != label[op])
        load.held += graph.size(*edge.tensor);
  }
  return loads;
}

// Some device always has room when the cluster holds everything and, besides, the largest group
// once more on each device that may run it: if each of these were too full for the group, they
// would hold more than everything. Returns why that is not so; empty when it is.
std::string memory_objection(const CostModel& small, double memory_share) {
  Bytes total, temporary;
  const std::vector<Load> loads = loads_of(small);
  for (const Load& load : loads) total += load.held;
  for (const OpId op : small.graph().ops())
    temporary = std::max(temporary, small.graph()[op].temporary);
  for (const Load& load : loads) {
    Bytes capacity, needed = total;
    for (const DeviceId device : small.cluster().devices()) {
      if (load.may_run[device] == 0) continue;
      capacity += small.cluster()[device].capacity;
      needed += load.held + temporary;
    }
    if (static_cast<double>(needed.count()) > memory_share * static_cast<double>(capacity.count()))
      return "room for everything at once, wherever it goes, would take " + short_text(needed) +
             " and there are " + short_text(capacity);
  }
  return "";
}

bool some_device_holds(const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  const auto order = graph.topological_order();
  return std::ranges::any_of(costs.cluster().devices(), [&](DeviceId device) {
    if (!std::ranges::all_of(graph.ops(), [&](OpId op) { return costs.may_run(op, device); }))
      return false;
    DeviceOrder orders(costs.cluster().num_devices());
    orders[device].assign(order.begin(), order.end());
    const Trace trace = simulate(costs, {Placement(graph.num_ops(), device), std::move(orders)});
    return !find_overflow(trace, costs.cluster()).has_value();
  });
}

}  // namespace

ForwardOnly find_forward_only(const CostModel& costs, const ForwardOnlyOptions& options,
                              const CostModel* whole) {
  const OpGraph& graph = costs.graph();
  const auto no = [](const std::string& reason) {
    return ForwardOnly{std::nullopt, "backward operators are placed too: " + reason};
  };
  if (std::none_of(graph.ops().begin(), graph.ops().end(),
                   [&](OpId op) { return graph[op].backward; }))
    return no("there are none");
  const Leaders leader = find_leaders(graph);
  for (const OpId op : graph.ops())
    if (!leader[op].has_value())
      return no(in_quotes(graph[op].name) + " has no forward operator to follow");
  const ForwardGraph forward(costs, leader, options.suffices);
  if (const std::optional<OpId> op = forward.without_device(); op.has_value())
    return no("no device can run '" + std::string(graph[*op].name) +
              "' and its backward operators");
  if (options.suffices == MemorySuffices::kForOneDevice &&
      !some_device_holds(whole != nullptr ? *whole : costs))
    return no("no device has room for all of the model");
  Contracted small = forward.build();
  if (options.suffices == MemorySuffices::kForAllAnywhere)
    if (const std::string reason =
            memory_objection(CostModel(small.graph, costs.cluster()), options.memory_share);
        !reason.empty())
      return no(reason);
  return {std::move(small), "backward operators follow forward ones"};
}

Optimized forward_only(const CostModel& costs, const ForwardOnlyOptions& options) {
  const OpGraph& graph = costs.graph();
  const PassClock clock("forward", graph);
  ForwardOnly found = find_forward_only(costs, options);
  Contracted small = found.small.has_value()
                         ? *std::move(found.small)
                         : contract(graph, each_alone(graph), group_labels(graph));
  PassStatistics statistics = clock.stop(small.graph, std::move(found.note));
  return {std::move(small.graph), std::move(small.expansion), {std::move(statistics)}};
}

}  // namespace baechi
