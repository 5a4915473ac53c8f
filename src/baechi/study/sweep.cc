// SPDX-License-Identifier: Apache-2.0
#include "baechi/study/sweep.h"

#include <utility>

#include "baechi/plan/steps/step_plan.h"

namespace baechi {

std::vector<GridPoint> sweep(const GraphSizes& sizes, const ClusterSpec& cluster, const Grid& grid,
                             const PlanRequest& request,
                             const std::function<void(const GridPoint&)>& told) {
  const std::vector<std::size_t> counts =
      grid.devices.empty() ? std::vector<std::size_t>{cluster.devices.size()} : grid.devices;
  const std::vector<std::string> methods =
      grid.methods.empty() ? std::vector<std::string>{request.method} : grid.methods;
  for (const std::size_t count : grid.devices) check_tried_devices(count);
  for (const std::string& method : methods) {  // before the first of them has run for minutes
    PlanRequest wanted = request;
    wanted.method = method;
    checked_numbers(sizes, wanted);
  }
  std::vector<GridPoint> points;
  for (const std::size_t count : counts) {
    for (const Factor memory : grid.memory)
      for (const std::string& method : methods) {
        PlanRequest wanted = request;
        wanted.method = method;
        const ClusterSpec changed = with_memory(with_devices(cluster, count), memory);
        points.push_back(
            {memory, count, method, run_scenario(sizes, {"", changed}, wanted).outcome});
        if (told) told(points.back());
      }
  }
  return points;
}

}  // namespace baechi
