// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/residency/residency_search.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

#include "baechi/simulate/simulator.h"

namespace baechi {
namespace {

constexpr std::array<double, 8> kKeepParts{0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0};
constexpr std::array<double, 5> kUnitParts{0.0, 0.2, 0.4, 0.6, 0.8};
constexpr int kRounds = 8;  // of replays that correct the account of one choice

// What stands on the store, by when it can be done there: fetches when what they wait for is over,
// updates when their gradients have come.
std::vector<OpId> store_order(const OpGraph& graph, const OpGraph& step, const Residency& residency,
                              const IdVector<OpId, Time>& ready) {
  std::vector<OpId> order(residency.on_store);
  for (std::size_t i = graph.num_ops(); i < step.num_ops(); ++i) order.emplace_back(i);
  IdVector<OpId, std::size_t> rank(step.num_ops());
  for (std::size_t i = 0; i < step.num_ops(); ++i) rank[step.topological_order()[i]] = i;
  std::ranges::sort(order, [&](OpId a, OpId b) {
    return std::tuple(!step[a].variable, ready[a], rank[a]) <
           std::tuple(!step[b].variable, ready[b], rank[b]);
  });
  return order;
}

class Search {
 public:
  Search(const CostModel& costs, ResidencyStart start)
      : costs_(costs), start_(std::move(start)), units_(units_for_store(costs, start_.store)) {}

  void try_parts(double units, double keep) {
    ResidencyPrefer prefer{units, keep, IdVector<DeviceId, Bytes>(costs_.cluster().num_devices())};
    for (const DeviceId device : costs_.cluster().devices())
      prefer.memory[device] = costs_.cluster()[device].capacity;
    ResidencyStart start = start_;
    for (int round = 0; round < kRounds; ++round) {
      FoundResidency found = replay(start, prefer);
      const bool fits = found.fits;
      offer(std::move(found));
      if (fits && round > 1) break;
      if (!fits)
        for (const DeviceId device : costs_.cluster().devices())
          prefer.memory[device] -= std::min(prefer.memory[device], excess_[device]);
    }
  }

  std::optional<FoundResidency> take() && { return std::move(best_); }

 private:
  // When everything on the store can be done, by an estimate of when the rest runs.
  IdVector<OpId, Time> ready_by(const OpGraph& step, const ResidencyStart& start) const {
    IdVector<OpId, Time> ready(step.num_ops());
    for (const OpId op : step.topological_order()) {
      if (step[op].variable) continue;
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
    order[start.store] = store_order(graph, step, found.residency, ready_by(step, start));
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

  void offer(FoundResidency found) {
    if (best_.has_value() && std::tuple(!best_->fits, best_->over, best_->makespan) <=
                                 std::tuple(!found.fits, found.over, found.makespan))
      return;
    best_ = std::move(found);
  }

  const CostModel& costs_;
  ResidencyStart start_;
  std::vector<StoredUnit> units_;
  IdVector<DeviceId, Bytes> excess_;
  std::optional<FoundResidency> best_;
};

}  // namespace

std::optional<FoundResidency> find_residency(const CostModel& costs, ResidencyStart start,
                                             bool all) {
  Search search(costs, std::move(start));
  if (all) {
    search.try_parts(0, 0);
  } else {
    for (const double units : kUnitParts)
      for (const double keep : kKeepParts)
        if (keep >= units) search.try_parts(units, keep);
  }
  return std::move(search).take();
}

}  // namespace baechi
