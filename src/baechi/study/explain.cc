// SPDX-License-Identifier: Apache-2.0
#include "baechi/study/explain.h"

#include <algorithm>
#include <map>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/simulate/execution_simulator.h"

namespace baechi {
namespace {

// A device that computes for such a part of the step leaves little to gain elsewhere.
constexpr double kNearlyAlways = 0.9;
constexpr std::int64_t kFullShare = 20;  // less than 1/20 free

Bytes& part_of(MemoryHolder& holder, MemoryUse use) {
  switch (use) {
    case MemoryUse::kPermanent:
      return holder.permanent;
    case MemoryUse::kTemporary:
      return holder.temporary;
    case MemoryUse::kOutput:
      return holder.outputs;
    case MemoryUse::kCopy:
      break;
  }
  return holder.copies;
}

DevicePeak peak_of(const OpGraph& graph, const std::vector<HeldMemory>& held) {
  std::map<OpId, MemoryHolder> by_first;  // of the group, or the operator itself
  OpId last(0);
  for (const HeldMemory& part : held) {
    const std::optional<GroupId> group = graph[part.op].group;
    const OpId first = group.has_value() ? graph.members(*group).front() : part.op;
    const auto [at, is_new] = by_first.try_emplace(first, MemoryHolder{.op = first});
    if (!is_new && part.op != last) ++at->second.num_ops;
    part_of(at->second, part.use) += part.bytes;
    last = part.op;
  }
  DevicePeak peak;
  for (auto& [first, holder] : by_first) {
    peak.permanent += holder.permanent;
    peak.temporary += holder.temporary;
    peak.outputs += holder.outputs;
    peak.copies += holder.copies;
    peak.holders.push_back(holder);
  }
  std::stable_sort(
      peak.holders.begin(), peak.holders.end(),
      [](const MemoryHolder& a, const MemoryHolder& b) { return a.total() > b.total(); });
  return peak;
}

Bottleneck bottleneck_of(const CriticalPath& path, Time busiest, Time makespan) {
  const Time waiting = path.total(CriticalUse::kDeviceWait);
  const Time sending = path.total(CriticalUse::kTransfer) + path.total(CriticalUse::kQueueWait);
  const Time computing = path.total(CriticalUse::kCompute);
  if (static_cast<double>(busiest.count()) >= kNearlyAlways * static_cast<double>(makespan.count()))
    return Bottleneck::kDeviceLoad;
  if (sending >= waiting && sending >= computing) return Bottleneck::kCommunication;
  return waiting >= computing ? Bottleneck::kSharedDevices : Bottleneck::kDependencies;
}

// Tries one operator on every device.
class Relocation {
 public:
  Relocation(const CostModel& costs, const Plan& plan, OpId op, const CancelFlag* cancel)
      : costs_(costs),
        graph_(costs.graph()),
        plan_(plan),
        schedule_(plan.schedule),
        cancel_(cancel),
        sequence_(sequence_of(plan.schedule, graph_)) {
    told_.op = op;
    if (graph_[op].group.has_value())
      for (const OpId member : graph_.members(*graph_[op].group))
        if (member != op) told_.moves_along.push_back(member);
    const OpSlot& slot = schedule_.slots[op];
    told_.device = slot.device;
    told_.start = slot.start;
    told_.end = slot.end;
    told_.ready = inputs_on(slot.device);
    const CriticalPath path = critical_path(graph_, costs.cluster(), schedule_);
    told_.critical = std::any_of(
        path.links.begin(), path.links.end(),
        [&](const CriticalLink& link) { return link.op == op && !link.transfer.has_value(); });
  }

  OperatorExplanation take() {
    for (const DeviceId device : costs_.cluster().devices()) {
      throw_if_cancelled(cancel_);
      told_.alternatives.push_back(on(device));
    }
    return std::move(told_);
  }

 private:
  Alternative on(DeviceId device) const {
    Alternative result{.device = device, .obstacle = obstacle_on(device)};
    if (!result.obstacle.empty()) return result;
    result.inputs = inputs_on(device);
    const Time duration = *costs_.compute_time(told_.op, device);
    result.start =
        device == told_.device ? told_.start : first_gap(device, result.inputs, duration);
    result.finish = result.start + duration;
    if (device == told_.device) {
      result.finish = told_.end;  // with its messages, which elsewhere would be others
      stay(result);
    } else {
      replay(device, result);
    }
    return result;
  }

  std::string obstacle_on(DeviceId device) const {
    std::string obstacle = obstacle_of(told_.op, device);
    for (const OpId other : told_.moves_along) {
      if (!obstacle.empty()) break;
      if (const std::string reason = obstacle_of(other, device); !reason.empty())
        obstacle = "'" + std::string(graph_[other].name) + "' of its colocation group: " + reason;
    }
    return obstacle;
  }

  std::string obstacle_of(OpId op, DeviceId device) const {
    if (!costs_.compute_time(op, device).has_value())
      return "no compute time for kind '" + costs_.cluster()[device].kind + "'";
    if (const std::optional<DeviceId> pin = costs_.pin(op); pin.value_or(device) != device)
      return "pinned to " + costs_.cluster()[*pin].name;
    return {};
  }

