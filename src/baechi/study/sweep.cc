// SPDX-License-Identifier: Apache-2.0
#include "baechi/study/sweep.h"

#include <optional>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/plan/request/option_values.h"
#include "baechi/plan/request/planner_options.h"
#include "baechi/plan/steps/step_request.h"
#include "baechi/study/unless_cancelled.h"

namespace baechi {

void check_methods(const GraphSizes& sizes, const Grid& grid, const StepRequest& request,
                   const std::string& name) {
  const PlannerOption& option = find_planner_option("method");
  for (const std::string& method : grid.methods) {
    StepRequest wanted = request;
    wanted.search.method = method;
    if (!is_right(option, wanted)) throw InputError(name, unexpected(option, method));
    try {
      checked_numbers(sizes, wanted);
    } catch (const OptionError& error) {
      if (error.option() != option.name) throw;
      throw InputError(name, error.reason());
    }
  }
}

std::vector<GridPoint> sweep(const GraphSizes& sizes, const ClusterSpec& cluster, const Grid& grid,
                             const StepRequest& request,
                             const std::function<void(const GridPoint&)>& told) {
  const std::vector<std::size_t> counts =
      grid.devices.empty() ? std::vector<std::size_t>{cluster.devices.size()} : grid.devices;
  const std::vector<std::string> methods =
      grid.methods.empty() ? std::vector<std::string>{request.search.method} : grid.methods;
  for (const std::size_t count : grid.devices) check_tried_devices(count);
  if (grid.methods.empty()) checked_numbers(sizes, request);
  check_methods(sizes, grid, request, "methods");  // before the first of them has run for minutes
  std::vector<GridPoint> points;
  for (const std::size_t count : counts) {
    for (const Factor memory : grid.memory)
      for (const std::string& method : methods) {
        StepRequest wanted = request;
        wanted.search.method = method;
        const ClusterSpec changed = with_memory(with_devices(cluster, count), memory);
        std::optional<ScenarioRun> run = unless_cancelled(
            !points.empty(), [&] { return run_scenario(sizes, {"", changed}, wanted); });
        if (!run.has_value()) return points;
        points.push_back({memory, count, method, std::move(run->outcome)});
        if (told) told(points.back());
      }
  }
  return points;
}

}  // namespace baechi
