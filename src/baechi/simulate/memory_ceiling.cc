// SPDX-License-Identifier: Apache-2.0
#include "baechi/simulate/memory_ceiling.h"

#include <algorithm>
#include <limits>

#include "baechi/base/wide.h"

namespace baechi::simulation {
namespace {

bool can_add_up(const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  WideInt sum = 0;
  for (const TensorId tensor : graph.tensors()) sum += graph.size(tensor).count();
  sum *= static_cast<std::int64_t>(costs.cluster().num_devices());
  for (const OpId op : graph.ops())
    sum += WideInt{graph[op].permanent.count()} + graph[op].temporary.count();
  return sum <= std::numeric_limits<std::int64_t>::max();
}

}  // namespace

MemoryCeiling::MemoryCeiling(const CostModel& costs, const ReplayGraph& edges)
    : costs_(&costs),
      graph_(&costs.graph()),
      edges_(&edges),
      can_add_up_(can_add_up(costs)),
      variables_(
          std::ranges::any_of(graph_->ops(), [&](OpId op) { return (*graph_)[op].variable; })),
      place_(graph_->num_ops()),
      rows_(costs.cluster().num_devices()) {}

bool MemoryCeiling::fits(const DeviceOrder& orders, const IdVector<OpId, OpSlot>& slots,
                         std::span<const Copy> copies) {
  if (!can_add_up_) return false;
  orders_ = &orders;
  slots_ = &slots;
  for (const DeviceId device : orders.keys()) lay_out(device, orders[device]);
  for (const OpId op : graph_->ops()) hold_outputs(op);
  while (!copies.empty()) {
    const TensorId tensor = copies.front().tensor;
    const auto end =
        std::ranges::find_if(copies, [&](const Copy& copy) { return copy.tensor != tensor; });
    const auto count = static_cast<std::size_t>(end - copies.begin());
    hold_sent(copies.first(count));
    copies = copies.subspan(count);
  }
  return std::ranges::all_of(orders.keys(), [&](DeviceId device) {
    return most_held(device) <= costs_->cluster()[device].capacity;
  });
}

void MemoryCeiling::lay_out(DeviceId device, const std::vector<OpId>& all) {
  Row& row = rows_[device];
  row.ops.clear();
  row.order = all;
  if (variables_) {
    for (const OpId op : all)
      if (!(*graph_)[op].variable) row.ops.push_back(op);
    row.order = row.ops;
  }
  const std::span<const OpId> order = row.order;
  row.change.assign(order.size() + 1, 0);
  row.until.resize(order.size());
  row.starting = row.ending = 0;
  const auto last = static_cast<Place>(order.size()) - 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    const auto place = static_cast<Place>(i);
    const OpSlot& slot = (*slots_)[order[i]];
    place_[order[i]] = place;
    row.until[i] = slot.end > slot.start || place == last ? place : row.until[i + 1];
    hold(device, place, place, (*graph_)[order[i]].temporary);
  }
}

void MemoryCeiling::hold(DeviceId device, Place first, Place last, Bytes size) {
  Row& row = rows_[device];
  row.change[first] += size.count();
  row.change[row.until[last] + 1] -= size.count();
}

// Those that stay on the device. Others end with their transfers.
void MemoryCeiling::hold_outputs(OpId op) {
  if (variables_ && (*graph_)[op].variable) return;  // permanent
  const DeviceId device = (*slots_)[op].device;
  const auto last = static_cast<Place>(rows_[device].order.size()) - 1;
  for (const TensorId tensor : graph_->outputs(op)) {
    const std::span<const OpId> consumers = edges_->consumers(tensor);
    Place end = place_[op];
    bool sent = false;
    for (const OpId consumer : consumers) {
      if ((*slots_)[consumer].device == device)
        end = std::max(end, place_[consumer]);
      else
        sent = true;
    }
    if (sent) continue;
    if (consumers.empty() || graph_->retains_outputs(op)) end = last;
    hold(device, place_[op], end, graph_->size(tensor));
  }
}

void MemoryCeiling::hold_sent(std::span<const Copy> copies_of_one) {
  const TensorId tensor = copies_of_one.front().tensor;
  const OpId producer = graph_->producer(tensor);
  const DeviceId from = (*slots_)[producer].device;
  const bool kept = graph_->retains_outputs(producer);
  const auto last_of = [&](DeviceId device) {
    return static_cast<Place>(rows_[device].order.size()) - 1;
  };
  Time sent;
  for (const Copy& copy : copies_of_one) {
    sent = std::max(sent, copy.end);
    hold(copy.to, place_at_start(copy.to, copy.start),
         kept ? last_of(copy.to) : last_reader(tensor, copy.to), graph_->size(tensor));
  }
  if ((*graph_)[producer].variable) return;
  const Place first = place_[producer];
  const Place end =
      kept ? last_of(from) : std::max({first, last_reader(tensor, from), place_at_end(from, sent)});
  hold(from, first, end, graph_->size(tensor));
}

// 0 where nobody on the device reads it.
MemoryCeiling::Place MemoryCeiling::last_reader(TensorId tensor, DeviceId device) const {
  Place last = 0;
  for (const OpId consumer : edges_->consumers(tensor))
    if ((*slots_)[consumer].device == device) last = std::max(last, place_[consumer]);
  return last;
}

// The first operator that does not end before. Searches come nearly in order.
MemoryCeiling::Place MemoryCeiling::place_at_start(DeviceId device, Time time) {
  const std::span<const OpId> order = rows_[device].order;
  std::size_t& at = rows_[device].starting;
  while (at > 0 && (*slots_)[order[at - 1]].end >= time) --at;
  while (at + 1 < order.size() && (*slots_)[order[at]].end < time) ++at;
  return static_cast<Place>(at);
}

// The last operator that starts by then, or if it has ended before, the next one.
MemoryCeiling::Place MemoryCeiling::place_at_end(DeviceId device, Time time) {
  const std::span<const OpId> order = rows_[device].order;
  std::size_t& at = rows_[device].ending;
  while (at > 0 && (*slots_)[order[at]].start > time) --at;
  while (at + 1 < order.size() && (*slots_)[order[at + 1]].start <= time) ++at;
  const bool idle = (*slots_)[order[at]].end < time && at + 1 < order.size();
  return static_cast<Place>(idle ? at + 1 : at);
}

Bytes MemoryCeiling::most_held(DeviceId device) const {
  std::int64_t held = 0, most = 0;
  for (const OpId op : (*orders_)[device]) held += (*graph_)[op].permanent.count();
  for (const std::int64_t change : rows_[device].change) {
    held += change;
    most = std::max(most, held);
  }
  return Bytes(most);
}

}  // namespace baechi::simulation