  // A tensor that is sent there anyway comes when it comes; another one straight after its
  // producer.
  Time inputs_on(DeviceId device) const {
    Time there;
    for (const Edge& edge : graph_.in_edges(told_.op)) {
      const OpSlot& producer = schedule_.slots[edge.from];
      Time arrival = producer.end;
      if (edge.tensor.has_value() && producer.device != device) {
        const std::optional<Time> sent = sent_at(*edge.tensor, device);
        arrival = sent.has_value()
                      ? *sent
                      : producer.end + costs_.transfer_time(*edge.tensor, producer.device, device);
      }
      there = std::max(there, arrival);
    }
    return there;
  }

  std::optional<Time> sent_at(TensorId tensor, DeviceId to) const {
    const auto at = std::lower_bound(
        schedule_.transfers.begin(), schedule_.transfers.end(), std::pair(tensor, to),
        [](const Transfer& transfer, const std::pair<TensorId, DeviceId>& key) {
          return std::pair(transfer.tensor, transfer.to) < key;
        });
    if (at == schedule_.transfers.end() || at->tensor != tensor || at->to != to)
      return std::nullopt;
    return at->end;
  }

  Time first_gap(DeviceId device, Time from, Time duration) const {
    Time start = from;
    for (const OpId other : sequence_) {
      const OpSlot& slot = schedule_.slots[other];
      if (slot.device != device || slot.end <= start) continue;
      if (slot.start >= start + duration) break;
      start = slot.end;
    }
    return start;
  }

  void stay(Alternative& result) const {
    result.makespan = schedule_.makespan;
    result.peak = plan_.devices[told_.device].peak;
    for (const DeviceId device : plan_.devices.keys()) {
      const Bytes over = plan_.devices[device].peak - costs_.cluster()[device].capacity;
      if (over <= Bytes(0) || result.runs_over.has_value()) continue;
      result.runs_over = device;
      result.over = over;
    }
  }

  void replay(DeviceId device, Alternative& result) const {
    PlacedGraph placed{placement_of(schedule_), DeviceOrder(costs_.cluster().num_devices())};
    placed.device[told_.op] = device;
    for (const OpId other : told_.moves_along) placed.device[other] = device;
    for (const OpId op : sequence_) (*placed.order)[placed.device[op]].push_back(op);
    if (plan_.order != ExecutionOrder::kPlanned) {
      placed = as_executed(std::move(placed), plan_.order, graph_, costs_.cluster().num_devices());
      return take_replay(placed, device, result, true);
    }
    take_replay(placed, device, result, true);
    placed.order.reset();
    take_replay(placed, device, result, false);
  }

  // What fits comes before what does not, and then the shorter step.
  void take_replay(const PlacedGraph& placed, DeviceId device, Alternative& result,
                   bool is_first) const {
    const Trace trace = simulate(costs_, placed, {.cancel = cancel_});
    const std::optional<Overflow> overflow = find_overflow(trace, costs_.cluster());
    if (!is_first && std::pair(overflow.has_value(), trace.schedule.makespan) >=
                         std::pair(result.runs_over.has_value(), result.makespan))
      return;
    result.makespan = trace.schedule.makespan;
    result.peak = trace.devices[device].peak;
    result.runs_over.reset();
    result.over = Bytes(0);
    if (!overflow.has_value()) return;
    result.runs_over = overflow->device;
    result.over = overflow->over;
  }

  const CostModel& costs_;
  const OpGraph& graph_;
  const Plan& plan_;
  const Schedule& schedule_;
  const CancelFlag* cancel_;
  std::vector<OpId> sequence_;
  OperatorExplanation told_;
};

}  // namespace

PlanExplanation explain_plan(const StepGraph& step, const Cluster& cluster, const Plan& plan) {
  const OpGraph& graph = step.graph();
  PlanExplanation told;
  told.path = critical_path(graph, cluster, plan.schedule);
  told.segments = told.path.segments(plan.schedule);
  IdVector<DeviceId, Time> moments;
  for (const DeviceId device : plan.devices.keys()) {
    const PlanDevice& seen = plan.devices[device];
    moments.push_back(seen.peak_at);
    if (!told.busiest.has_value() || seen.busy > plan.devices[*told.busiest].busy)
      told.busiest = device;
    const Bytes capacity = cluster[device].capacity;
    if (capacity - seen.highest() < Bytes(capacity.count() / kFullShare))
      told.full.push_back(device);
  }
  told.bottleneck =
      bottleneck_of(told.path, plan.devices[*told.busiest].busy, plan.schedule.makespan);
  for (const std::vector<HeldMemory>& held : held_memory(graph, plan.schedule, moments))
    told.peaks.push_back(peak_of(graph, held));
  told.second_runs = second_run_facts(step, plan);
  told.host = host_facts(step, cluster, plan);
  return told;
}

OperatorExplanation explain_operator(const CostModel& costs, const Plan& plan, OpId op,
                                     const CancelFlag* cancel) {
  if (plan.replicas.any())
    throw InputError("op", "an operator of replicas moves with its copies: explain the whole plan");
  return Relocation(costs, plan, op, cancel).take();
}

}  // namespace baechi
