// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/residency/residency_replay.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "baechi/schedule/step_order.h"
#include "baechi/simulate/settle.h"
#include "baechi/simulate/simulator.h"

namespace baechi {
namespace {

class StoreOrder {
 public:
  StoreOrder(const ResidencyProblem& problem, const ResidencyStart& start, const OpGraph& step,
             const Placement& device)
      : problem_(problem),
        cluster_(problem.costs.cluster()),
        start_(start),
        step_(step),
        device_(device) {
    for (const OpId op : step.ops()) on_store_.push_back(device[op] == start.store);
  }

  DeviceOrder order(StoreRule rule) {
    DeviceOrder order(cluster_.num_devices());
    for (const DeviceId device : order.keys())
      for (const OpId op : start_.order[device]) {
        if (on_store_[op]) continue;
        order[device].push_back(op);
        for (const Edge& edge : step_.out_edges(op))
          if (edge.to.index() >= start_.slots.size() && !on_store_[edge.to])
            order[device].push_back(edge.to);  // the values that a streamed update has made
      }
    IdVector<OpId, Time> ready = ready_by(rule.queues);
    if (!rule.first_come) one_after_the_other(ready);
    order[start_.store] = store_order(order, ready);
    return order;
  }

 private:
  // When everything on the store can be done, by an estimate of when the rest runs, and when that starts.
  IdVector<OpId, Time> ready_by(bool queues) const {
    const IdVector<TensorId, Time> there = arrivals(queues);
    IdVector<OpId, Time> ready(step_.num_ops());
    for (const OpId op : step_.topological_order()) {
      if (step_[op].variable) continue;
      if (op.index() < start_.slots.size() && !on_store_[op]) {
        ready[op] = start_.slots[op].start;
        continue;
      }
      for (const Edge& edge : step_.in_edges(op))
        if (is_estimated(edge.from))
          ready[op] = std::max(ready[op],
                               edge.tensor.has_value() ? there[*edge.tensor] : end_of(edge.from));
    }
    return ready;
  }

  bool is_estimated(OpId op) const {
    const bool given = op.index() < start_.slots.size();
    return !step_[op].variable && (given || !on_store_[op]);
  }
  // New values of a streamed update are there when it ends, the last that it waits for.
  Time end_of(OpId op) const {
    if (op.index() < start_.slots.size()) return start_.slots[op].end;
    Time end;
    for (const Edge& edge : step_.in_edges(op))
      if (!edge.tensor.has_value()) end = std::max(end, start_.slots[edge.from].end);
    return end;
  }

  // On the store, what each device sends it, one after the other if it queues; where they are made, all others.
  IdVector<TensorId, Time> arrivals(bool queues) const {
    IdVector<TensorId, Time> there(step_.num_tensors());
    std::vector<std::pair<Time, TensorId>> sent;
    for (const OpId op : step_.ops()) {
      if (!is_estimated(op)) continue;
      for (const TensorId tensor : step_.outputs(op)) {
        there[tensor] = end_of(op);
        if (device_[op] != start_.store &&
            std::ranges::any_of(step_.consumers(tensor),
                                [&](const Edge& edge) { return on_store_[edge.to]; }))
          sent.emplace_back(there[tensor], tensor);
      }
    }
    std::ranges::sort(sent);
    IdVector<DeviceId, Time> free(cluster_.num_devices());
    for (const auto& [made, tensor] : sent) {
      const DeviceId from = device_[step_.producer(tensor)];
      free[from] = (queues ? std::max(free[from], made) : made) +
                   cluster_.link(from, start_.store).transfer_time(step_.size(tensor));
      there[tensor] = free[from];
    }
    return there;
  }

  // Updates when the store comes to them, so that fetches which are asked for by then go before them.
  void one_after_the_other(IdVector<OpId, Time>& ready) const {
    std::vector<std::pair<Time, OpId>> updates;
    for (const OpId op : problem_.costs.graph().ops())
      if (on_store_[op] && is_update(problem_.step, op)) updates.emplace_back(ready[op], op);
    std::ranges::sort(updates);
    Time free;
    for (const auto& [at, op] : updates) {
      ready[op] = std::max(at, free);
      free = ready[op] + problem_.costs.compute_time(op, start_.store).value_or(Time(0));
    }
  }

