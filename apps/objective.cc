// SPDX-License-Identifier: Apache-2.0
#include "apps/objective.h"

#include <variant>
#include <vector>

#include "apps/console.h"
#include "baechi/base/short_text.h"
#include "baechi/dnn_partitioning/dnnp_score.h"
#include "baechi/dnn_partitioning/dnnp_search.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/io/plan/placement_file.h"
#include "baechi/plan/request/planner_options.h"

namespace baechi::cli {
namespace {

std::string found_json(const std::string& objective, const DnnpPlacement& found,
                       const CostModel& costs) {
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  json.field("objective", objective);
  json.field("value", found.value.count());
  json.field("segments", found.segments.count());
  if (found.bound.has_value()) json.field("bound", found.bound->count());
  json.key("device_of");
  json.begin_object();
  for (const OpId op : costs.graph().ops())
    json.field(costs.graph()[op].name, costs.cluster()[found.device[op]].name);
  json.end_object();
  json.end_object();
  json.finish();
  return text;
}

std::string found_text(const std::string& objective, const DnnpPlacement& found) {
  return objective + " " + short_text(found.value) + " (" + std::to_string(found.value.count()) +
         " ns); segments alone " + short_text(found.segments) +
         (found.bound.has_value() ? "; none is below " + short_text(*found.bound) : "") + "\n";
}

}  // namespace

Option add_objective_option(OptionSet& set, std::string& objective, const std::string& words) {
  std::string help = words;
  std::vector<std::string> names;
  for (const DnnpObjectiveEntry& entry : dnnp_objectives()) {
    help += "\n" + std::string(entry.name) + ": " + std::string(entry.summary);
    names.emplace_back(entry.name);
  }
  return set.add("--objective", objective, help).one_of(names);
}

ExitCode place_for_objective(const std::string& objective, const CostModel& costs,
                             const PlanRequest& request, const std::string& graph_path,
                             const std::string& output, const RunContext& context) {
  check_taken(request, kObjectivesTake, Entrance::kCommandLine);
  const auto result =
      place_for(costs, find_dnnp_objective(objective),
                {.budget = request.budget, .seed = request.place.seed, .cancel = context.cancel});
  if (const auto* misfit = std::get_if<DoesNotFit>(&result)) {
    print_words("baechi: " + graph_path + " does not fit: no placement was found for operator '" +
                std::string(costs.graph()[misfit->op].name) + "' and its group");
    return ExitCode::kDoesNotFit;
  }
  const auto& found = std::get<DnnpPlacement>(result);
  if (!output.empty())
    write_result(output, placement_to_json(found.device, costs.graph(), costs.cluster()));
  if (output == "-") return ExitCode::kOk;
  print_result(context.json ? found_json(objective, found, costs) : found_text(objective, found));
  if (found.stopped_early) print_words("the search was stopped: another run may find more");
  return ExitCode::kOk;
}

}  // namespace baechi::cli
