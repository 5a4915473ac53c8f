// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/residency/residency_search.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "baechi/simulate/simulator.h"

namespace baechi {
namespace {

constexpr std::array<double, 6> kKeepParts{0.0, 0.5, 0.8, 0.9, 0.95, 1.0};
constexpr std::array<double, 5> kUnitParts{0.0, 0.2, 0.4, 0.6, 0.8};
constexpr std::size_t kLead = 6;  // and of the best choice these:
constexpr std::array<std::size_t, 3> kOtherLeads{0, 12, 24};
constexpr int kRounds = 5;  // of replays that correct the account of one choice

// What is known of a step before its store has an order.
struct Unordered {
  const OpGraph& step;
  const DeviceOrder& order;          // of the devices
  const IdVector<OpId, Time>& when;  // about when each may be done
};

// The operators of the store, the earliest first, so that no device ever waits for itself: as they come in
// one order of all operators that agrees with the graph and with the devices.
std::vector<OpId> store_order(const Unordered& given, const IdVector<OpId, bool>& on_store) {
  const OpGraph& step = given.step;
  IdVector<OpId, std::size_t> waits(step.num_ops());
  IdVector<OpId, std::optional<OpId>> next(step.num_ops());
  for (const OpId op : step.ops()) waits[op] = step.in_edges(op).size();
  for (const std::vector<OpId>& ops : given.order)
    for (std::size_t i = 1; i < ops.size(); ++i) {
      next[ops[i - 1]] = ops[i];
      ++waits[ops[i]];
    }
  using Entry = std::tuple<bool, Time, OpId>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> free;
  const auto offer = [&](OpId op) { free.emplace(!step[op].variable, given.when[op], op); };
  for (const OpId op : step.ops())
    if (waits[op] == 0) offer(op);
  std::vector<OpId> order;
  while (!free.empty()) {
    const OpId op = std::get<OpId>(free.top());
    free.pop();
    if (on_store[op]) order.push_back(op);
    for (const Edge& edge : step.out_edges(op))
      if (--waits[edge.to] == 0) offer(edge.to);
    if (next[op].has_value() && --waits[*next[op]] == 0) offer(*next[op]);
  }
  return order;
}

class Search {
 public:
  Search(const CostModel& costs, ResidencyStart start)
      : costs_(costs), start_(std::move(start)), units_(units_for_store(costs, start_.store)) {}

  // Whether any of it fits.
  bool try_parts(double units, double keep, std::size_t lead) {
    bool any = false;
    ResidencyPrefer prefer{lead, units, keep,
                           IdVector<DeviceId, Bytes>(costs_.cluster().num_devices())};
    for (const DeviceId device : costs_.cluster().devices())
      prefer.memory[device] = costs_.cluster()[device].capacity;
    ResidencyStart start = start_;
    for (int round = 0; round < kRounds; ++round) {
      FoundResidency found = replay(start, prefer);
      const bool fits = found.fits;
      any = any || fits;
      if (offer(std::move(found))) best_parts_ = {units, keep};
      if (fits && round > 1) break;
      if (!fits)
        for (const DeviceId device : costs_.cluster().devices())
          prefer.memory[device] -= std::min(prefer.memory[device], excess_[device]);
    }
    return any;
  }

  void try_other_leads() {
    const auto [units, keep] = best_parts_;
    for (const std::size_t lead : kOtherLeads) try_parts(units, keep, lead);
  }

  std::optional<FoundResidency> take() && { return std::move(best_); }

 private:
  // When everything on the store can be done, by an estimate of when the rest runs, and when that starts.
  IdVector<OpId, Time> ready_by(const OpGraph& step, const ResidencyStart& start) const {
    IdVector<OpId, Time> ready(step.num_ops());
    for (const OpId op : step.topological_order()) {
      if (step[op].variable) continue;
      if (op.index() < start.slots.size() && !on_store_[op]) {
        ready[op] = start.slots[op].start;
        continue;
      }
      for (const Edge& edge : step.in_edges(op)) {
        const bool given = edge.from.index() < start.slots.size();
        if (!given || step[edge.from].variable) continue;
        Time end = start.slots[edge.from].end;
        if (edge.tensor.has_value() && start.device[edge.from] != start.store)
          end += costs_.cluster()
                     .link(start.device[edge.from], start.store)
                     .transfer_time(step.size(*edge.tensor));
        ready[op] = std::max(ready[op], end);
      }
    }
    return ready;
  }

  FoundResidency replay(ResidencyStart& start, const ResidencyPrefer& prefer) {
    const OpGraph& graph = costs_.graph();
    FoundResidency found;
    found.residency = choose_residency(costs_, start, units_, prefer);
    const OpGraph step = residing(graph, found.residency);
    const CostModel costs(step, costs_.cluster());
    found.placed.device = start.device;
    for (const OpId op : found.residency.on_store) found.placed.device[op] = start.store;
    for (std::size_t i = graph.num_ops(); i < step.num_ops(); ++i)
      found.placed.device.push_back(start.store);
    DeviceOrder order(costs_.cluster().num_devices());
    for (const DeviceId device : order.keys())
      for (const OpId op : start.order[device])
        if (found.placed.device[op] == device) order[device].push_back(op);
    on_store_.assign(step.num_ops(), false);
    for (const OpId op : step.ops()) on_store_[op] = found.placed.device[op] == start.store;
    const IdVector<OpId, Time> ready = ready_by(step, start);
    order[start.store] = store_order({step, order, ready}, on_store_);
    found.placed.order = std::move(order);
    Simulator simulator(costs);
    const StepSummary& summary = simulator.run(found.placed);
    found.makespan = summary.makespan;
    found.fits = true;
    excess_.assign(costs_.cluster().num_devices(), Bytes(0));
    for (const DeviceId device : costs_.cluster().devices()) {
      const Bytes capacity = costs_.cluster()[device].capacity, peak = summary.peaks[device];
      if (peak <= capacity) continue;
      found.fits = false;
      excess_[device] = peak - capacity;
      if (excess_[device] <= found.over) continue;
      found.over = excess_[device];
      found.step_needs = peak;
    }
    for (const OpId op : graph.ops()) start.slots[op] = simulator.slots()[op];
    return found;
  }

  bool offer(FoundResidency found) {
    if (best_.has_value() && std::tuple(!best_->fits, best_->over, best_->makespan) <=
                                 std::tuple(!found.fits, found.over, found.makespan))
      return false;
    best_ = std::move(found);
    return true;
  }

  const CostModel& costs_;
  ResidencyStart start_;
  std::vector<StoredUnit> units_;
  IdVector<DeviceId, Bytes> excess_;
  IdVector<OpId, bool> on_store_;  // of the step that is replayed
  std::optional<FoundResidency> best_;
  std::pair<double, double> best_parts_{0, 0};  // of the best
};

}  // namespace

std::optional<FoundResidency> find_residency(const CostModel& costs, ResidencyStart start,
                                             bool all) {
  Search search(costs, std::move(start));
  if (all) {
    search.try_parts(0, 0, 0);
  } else {
    for (const double units : kUnitParts)
      for (const double keep : kKeepParts)
        if (keep >= units && !search.try_parts(units, keep, kLead))
          search.try_parts(units, keep, 0);
    search.try_other_leads();
  }
  return std::move(search).take();
}

}  // namespace baechi