  // The operators of the store, the earliest first, so that no device ever waits for itself: as they
  // come in one order of all operators that agrees with the graph and with the devices.
  std::vector<OpId> store_order(const DeviceOrder& devices,
                                const IdVector<OpId, Time>& ready) const {
    IdVector<OpId, std::size_t> waits(step_.num_ops());
    IdVector<OpId, std::optional<OpId>> next(step_.num_ops());
    for (const OpId op : step_.ops()) waits[op] = step_.in_edges(op).size();
    for (const std::vector<OpId>& ops : devices)
      for (std::size_t i = 1; i < ops.size(); ++i) {
        next[ops[i - 1]] = ops[i];
        ++waits[ops[i]];
      }
    using Entry = std::tuple<bool, Time, OpId>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> free;
    const auto offer = [&](OpId op) { free.emplace(!step_[op].variable, ready[op], op); };
    for (const OpId op : step_.ops())
      if (waits[op] == 0) offer(op);
    std::vector<OpId> order;
    while (!free.empty()) {
      const OpId op = std::get<OpId>(free.top());
      free.pop();
      if (on_store_[op]) order.push_back(op);
      for (const Edge& edge : step_.out_edges(op))
        if (--waits[edge.to] == 0) offer(edge.to);
      if (next[op].has_value() && --waits[*next[op]] == 0) offer(*next[op]);
    }
    return order;
  }

  const ResidencyProblem& problem_;
  const Cluster& cluster_;
  const ResidencyStart& start_;
  const OpGraph& step_;
  const Placement& device_;
  IdVector<OpId, bool> on_store_;
};

void measure(const Cluster& cluster, ReplayedResidency& found) {
  found.fits = true;
  found.over = Bytes(0);
  for (const DeviceId device : cluster.devices()) {
    const Bytes peak = found.peaks[device], capacity = cluster[device].capacity;
    if (peak <= capacity) continue;
    found.fits = false;
    if (peak - capacity <= found.over) continue;
    found.over = peak - capacity;
    found.fullest = device;
  }
}

}  // namespace

ReplayedResidency replay(const ResidencyProblem& problem, ResidencyStart& start,
                         Residency residency, StoreRule rule) {
  const Cluster& cluster = problem.costs.cluster();
  const OpGraph step = residing(problem.step, residency);
  const CostModel costs(step, cluster);
  ReplayedResidency found;
  found.placed.device = start.device;
  for (const OpId op : residency.on_store) found.placed.device[op] = start.store;
  while (found.placed.device.size() < step.num_ops()) found.placed.device.push_back(start.store);
  const std::vector<OpId> streamed = streamed_updates(problem.step, residency);
  for (std::size_t i = 0; i < streamed.size(); ++i)
    found.placed.device[OpId(step.num_ops() - 2 * (streamed.size() - i))] =
        start.device[streamed[i]];
  found.placed.order = StoreOrder(problem, start, step, found.placed.device).order(rule);
  found.residency = std::move(residency);
  Simulator simulator(costs);
  const StepSummary& summary = simulator.run(found.placed);
  found.makespan = summary.makespan;
  found.peaks = summary.peaks;
  measure(cluster, found);
  const IdVector<OpId, OpSlot>& slots = simulator.slots();  // written anew by every call
  for (const OpId op : problem.costs.graph().ops()) start.slots[op] = slots[op];
  return found;
}

bool settle(const ResidencyProblem& problem, ReplayedResidency& found) {
  const Cluster& cluster = problem.costs.cluster();
  const Unrolled step = with_fetches(problem.step, found.residency);
  const std::optional<Trace> trace =
      simulate_settled(CostModel(step.graph, cluster), step, found.placed);
  if (!trace.has_value()) return false;
  found.placed.order =
      with_sums_behind(step, order_of(trace->schedule, step.graph, cluster.num_devices()));
  found.peaks = IdVector<DeviceId, Bytes>(cluster.num_devices());
  for (const DeviceId device : cluster.devices()) found.peaks[device] = trace->devices[device].peak;
  found.makespan = trace->schedule.makespan;
  measure(cluster, found);
  return found.fits;
}

}  // namespace baechi
