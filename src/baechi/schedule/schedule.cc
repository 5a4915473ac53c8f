// SPDX-License-Identifier: Apache-2.0
#include "baechi/schedule/schedule.h"

#include <algorithm>
#include <compare>
#include <cstddef>
#include <functional>
#include <limits>
#include <queue>
#include <span>
#include <tuple>
#include <utility>

namespace baechi {

Placement placement_of(const Schedule& schedule) {
  Placement placement;
  placement.reserve(schedule.slots.size());
  for (const OpSlot& slot : schedule.slots) placement.push_back(slot.device);
  return placement;
}

std::vector<OpId> sequence_of(const Schedule& schedule, const OpGraph& graph) {
  IdVector<OpId, std::size_t> rank(graph.num_ops());
  for (std::size_t i = 0; i < graph.num_ops(); ++i) rank[graph.topological_order()[i]] = i;
  std::vector<OpId> sequence(graph.ops().begin(), graph.ops().end());
  std::sort(sequence.begin(), sequence.end(), [&](OpId a, OpId b) {
    const OpSlot &x = schedule.slots[a], &y = schedule.slots[b];
    return std::tie(x.start, x.end, rank[a]) < std::tie(y.start, y.end, rank[b]);
  });
  return sequence;
}

namespace {

// What a schedule shows of the order of operators that took no time at one moment: who sent first.
struct Sent {
  Time first, last;  // when its transfers began and ended

  friend auto operator<=>(const Sent&, const Sent&) = default;
};

IdVector<OpId, Sent> sent_by(const Schedule& schedule, const OpGraph& graph) {
  IdVector<OpId, Sent> sent(graph.num_ops());
  for (const OpId op : graph.ops()) sent[op] = {schedule.slots[op].end, schedule.slots[op].end};
  IdVector<OpId, bool> seen(graph.num_ops(), false);
  for (const Transfer& transfer : schedule.transfers) {
    const OpId op = graph.producer(transfer.tensor);
    sent[op].first = seen[op] ? std::min(sent[op].first, transfer.start) : transfer.start;
    sent[op].last = std::max(sent[op].last, transfer.end);
    seen[op] = true;
  }
  return sent;
}

constexpr std::size_t kElsewhere = std::numeric_limits<std::size_t>::max();

// Sorts operators of one moment by what they sent, each behind those of them that it waits for.
void sort_moment(std::span<OpId> ops, const OpGraph& graph, const IdVector<OpId, Sent>& sent,
                 IdVector<OpId, std::size_t>& place) {
  for (std::size_t i = 0; i < ops.size(); ++i) place[ops[i]] = i;
  std::vector<std::size_t> waits(ops.size());
  for (std::size_t i = 0; i < ops.size(); ++i)
    for (const Edge& edge : graph.in_edges(ops[i])) waits[i] += place[edge.from] != kElsewhere;
  using Key = std::pair<Sent, std::size_t>;
  std::priority_queue<Key, std::vector<Key>, std::greater<>> ready;
  const std::vector<OpId> given(ops.begin(), ops.end());
  for (std::size_t i = 0; i < given.size(); ++i)
    if (waits[i] == 0) ready.emplace(sent[given[i]], i);
  for (std::size_t next = 0; !ready.empty(); ++next) {
    const std::size_t i = ready.top().second;
    ready.pop();
    ops[next] = given[i];
    for (const Edge& edge : graph.out_edges(given[i]))
      if (place[edge.to] != kElsewhere && --waits[place[edge.to]] == 0)
        ready.emplace(sent[edge.to], place[edge.to]);
  }
  for (const OpId op : given) place[op] = kElsewhere;
}

void sort_moments(std::vector<OpId>& sequence, const Schedule& schedule, const OpGraph& graph) {
  const IdVector<OpId, Sent> sent = sent_by(schedule, graph);
  IdVector<OpId, std::size_t> place(graph.num_ops(), kElsewhere);
  for (auto first = sequence.begin(); first != sequence.end();) {
    const Time moment = schedule.slots[*first].start;
    const auto last = std::find_if(first, sequence.end(),
                                   [&](OpId op) { return schedule.slots[op].end != moment; });
    if (last - first > 1) sort_moment(std::span(first, last), graph, sent, place);
    first = last == first ? first + 1 : last;
  }
}

}  // namespace

DeviceOrder order_of(const Schedule& schedule, const OpGraph& graph, std::size_t num_devices) {
  std::vector<OpId> sequence = sequence_of(schedule, graph);
  if (!schedule.transfers.empty()) sort_moments(sequence, schedule, graph);
  DeviceOrder order(num_devices);
  for (const OpId op : sequence) order[schedule.slots[op].device].push_back(op);
  return order;
}

}  // namespace baechi
