// SPDX-License-Identifier: Apache-2.0
// partition: cuts the graph where little flows, so that work is balanced and the queues keep up.
// Beyond the paper: the list schedulers look at one operator at a time and scatter what belongs
// together; where every transfer costs as much as dozens of operators, that loses to one device.
//
// Multilevel: vertices with much traffic between them are joined, level by level, until few are
// left; those are dealt out; then, level by level back, vertices move to where they make the
// busiest devices less busy. The busyness of a device is its compute time plus a part of the time
// that its queues are taken. That knows nothing of order or overlap, so several numbers of devices
// and several prices of communication are tried, and the best simulated plan that fits is kept.
#include "baechi/place/partition/partition.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/optimize/list_schedule.h"
#include "baechi/place/allowed_devices.h"
#include "baechi/place/partition/balance.h"
#include "baechi/place/partition/hypergraph.h"
#include "baechi/place/placer.h"
#include "baechi/simulate/execution_simulator.h"

namespace baechi {
namespace {

struct Level {
  Hypergraph graph;
  IdVector<VertexId, VertexId> label_of_finer;  // vertex of the level below -> vertex here
};

std::vector<Level> coarsen(const CostModel& costs, Hypergraph finest, Random& random) {
  std::vector<Level> levels;
  levels.push_back({std::move(finest), {}});
  std::int64_t total = 0;
  for (const Vertex& vertex : levels.front().graph.vertices)
    total += *std::max_element(vertex.time.begin(), vertex.time.end());
  const auto devices = static_cast<std::int64_t>(costs.cluster().num_devices());
  const std::int64_t max_time = total / (devices * 8) + 1;
  const std::size_t enough = costs.cluster().num_devices() * 12;
  while (levels.back().graph.vertices.size() > enough) {
    const Hypergraph& fine = levels.back().graph;
    Clustering clustering = cluster_by_traffic(fine, max_time, random);
    if (clustering.count * 100 > fine.vertices.size() * 97) break;
    Hypergraph coarse = fine.contracted(clustering.labels, clustering.count);
    levels.push_back({std::move(coarse), std::move(clustering.labels)});
  }
  return levels;
}

// Largest first, each to the device it leaves least busy.
Parts deal_out(const CostModel& costs, const Hypergraph& graph,
               const std::vector<DeviceId>& devices, const Balance& rules) {
  std::vector<VertexId> order(graph.vertices.keys().begin(), graph.vertices.keys().end());
  std::stable_sort(order.begin(), order.end(), [&](VertexId a, VertexId b) {
    return graph.vertices[a].time > graph.vertices[b].time;
  });
  IdVector<DeviceId, std::int64_t> busy(costs.cluster().num_devices(), 0);
  IdVector<DeviceId, bool> chosen(costs.cluster().num_devices());
  for (const DeviceId device : devices) chosen[device] = true;
  Parts parts(graph.vertices.size(), devices.front());
  for (const VertexId vertex : order) {
    std::optional<std::pair<std::int64_t, DeviceId>> best;
    for (const DeviceId device : costs.cluster().devices()) {
      if (!rules.may_run(vertex, device)) continue;
      if (!chosen[device] && best.has_value()) continue;
      const std::pair candidate(
          busy[device] + graph.vertices[vertex].time[costs.class_of(device).index()], device);
      if (!best.has_value() || candidate < *best) best = candidate;
    }
    parts[vertex] = best.has_value() ? best->second : devices.front();
    busy[parts[vertex]] = best.has_value() ? best->first : busy[parts[vertex]];
  }
  return parts;
}

Parts solve(const CostModel& costs, const std::vector<Level>& levels,
            const std::vector<DeviceId>& devices, const Prices& prices, double memory_share,
            Random& random, std::uint64_t& work) {
  constexpr int kCoarsePasses = 20, kFinePasses = 3;
  const int starts = devices.size() <= kFewDevices ? 4 : 1;
  std::optional<std::pair<double, Parts>> best;
  Balance coarse(costs, levels.back().graph, devices, prices, memory_share);
  for (int start = 0; start < starts; ++start) {
    Parts parts = deal_out(costs, levels.back().graph, devices, coarse);
    if (start > 0)
      for (DeviceId& part : parts)
        if (random.chance(0.5)) part = devices[random.below(devices.size())];
    for (const VertexId vertex : parts.keys())
      for (std::size_t i = 0; !coarse.may_run(vertex, parts[vertex]) && i < devices.size(); ++i)
        parts[vertex] = devices[i];
    coarse.load(std::move(parts));
    for (int pass = 0; pass < kCoarsePasses && coarse.improve(random); ++pass) {
    }
    if (!best.has_value() || coarse.value() < best->first)
      best.emplace(coarse.value(), coarse.parts());
  }
  work += coarse.work();
  Parts parts = std::move(best->second);
  for (std::size_t level = levels.size() - 1; level-- > 0;) {
    Parts finer;
    for (const VertexId label : levels[level + 1].label_of_finer) finer.push_back(parts[label]);
    Balance balance(costs, levels[level].graph, devices, prices, memory_share);
    balance.load(std::move(finer));
    for (int pass = 0; pass < kFinePasses && balance.improve(random); ++pass) {
    }
    parts = balance.parts();
    work += balance.work();
  }
  return parts;
}

// The fastest first; of equally fast ones the largest.
std::vector<DeviceId> by_speed(const CostModel& costs) {
  IdVector<DeviceId, double> total;
  for (const DeviceId device : costs.cluster().devices()) {
    double sum = 0, able = 0;
    for (const OpId op : costs.graph().ops())
      if (const auto time = costs.compute_time(op, device))
        sum += static_cast<double>(time->count()), able += 1;
    total.push_back(able == 0 ? 0 : sum / (able * able));  // fewer operators: as if slower
  }
  std::vector<DeviceId> devices(costs.cluster().devices().begin(), costs.cluster().devices().end());
  std::stable_sort(devices.begin(), devices.end(), [&](DeviceId a, DeviceId b) {
    if (total[a] != total[b]) return total[a] < total[b];
    return costs.cluster()[a].capacity > costs.cluster()[b].capacity;
  });
  return devices;
}

// The first operator whose own memory no device that may run it can hold.
std::optional<DoesNotFit> too_large(const CostModel& costs) {
  const AllowedDevices allowed(costs);
  if (const auto op = allowed.first_impossible()) return DoesNotFit{*op, Bytes(0)};
  for (const OpId op : costs.graph().topological_order()) {
    Bytes largest;
    for (const DeviceId device : costs.cluster().devices())
      if (allowed(op, device)) largest = std::max(largest, costs.cluster()[device].capacity);
    if (costs.graph()[op].permanent > largest)
      return DoesNotFit{op, costs.graph()[op].permanent - largest};
  }
  return std::nullopt;
}

}  // namespace

std::vector<IdVector<OpId, std::uint32_t>> traffic_levels(const CostModel& costs,
                                                          std::uint64_t seed) {
  Random random(seed);
  OperatorHypergraph finest = make_hypergraph(costs);
  const std::vector<Level> levels = coarsen(costs, std::move(finest.graph), random);
  std::vector<IdVector<OpId, std::uint32_t>> result;
  IdVector<OpId, std::uint32_t> labels;
  for (const VertexId vertex : finest.vertex_of) labels.push_back(vertex.value());
  result.push_back(labels);
  for (std::size_t level = 1; level < levels.size(); ++level) {
    for (std::uint32_t& label : labels)
      label = levels[level].label_of_finer[VertexId(label)].value();
    result.push_back(labels);
  }
  std::reverse(result.begin(), result.end());
  return result;
}

Partitioned partition(const CostModel& costs, const PlaceOptions& options) {
  if (const auto misfit = too_large(costs)) return {*misfit};
  Random random(options.seed);
  OperatorHypergraph finest = make_hypergraph(costs);
  const std::vector<Level> levels = coarsen(costs, std::move(finest.graph), random);
  const double memory_share = options.memory == MemoryPolicy::kReserve ? 0.75 : 0.95;
  const std::vector<DeviceId> fastest = by_speed(costs);

  std::optional<PlacedGraph> best;
  std::pair<Bytes, Time> best_key;
  std::uint64_t looks = 0, candidates = 0;
  const auto work = [&] {
    constexpr std::uint64_t kLooksPerReplay = 35, kReplaysPerCandidate = 2;
    return static_cast<std::int64_t>(looks / kLooksPerReplay +
                                     candidates * kReplaysPerCandidate * costs.graph().num_ops());
  };
  // Of many devices, more are tried while something runs over or the last ones made it better.
  bool better = true;
  for (std::size_t used = std::min<std::size_t>(2, fastest.size());
       used <= fastest.size() && (used <= 2 * kFewDevices || better || best_key.first > Bytes(0));
       used = used < kFewDevices ? used + 1 : used * 2) {
    if (best.has_value() && work() >= options.partition_work) {
      if (options.cut_short != nullptr) *options.cut_short = true;
      break;
    }
    better = false;
    const std::vector<DeviceId> devices(fastest.begin(),
                                        fastest.begin() + static_cast<std::ptrdiff_t>(used));
    for (const Prices& prices : {Prices{0.5, 0.2}, Prices{1.0, 1.0}}) {
      throw_if_cancelled(options.cancel);
      const Parts parts = solve(costs, levels, devices, prices, memory_share, random, looks);
      ++candidates;
      Placement placement;
      for (const VertexId vertex : finest.vertex_of) placement.push_back(parts[vertex]);
      bool runs = true;
      for (const OpId op : costs.graph().ops()) runs = runs && costs.may_run(op, placement[op]);
      if (!runs) continue;  // a forward and a backward operator that no one device can run
      PlacedGraph placed = options.order == ExecutionOrder::kPlanned
                               ? list_schedule(costs, placement).placed
                               : as_executed({std::move(placement), std::nullopt}, options.order,
                                             costs.graph(), costs.cluster().num_devices());
      const Trace trace = simulate(costs, placed, {.cancel = options.cancel});
      const std::pair key(total_excess(trace, costs.cluster()), trace.schedule.makespan);
      if (best.has_value() && key >= best_key) continue;
      best = std::move(placed);
      best_key = key;
      better = true;
    }
  }
  if (best.has_value()) return {*std::move(best), work()};
  return {DoesNotFit{costs.graph().topological_order().front(), Bytes(0)}, work()};
}

PlaceResult place_partition(const CostModel& costs, const PlaceOptions& options) {
  return partition(costs, options).result;
}

}  // namespace baechi
