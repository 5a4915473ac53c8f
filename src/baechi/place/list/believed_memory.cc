// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/list/believed_memory.h"

#include <algorithm>

namespace baechi {
namespace {

bool holds_everything(const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  Bytes everything, temporary;
  for (const OpId op : graph.ops()) {
    everything += graph[op].permanent;
    temporary = std::max(temporary, graph[op].temporary);
  }
  for (const TensorId tensor : graph.tensors()) everything += graph.size(tensor);
  const IdRange<DeviceId> devices = costs.cluster().devices();
  return std::all_of(devices.begin(), devices.end(), [&](DeviceId device) {
    return everything + temporary <= costs.cluster()[device].capacity;
  });
}

}  // namespace

BelievedMemory::BelievedMemory(const CostModel& costs, MemoryPolicy policy, double headroom)
    : costs_(&costs), policy_(policy), ample_(holds_everything(costs)) {
  if (ample_) return;
  const OpGraph& graph = costs.graph();
  const std::size_t num_devices = costs.cluster().num_devices();
  used_.resize(num_devices);
  for (const DeviceId device : costs.cluster().devices())
    headroom_.push_back(Bytes(static_cast<std::int64_t>(
        headroom * static_cast<double>(costs.cluster()[device].capacity.count()))));
  temporary_.resize(num_devices);
  frees_.resize(num_devices);
  frees_of_.resize(num_devices);
  groups_.resize(graph.num_groups());
  outputs_.resize(graph.num_ops());
  for (const OpId op : graph.ops()) {
    outputs_[op] = graph.output_bytes(op);
    if (!graph[op].group.has_value()) continue;
    GroupNeed& group = groups_[*graph[op].group];
    group.permanent += graph[op].permanent;
    group.outputs += outputs_[op];
    group.temporary = std::max(group.temporary, graph[op].temporary);
    group.largest_step = std::max(group.largest_step, graph[op].temporary + outputs_[op]);
  }
}

Bytes BelievedMemory::overrun(const Asking& asking) const {
  const auto [op, device, copies, opens_group, by_choice] = asking;
  const Operator& operation = costs_->graph()[op];
  const Bytes capacity = costs_->cluster()[device].capacity;
  const bool grouped = operation.group.has_value();
  Bytes need = used_[device] + copies;
  if (policy_ == MemoryPolicy::kReserve) {
    Bytes temporary = operation.temporary;
    if (opens_group) {
      const GroupNeed& group = groups_[*operation.group];
      need += group.permanent + group.outputs;
      temporary = group.temporary;
    } else if (!grouped) {
      need += operation.permanent + outputs_[op];
    }
    return need + std::max(temporary, temporary_[device]) - capacity;
  }
  if (opens_group) {
    const GroupNeed& group = groups_[*operation.group];
    need += group.permanent + group.largest_step;
  } else {
    need += outputs_[op] + operation.temporary;
    if (!grouped) need += operation.permanent;
  }
  if (by_choice) need += headroom_[device];
  return need - capacity;
}

void BelievedMemory::take(OpId op, DeviceId device, bool opens_group) {
  const Operator& operation = costs_->graph()[op];
  const bool reserve = policy_ == MemoryPolicy::kReserve;
  Bytes temporary = operation.temporary;
  if (opens_group) {
    const GroupNeed& group = groups_[*operation.group];
    used_[device] += group.permanent;
    if (reserve) used_[device] += group.outputs;
    temporary = group.temporary;
  } else if (!operation.group.has_value()) {
    used_[device] += operation.permanent;
  }
  if (!reserve || !operation.group.has_value()) used_[device] += outputs_[op];
  if (reserve) temporary_[device] = std::max(temporary_[device], temporary);
}

void BelievedMemory::free_later(DeviceId device, Time at, Bytes bytes) {
  if (policy_ == MemoryPolicy::kLive && bytes > Bytes(0)) frees_[device].push({at, bytes});
}

Bytes BelievedMemory::free_by(DeviceId device, Time now) const {
  Bytes bytes;
  for (const Free& free : frees_[device].all())
    if (free.at <= now) bytes += free.bytes;
  return bytes;
}

void BelievedMemory::advance(DeviceId device, Time now) {
  auto& frees = frees_[device];
  while (!frees.empty() && frees.top().at <= now) {
    used_[device] -= frees.top().bytes;
    frees.pop();
    ++num_frees_;
    ++frees_of_[device];
  }
}

std::optional<Time> BelievedMemory::next_free() const {
  std::optional<Time> next;
  for (const auto& frees : frees_)
    if (!frees.empty()) next = std::min(next.value_or(frees.top().at), frees.top().at);
  return next;
}

}  // namespace baechi
