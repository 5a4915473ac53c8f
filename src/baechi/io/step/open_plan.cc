// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/step/open_plan.h"

#include <utility>

#include "baechi/base/error.h"
#include "baechi/cluster/cluster.h"
#include "baechi/cost/cost_model.h"
#include "baechi/io/plan/plan_file.h"
#include "baechi/io/text/text_file.h"
#include "baechi/simulate/execution_simulator.h"

namespace baechi {
namespace {

Schedule replayed(const StepFile& file, const std::string& place, const CancelFlag* cancel) {
  const Cluster cluster(file.plan.cluster);
  try {
    return simulate(CostModel(file.step.graph, cluster), *file.placed, {.cancel = cancel}).schedule;
  } catch (const InputError& error) {
    throw InputError(place, error.what());
  }
}

}  // namespace

OpenedPlan open_plan_text(std::string_view text, const std::string& place, OpGraph graph,
                          const CancelFlag* cancel) {
  StepFile file = parse_step_plan(text, place, std::move(graph));
  if (file.placed.has_value()) {
    Schedule schedule = replayed(file, place, cancel);
    if (schedule.makespan != file.plan.makespan())
      throw InputError(place, "$.makespan: the plan claims a step of " +
                                  std::to_string(file.plan.makespan().count()) +
                                  " ns, its runs take " +
                                  std::to_string(schedule.makespan.count()) + " ns");
    file.plan.schedule = std::move(schedule);
  }
  return {std::move(file.step), std::move(file.plan), std::move(file.original)};
}

OpenedPlan open_plan(const std::filesystem::path& path, OpGraph graph, const CancelFlag* cancel) {
  const SourceText source = read_text_file(path);
  return reading(source.name, [&] {
    return open_plan_text(source.text, source.name, std::move(graph), cancel);
  });
}

}  // namespace baechi
