// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/search/layouts.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "baechi/base/parallel.h"
#include "baechi/optimize/list_schedule.h"
#include "baechi/schedule/execution_order.h"
#include "baechi/simulate/simulator.h"

namespace baechi {
namespace {

// The placement as it will be executed; where the plan has the order, in the better of two: by the
// longest path ahead, and layer by layer as the program has it.
ReplayedLayout replayed(const CostModel& costs, const Placement& placement, ExecutionOrder order,
                        Simulator& simulator) {
  const auto replay = [&](PlacedGraph placed) -> ReplayedLayout {
    const Cluster& cluster = costs.cluster();
    const StepSummary& step = simulator.run(placed);
    const bool fits = std::ranges::all_of(cluster.devices(), [&](DeviceId device) {
      return step.peaks[device] <= cluster[device].capacity;
    });
    return {std::move(placed), step.makespan, fits};
  };
  const auto executed = [&](ExecutionOrder by) {
    return as_executed({placement, std::nullopt}, by, costs.graph(), costs.cluster().num_devices());
  };
  if (order != ExecutionOrder::kPlanned) return replay(executed(order));
  ReplayedLayout ahead = replay(list_schedule(costs, placement).placed);
  ReplayedLayout program = replay(executed(ExecutionOrder::kProgram));
  const bool better = program.fits != ahead.fits ? program.fits : program.makespan < ahead.makespan;
  return better ? std::move(program) : std::move(ahead);
}

void keep_shorter(const ReplayedLayout& other, std::optional<ReplayedLayout>& shortest) {
  if (!shortest.has_value() || other.makespan < shortest->makespan) shortest = other;
}

}  // namespace

void ShortestLayout::add(const ReplayedLayout& laid) {
  keep_shorter(laid, of_all);
  if (laid.fits) keep_shorter(laid, fitting);
}

void ShortestLayout::add(const ShortestLayout& others) {
  if (others.of_all.has_value()) keep_shorter(*others.of_all, of_all);
  if (others.fitting.has_value()) keep_shorter(*others.fitting, fitting);
}

// Each thread has a simulator and replays some that follow each other.
ShortestLayout shortest_of(const CostModel& costs, const std::vector<Placement>& layouts,
                           const PlanRequest& request) {
  const std::size_t parts = std::min<std::size_t>(layouts.size(), request.threads);
  std::vector<ShortestLayout> shortest(parts);
  parallel_for(parts, request.threads, [&](std::size_t part) {
    Simulator simulator(costs);
    const std::size_t end = (part + 1) * layouts.size() / parts;
    for (std::size_t i = part * layouts.size() / parts; i < end; ++i)
      shortest[part].add(replayed(costs, layouts[i], request.place.order, simulator));
  });
  ShortestLayout result;
  for (const ShortestLayout& some : shortest) result.add(some);
  return result;
}

}  // namespace baechi
