// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/cut_partition.h"

#include <algorithm>
#include <deque>
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

struct Levels {
  std::deque<CutGraph> graphs;  // the finest first
  std::vector<IdVector<CutUnitId, CutUnitId>> coarse_of;
};

Levels coarsen_all(CutGraph&& finest, const Cluster& cluster) {
  // Units that are a sixth of a device's share, or of its memory, leave the cut its freedom.
  constexpr std::int64_t kUnitsPerShare = 6;
  const std::size_t num_devices = cluster.num_devices();
  const UnitCaps caps{
      finest.total_work() / (kUnitsPerShare * static_cast<std::int64_t>(num_devices)),
      cluster.largest_capacity().count() / kUnitsPerShare};
  const std::size_t enough = 20 + 10 * num_devices;
  Levels levels;
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

// Every device's share of the work, by how fast it runs what it can run, and so much more.
DeviceCaps device_caps(const CostModel& costs, std::int64_t total_work, double slack,
                       double memory_share) {
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
  DeviceCaps caps(speed.size());
  for (const DeviceId device : speed.keys()) {
    const auto capacity = static_cast<double>(costs.cluster()[device].capacity.count());
    caps[device] = {static_cast<std::int64_t>(static_cast<double>(total_work) * speed[device] /
                                              all * (1.0 + slack)),
                    static_cast<std::int64_t>(capacity * memory_share)};
  }
  return caps;
}

// Largest units first, each to a random device if that has room, else to the one that is the least
// full.
CutPart random_part(const CutGraph& graph, const DeviceCaps& caps, Random& random) {
  const auto fill = [](std::int64_t load, std::int64_t cap) {
    return static_cast<double>(load) / static_cast<double>(std::max<std::int64_t>(1, cap));
  };
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

CutPart best_start(const CutGraph& graph, const DeviceCaps& caps, std::size_t tries,
                   Random& random) {
  std::optional<std::tuple<std::int64_t, std::int64_t>> best;
  CutPart part;
  for (std::size_t i = 0; i < std::max<std::size_t>(1, tries); ++i) {
    CutState state(graph, caps, random_part(graph, caps, random));
    state.improve(random, 20);
    state.climb(6);
    const std::tuple value{state.excess(), state.cut()};
    if (best.has_value() && value >= *best) continue;
    best = value;
    part = state.part();
  }
  return part;
}

CutPart cut(const Levels& levels, const DeviceCaps& caps, std::size_t tries, Random& random) {
  constexpr std::size_t kClimbable = 600;  // units
  CutPart part = best_start(levels.graphs.back(), caps, tries, random);
  for (std::size_t level = levels.coarse_of.size(); level-- > 0;) {
    const CutGraph& graph = levels.graphs[level];
    CutPart finer(graph.units.size(), DeviceId(0));
    for (const CutUnitId unit : finer.keys()) finer[unit] = part[levels.coarse_of[level][unit]];
    CutState state(graph, caps, std::move(finer));
    state.improve(random, 8);
    if (graph.units.size() <= kClimbable) state.climb(3);
    part = state.part();
  }
  return part;
}

// In the order of the longest way to the end, or, if that holds too much at once, in the order of
// the topological order, by which the units' memory was measured.
void keep_better(const CostModel& costs, const Placement& placement,
                 std::optional<ListSchedule>& best) {
  const auto offer = [&](ListSchedule schedule) {
    if (best.has_value() && schedule.makespan >= best->makespan) return true;
    if (find_overflow(simulate(costs, schedule.placed), costs.cluster()).has_value()) return false;
    best = std::move(schedule);
    return true;
  };
  if (offer(list_schedule(costs, placement))) return;
  IdVector<OpId, Time> earliest_first(placement.size());
  auto left = static_cast<std::int64_t>(placement.size());
  for (const OpId op : costs.graph().topological_order()) earliest_first[op] = Time(left--);
  offer(list_schedule(costs, placement, earliest_first));
}

}  // namespace

std::optional<ListSchedule> cut_partition(const CostModel& costs, const OpLabels& group,
                                          const CutOptions& options) {
  const std::size_t num_devices = costs.cluster().num_devices();
  if (num_devices < 2 || num_devices > kMaxCutDevices) return std::nullopt;
  CutGraphOf finest = cut_graph(costs, group);
  if (std::any_of(finest.graph.units.begin(), finest.graph.units.end(),
                  [](const CutUnit& unit) { return unit.devices == 0; }))
    return std::nullopt;
  const std::int64_t total_work = finest.graph.total_work();
  const Levels levels = coarsen_all(std::move(finest.graph), costs.cluster());
  Random random(options.seed);
  std::optional<ListSchedule> best;
  for (const double memory_share : options.memory_shares) {
    for (const double slack : options.slacks) {
      const DeviceCaps caps = device_caps(costs, total_work, slack, memory_share);
      const CutPart part = cut(levels, caps, options.tries, random);
      Placement placement(costs.graph().num_ops(), DeviceId(0));
      for (const OpId op : costs.graph().ops()) placement[op] = part[finest.unit[op]];
      keep_better(costs, placement, best);
    }
    if (best.has_value()) break;
  }
  return best;
}

}  // namespace baechi
