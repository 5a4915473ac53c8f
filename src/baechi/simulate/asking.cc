// SPDX-License-Identifier: Apache-2.0
#include "baechi/simulate/asking.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <queue>
#include <tuple>

namespace baechi::simulation {
namespace {

std::int64_t num_copies(const OpGraph& graph, const Placement& placement, OpId op,
                        std::vector<DeviceId>& reached) {
  std::int64_t copies = 0;
  for (const TensorId tensor : graph.outputs(op)) {
    reached.clear();
    for (const Edge& edge : graph.consumers(tensor))
      if (const DeviceId to = placement[edge.to]; to != placement[op]) reached.push_back(to);
    std::sort(reached.begin(), reached.end());
    copies += std::unique(reached.begin(), reached.end()) - reached.begin();
  }
  return copies;
}

}  // namespace

std::vector<OpId> order_of_starts(const OpGraph& graph, const DeviceOrder& order,
                                  const IdVector<OpId, OpSlot>& slots) {
  IdVector<OpId, std::size_t> rank(graph.num_ops());
  for (std::size_t i = 0; i < rank.size(); ++i) rank[graph.topological_order()[i]] = i;
  // The next one of every device; variables stand for no turn of theirs.
  using Next = std::tuple<Time, Time, std::size_t, DeviceId, std::size_t>;
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
  const auto push = [&](DeviceId device, std::size_t place) {
    if (place == order[device].size()) return;
    const OpId op = order[device][place];
    next.emplace(slots[op].start, slots[op].end, rank[op], device, place);
  };
  for (const DeviceId device : order.keys()) push(device, 0);
  std::vector<OpId> sequence;
  sequence.reserve(graph.num_ops());
  while (!next.empty()) {
    const auto [start, end, of, device, place] = next.top();
    next.pop();
    sequence.push_back(order[device][place]);
    push(device, place + 1);
  }
  return sequence;
}

void ask(const CostModel& costs, const Placement& placement, std::span<const OpId> sequence,
         IdVector<OpId, Time>& asked) {
  const OpGraph& graph = costs.graph();
  const HostTime host = *costs.cluster().host_time();
  std::vector<Time> clock(costs.cluster().num_hosts(), host.step);
  std::vector<DeviceId> reached;
  asked.assign(graph.num_ops(), Time(0));
  const auto asks_for = [&](OpId op) {
    Time& now = clock[costs.cluster().host_of(placement[op])];
    if (costs.compute_time(op, placement[op]).value_or(Time(0)) > Time(0)) now += host.call;
    asked[op] = now;
    now += host.send * num_copies(graph, placement, op, reached);
  };
  for (const OpId op : graph.ops())
    if (graph[op].variable) asks_for(op);
  for (const OpId op : sequence)
    if (!graph[op].variable) asks_for(op);
}

}  // namespace baechi::simulation
