// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/cut_partition.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/optimize/cut_graph.h"
#include "baechi/optimize/cut_state.h"
#include "baechi/optimize/grouping.h"
#include "baechi/simulate/execution_simulator.h"

namespace baechi {
namespace {

CutLevels coarsen_all(CutGraph&& finest, const Cluster& cluster) {
  // Units that are a sixth of a device's share, or of its memory, leave the cut its freedom.
  constexpr std::int64_t kUnitsPerShare = 6;
  const std::size_t num_devices = cluster.num_devices();
  const UnitCaps caps{
      finest.total_work() / (kUnitsPerShare * static_cast<std::int64_t>(num_devices)),
      cluster.largest_capacity().count() / kUnitsPerShare};
  const std::size_t enough = 20 + 10 * num_devices;
  CutLevels levels;
  levels.graphs.push_back(std::move(finest));
  while (levels.graphs.back().units.size() > enough) {
    IdVector<CutUnitId, CutUnitId> coarse_of;
    std::optional<CutGraph> coarse = coarsen(levels.graphs.back(), caps, coarse_of);
    if (!coarse.has_value()) break;
    levels.graphs.push_back(*std::move(coarse));
    levels.coarse_of.push_back(std::move(coarse_of));
  }
  return levels;
}

// How fast each device runs what it can run, of the sum over all devices.
IdVector<DeviceId, double> relative_speeds(const CostModel& costs) {
  const IdVector<OpId, Time> work = mean_work(costs);
  IdVector<DeviceId, double> speed(costs.cluster().num_devices());
  double all = 0.0;
  for (const DeviceId device : speed.keys()) {
    double here = 1.0, mean = 1.0;
    for (const OpId op : costs.graph().ops())
      if (const std::optional<Time> time = costs.compute_time(op, device); time.has_value()) {
        here += static_cast<double>(time->count());
        mean += static_cast<double>(work[op].count());
      }
    all += speed[device] = mean / here;
  }
  for (double& part : speed) part /= all;
  return speed;
}

// Every device's share of the work, and so much more.
DeviceCaps device_caps(const Cluster& cluster, const IdVector<DeviceId, double>& speed,
                       std::int64_t total_work, double slack, double memory_share) {
  DeviceCaps caps(speed.size());
  for (const DeviceId device : speed.keys()) {
    const auto capacity = static_cast<double>(cluster[device].capacity.count());
    caps[device] = {
        static_cast<std::int64_t>(static_cast<double>(total_work) * speed[device] * (1.0 + slack)),
        static_cast<std::int64_t>(capacity * memory_share)};
  }
  return caps;
}

// By the larger of their shares of all work and of all memory, the largest first.
std::vector<CutUnitId> by_bulk(const CutGraph& graph) {
  double work = 1.0, memory = 1.0;
  for (const CutUnit& unit : graph.units) {
    work += static_cast<double>(unit.work);
    memory += static_cast<double>(unit.memory);
  }
  std::vector<CutUnitId> order;
  for (const CutUnitId unit : graph.units.keys()) order.push_back(unit);
  const auto bulk = [&](CutUnitId unit) {
    return std::max(static_cast<double>(graph.units[unit].work) / work,
                    static_cast<double>(graph.units[unit].memory) / memory);
  };
  std::sort(order.begin(), order.end(), [&](CutUnitId a, CutUnitId b) {
    const double x = bulk(a), y = bulk(b);
    return x != y ? x > y : a < b;
  });

  return order;
}

// In the order given, each to a random device if that has room, else to the one that is the least
// full.
CutPart random_part(const CutGraph& graph, const DeviceCaps& caps,
                    const std::vector<CutUnitId>& order, Random& random) {
  const auto fill = [](std::int64_t load, std::int64_t cap) {
    return static_cast<double>(load) / static_cast<double>(std::max<std::int64_t>(1, cap));
  };
  DeviceCaps load(caps.size());
  CutPart part(graph.units.size(), DeviceId(0));
  for (const CutUnitId unit : order) {
    const CutUnit& u = graph.units[unit];
    const auto allowed = [&](DeviceId device) { return (u.devices >> device.index() & 1) != 0; };
    const auto full = [&](DeviceId device) {
      return std::max(fill(load[device].work + u.work, caps[device].work),
                      fill(load[device].memory + u.memory, caps[device].memory));
    };
    DeviceId chosen(random.below(caps.size()));
    for (const DeviceId device : caps.keys())
      if (allowed(device) &&
          (!allowed(chosen) || (full(chosen) > 0.9 && full(device) < full(chosen))))
        chosen = device;
    part[unit] = chosen;
    load[chosen].work += u.work;
    load[chosen].memory += u.memory;
  }
  return part;
}

struct Start {
  std::int64_t excess, cut;
  CutPart part;
  friend bool operator<(const Start& a, const Start& b) {
    return std::tie(a.excess, a.cut) < std::tie(b.excess, b.cut);
  }
};

// Of many random starts that single moves improve, the best few climb on.
CutPart best_start(const CutGraph& graph, const DeviceCaps& caps, std::size_t tries,
                   Random& random) {
  constexpr std::size_t kClimbers = 3;
  const std::vector<CutUnitId> order = by_bulk(graph);
  CutState state(graph, caps);
  std::vector<Start> starts;
  for (std::size_t i = 0; i < std::max<std::size_t>(1, tries); ++i) {
    state.start_from(random_part(graph, caps, order, random));
    state.improve(random, 20);
    starts.push_back({state.excess(), state.cut(), state.part()});
  }
  std::stable_sort(starts.begin(), starts.end());
  starts.resize(std::min(starts.size(), kClimbers), starts.front());
  for (Start& start : starts) {
    state.start_from(std::move(start.part));
    state.climb(6);
    start = {state.excess(), state.cut(), state.part()};
  }
  return std::move(std::min_element(starts.begin(), starts.end())->part);
}

CutPart part_of(const CutLevels& levels, const DeviceCaps& caps, std::size_t tries,
                Random& random) {
  constexpr std::size_t kClimbable = 200;  // units
  CutPart part = best_start(levels.graphs.back(), caps, tries, random);
  for (std::size_t level = levels.coarse_of.size(); level-- > 0;) {
    const CutGraph& graph = levels.graphs[level];
    CutPart finer(graph.units.size(), DeviceId(0));
    for (const CutUnitId unit : finer.keys()) finer[unit] = part[levels.coarse_of[level][unit]];
    CutState state(graph, caps);
    state.start_from(std::move(finer));
    state.improve(random, 8);
    if (graph.units.size() <= kClimbable) state.climb(3);
    part = state.part();
  }
  return part;
}

// The fastest that fits, or the one that is the least over. Placements are scheduled by the longest
// way to the end, or, where that holds too much at once, in the order by which the units' memory
// was measured. Requires a placement.
DeviceCut fastest_that_fits(const CostModel& costs, const std::vector<Placement>& placements) {
  struct Candidate {
    ListSchedule schedule;
    bool may_hold_less;
  };
  std::vector<Candidate> candidates;
  for (const Placement& placement : placements)
    candidates.push_back({list_schedule(costs, placement), true});
  std::optional<DeviceCut> nearest;
  while (!candidates.empty()) {
    const auto best = std::min_element(candidates.begin(), candidates.end(),
                                       [](const Candidate& a, const Candidate& b) {
                                         return a.schedule.makespan < b.schedule.makespan;
                                       });
    const Bytes over = total_excess(simulate(costs, best->schedule.placed), costs.cluster());
    if (over == Bytes(0)) return {std::move(best->schedule), over};
    if (!nearest.has_value() || over < nearest->over) nearest = DeviceCut{best->schedule, over};
    if (!std::exchange(best->may_hold_less, false)) {
      candidates.erase(best);
      continue;
    }
    IdVector<OpId, Time> earliest_first(costs.graph().num_ops());
    auto left = static_cast<std::int64_t>(costs.graph().num_ops());
    for (const OpId op : costs.graph().topological_order()) earliest_first[op] = Time(left--);
    best->schedule = list_schedule(costs, best->schedule.placed.device, earliest_first);
  }
  return *std::move(nearest);
}

std::int64_t ops_and_edges(const OpGraph& graph) {
  return static_cast<std::int64_t>(graph.num_ops() + graph.num_edges());
}

}  // namespace

DeviceCuts::DeviceCuts(const CostModel& costs, const OpLabels& group) : costs_(costs) {
  const std::size_t num_devices = costs.cluster().num_devices();
  if (num_devices < 2 || num_devices > kMaxCutDevices) return;
  CutGraphOf finest = cut_graph(costs, group);
  if (std::any_of(finest.graph.units.begin(), finest.graph.units.end(),
                  [](const CutUnit& unit) { return unit.devices == 0; }))
    return;
  unit_ = std::move(finest.unit);
  speed_ = relative_speeds(costs);
  total_work_ = finest.graph.total_work();
  levels_ = coarsen_all(std::move(finest.graph), costs.cluster());
}

std::optional<DeviceCut> DeviceCuts::cut(const CutOptions& options) const {
  if (levels_.graphs.empty()) return std::nullopt;
  Random random(options.seed);
  std::optional<DeviceCut> nearest;
  std::int64_t work = 0;
  for (const double memory_share : options.memory_shares) {
    std::vector<Placement> placements;
    for (const double slack : options.slacks) {
      const DeviceCaps caps =
          device_caps(costs_.cluster(), speed_, total_work_, slack, memory_share);
      const CutPart part = part_of(levels_, caps, options.tries, random);
      Placement placement(costs_.graph().num_ops(), DeviceId(0));
      for (const OpId op : costs_.graph().ops()) placement[op] = part[unit_[op]];
      if (std::find(placements.begin(), placements.end(), placement) == placements.end())
        placements.push_back(std::move(placement));
    }
    DeviceCut best = fastest_that_fits(costs_, placements);
    if (!nearest.has_value() || best.over < nearest->over) nearest = std::move(best);
    work += work_of_one(costs_);
    if (nearest->over == Bytes(0) || work >= options.work) break;
  }
  nearest->work = work;
  return nearest;
}

// Replays and list schedules, what grows with the coarsest graph and each of its units' choice, and,
// on many devices, what levels keep of every net on each.
std::int64_t DeviceCuts::work_of_one(const CostModel& costs) {
  const auto num_devices = static_cast<std::int64_t>(costs.cluster().num_devices());
  const std::int64_t many = num_devices / 20, size = ops_and_edges(costs.graph());
  return 1'000 + size * 21 / 20 + size * many * many + 110 * num_devices * num_devices;
}

std::int64_t DeviceCuts::work_of_levels(const CostModel& costs) {
  return ops_and_edges(costs.graph()) / 2;
}

std::optional<DeviceCut> cut_partition(const CostModel& costs, const OpLabels& group,
                                       const CutOptions& options) {
  return DeviceCuts(costs, group).cut(options);
}

}  // namespace baechi
