// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/search/blame.h"

#include <cstddef>
#include <utility>

namespace baechi {

std::vector<Blame> blame_critical_path(const CostModel& costs, const IdVector<OpId, OpSlot>& slots,
                                       const IdVector<OpId, std::optional<OpId>>& previous) {
  const OpGraph& graph = costs.graph();
  std::vector<Blame> critical;
  OpId op(0);
  for (const OpId other : graph.ops())
    if (slots[other].end > slots[op].end) op = other;

  constexpr std::size_t kLongest = 100'000;
  while (slots[op].start > Time(0) && critical.size() < kLongest) {
    std::optional<Blame> blame;
    std::optional<std::pair<Time, OpId>> transfer;  // the remote input that came last
    for (const Edge& edge : graph.in_edges(op)) {
      const OpSlot& parent = slots[edge.from];
      if (!edge.tensor.has_value() || parent.device == slots[op].device) {
        if (parent.end == slots[op].start) blame = Blame{op, edge.from, Blame::Reason::kLocalInput};
        continue;
      }
      const std::pair arrival(
          parent.end + costs.transfer_time(*edge.tensor, parent.device, slots[op].device),
          edge.from);
      if (!transfer.has_value() || arrival > *transfer) transfer = arrival;
    }
    // Where sends block, a device that nothing else holds up has sent for the operator before.
    const bool sends = costs.cluster().sends_block() &&
                       (!transfer.has_value() || transfer->first < slots[op].start);
    if (!blame.has_value() && previous[op].has_value() &&
        (slots[*previous[op]].end == slots[op].start || sends))
      blame = Blame{op, *previous[op], Blame::Reason::kBusyDevice};
    if (!blame.has_value() && transfer.has_value())
      blame = Blame{op, transfer->second, Blame::Reason::kTransfer};
    if (!blame.has_value()) break;
    critical.push_back(*blame);
    if (blame->cause == op) break;
    op = blame->cause;
  }
  if (critical.empty()) critical.push_back({op, op, Blame::Reason::kLocalInput});
  return critical;
}

}  // namespace baechi
