// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/facts/waits.h"

#include <algorithm>
#include <tuple>

namespace baechi {
namespace {

// Finds the transfer of a tensor to a device. A plan from a file may lack it.
class TransferIndex {
 public:
  explicit TransferIndex(const std::vector<Transfer>& transfers) : transfers_(transfers) {
    for (std::size_t i = 0; i < transfers.size(); ++i) sorted_.push_back(i);
    std::sort(sorted_.begin(), sorted_.end(),
              [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
  }

  std::optional<std::size_t> find(TensorId tensor, DeviceId to) const {
    const auto at =
        std::lower_bound(sorted_.begin(), sorted_.end(), std::tuple(tensor, to),
                         [&](std::size_t i, const std::tuple<TensorId, DeviceId>& wanted) {
                           return std::tuple(transfers_[i].tensor, transfers_[i].to) < wanted;
                         });
    if (at == sorted_.end() || transfers_[*at].tensor != tensor || transfers_[*at].to != to)
      return std::nullopt;
    return *at;
  }

 private:
  std::tuple<TensorId, DeviceId, std::size_t> key(std::size_t i) const {
    return {transfers_[i].tensor, transfers_[i].to, i};
  }
  const std::vector<Transfer>& transfers_;
  std::vector<std::size_t> sorted_;
};

LastInput last_input(const OpGraph& graph, const Schedule& schedule, const TransferIndex& transfers,
                     OpId op) {
  LastInput last;
  const auto offer = [&](Time at, OpId from, std::optional<std::size_t> transfer) {
    const bool first = !last.op.has_value();
    const bool rather = at == last.ready && transfer.has_value() && !last.transfer.has_value();
    if (first || at > last.ready || rather) last = {at, from, transfer};
  };
  for (const Edge& edge : graph.in_edges(op)) {
    const OpSlot& producer = schedule.slots[edge.from];
    std::optional<std::size_t> transfer;
    if (edge.tensor.has_value() && producer.device != schedule.slots[op].device)
      transfer = transfers.find(*edge.tensor, schedule.slots[op].device);
    offer(transfer.has_value() ? schedule.transfers[*transfer].end : producer.end, edge.from,
          transfer);
  }
  return last;
}

// Shares out the gap [free, start) before an operator.
void add_gap(const Schedule& schedule, const LastInput& last, Time free, Time start,
             IdleTime& idle) {
  const auto within = [&](Time at) { return std::clamp(at, free, start); };
  const Time ready = within(last.ready);
  idle.other += start - ready;
  if (!last.transfer.has_value()) {
    idle.elsewhere += ready - free;
    return;
  }
  const Transfer& transfer = schedule.transfers[*last.transfer];
  const Time requested = within(transfer.requested), moves = within(transfer.start);
  idle.elsewhere += requested - free;
  idle.queued += moves - requested;
  idle.moving += ready - moves;
}

}  // namespace

Waits find_waits(const OpGraph& graph, const Schedule& schedule, const DeviceOrder& order) {
  Waits waits;
  waits.last_input.reserve(graph.num_ops());
  waits.idle.resize(order.size());
  const TransferIndex transfers(schedule.transfers);
  for (const OpId op : graph.ops())
    waits.last_input.push_back(last_input(graph, schedule, transfers, op));
  for (const DeviceId device : order.keys()) {
    Time free;
    for (const OpId op : order[device]) {
      const OpSlot& slot = schedule.slots[op];
      if (slot.start > free)
        add_gap(schedule, waits.last_input[op], free, slot.start, waits.idle[device]);
      free = std::max(free, slot.end);
    }
    waits.idle[device].after = std::max(schedule.makespan, free) - free;
  }
  return waits;
}

}  // namespace baechi
