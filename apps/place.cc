// SPDX-License-Identifier: Apache-2.0
// baechi place: the main job. Which operator runs where and when, how long a step takes, and how
// far that is from the best possible.
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/arguments.h"
#include "apps/command_line.h"
#include "apps/console.h"
#include "apps/model_output.h"
#include "apps/planning.h"
#include "baechi/base/error.h"
#include "baechi/dnn_partitioning/dnnp_score.h"
#include "baechi/dnn_partitioning/dnnp_search.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/io/plan/placement_file.h"
#include "baechi/io/plan/plan_file.h"
#include "baechi/io/text/text_file.h"
#include "baechi/place/limits.h"
#include "baechi/plan/planner.h"
#include "baechi/plan/portfolio.h"
#include "baechi/report/html/html_report.h"
#include "baechi/report/text/plan_text.h"

namespace baechi::cli {
namespace {

struct Options {
  GraphArgument graph;
  std::string output, report, expert, objective, favorites = "matching", robust;
  ClusterArgument cluster;
  Planning planning;
};

std::vector<std::string> objective_names() {
  std::vector<std::string> names;
  for (const DnnpObjectiveEntry& entry : dnnp_objectives()) names.emplace_back(entry.name);
  return names;
}

std::string objective_help() {
  std::string text =
      "Place for an objective of the dnn-partitioning research instead of our simulator's step "
      "time; the result is a placement file:";
  for (const DnnpObjectiveEntry& entry : dnnp_objectives())
    text += "\n" + std::string(entry.name) + ": " + std::string(entry.summary);
  return text;
}

std::string unplaceable_json(const Unplaceable& answer, const OpGraph& graph) {
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  json.field("fits", false);
  json.field("proved", answer.proved);
  json.field("reason", answer.reason);
  if (answer.op.has_value()) json.field("operator", graph[*answer.op].name);
  json.field("short_by", answer.short_by.count());
  if (answer.smallest_capacity.has_value())
    json.field("smallest_equal_capacity", answer.smallest_capacity->count());
  if (answer.more_devices.has_value()) json.field("smallest_device_count", *answer.more_devices);
  json.end_object();
  json.finish();
  return text;
}

// For an objective that is not our simulator's: a placement with its value, not a plan.
ExitCode place_for_objective(const Options& options, const CostModel& costs,
                             const RunContext& context) {
  const auto result = place_for(costs, find_dnnp_objective(options.objective),
                                {.budget = budget_seconds(options.planning),
                                 .seed = options.planning.request.place.seed,
                                 .cancel = context.cancel});
  if (const auto* misfit = std::get_if<DoesNotFit>(&result)) {
    print_words("baechi: " + options.graph.path +
                " does not fit: no placement was found for operator '" +
                std::string(costs.graph()[misfit->op].name) + "' and its group");
    return ExitCode::kDoesNotFit;
  }
  const auto& found = std::get<DnnpPlacement>(result);
  const std::string file = placement_to_json(found.device, costs.graph(), costs.cluster());
  if (!options.output.empty()) write_result(options.output, file);
  if (options.output == "-") return ExitCode::kOk;
  std::string text;
  if (context.json) {
    JsonWriter json(text);
    json.begin_object();
    json.field("objective", options.objective);
    json.field("value", found.value.count());
    json.field("segments", found.segments.count());
    json.key("device_of");
    json.begin_object();
    for (const OpId op : costs.graph().ops())
      json.field(costs.graph()[op].name, costs.cluster()[found.device[op]].name);
    json.end_object();
    json.end_object();
    json.finish();
  } else {
    text = options.objective + " " + short_text(found.value) + " (" +
           std::to_string(found.value.count()) + " ns); segments alone " +
           short_text(found.segments) + "\n";
  }
  print_result(text);
  if (found.stopped_early) print_words("the search was stopped: another run may find more");
  return ExitCode::kOk;
}

// `expert` is filled where the options name its file, and must outlive the request.
PlanRequest request_of(const Options& options, const RunContext& context, const CostModel& costs,
                       Placement& expert) {
  PlanRequest request = request_of(options.planning, context);
  if (!options.robust.empty()) request.robust = parse_percent("--robust", options.robust);
  if (!options.expert.empty()) {
    expert = read_placement(options.expert, costs.graph(), costs.cluster());
    request.place.expert = &expert;
  } else if (request.method == "expert") {
    throw InputError("place", "--method expert needs --expert FILE");
  }
  request.place.favorites = options.favorites == "approx"  ? FavoriteMethod::kLpApprox
                            : options.favorites == "exact" ? FavoriteMethod::kLpExact
                                                           : FavoriteMethod::kMatching;
  return request;
}

ExitCode show_unplaceable(const Unplaceable& answer, const PlanTimes& times, const OpGraph& graph,
                          const Options& options, const RunContext& context) {
  if (context.json)
    print_result(unplaceable_json(answer, graph));
  else if (answer.methods.size() > 1)
    print_text(methods_text(answer.methods, times.methods));
  print_words("baechi: " + options.graph.path + " does not fit: " + answer.in_words());
  return ExitCode::kDoesNotFit;
}

// The plan and the report: both, or when one cannot be written neither.
void write_files(const Options& options, const std::string& plan, const std::string& report) {
  std::vector<NewText> files;
  if (!options.report.empty()) files.push_back({options.report, report});
  const bool to_stdout = options.output == "-";
  if (!options.output.empty() && !to_stdout) files.push_back({options.output, plan});
  write_text_files(files);
  if (to_stdout) print_result(plan);
  if (!options.report.empty()) print_words("wrote " + options.report + ": open it in a browser");
}

void show_plan(const Plan& plan, const PlanTimes& times, const OpGraph& graph, bool json) {
  if (json) {
    print_result(plan_to_json(plan, graph));
    return;
  }
  std::string tables = headline(plan) + "\n\n";
  if (!plan.passes.empty()) tables += passes_text(plan.passes, times.passes) + "\n";
  print_text(tables + methods_text(plan, times.methods) + "\n" + devices_text(plan, graph));
  for (const std::string& note : plan.notes) print_words(note);
}

ExitCode place(const Options& options, const RunContext& context) {
  // A model that cannot be filled is refused before any planning.
  const std::optional<ModelFormat> format = model_format(options.output);
  std::optional<SourceText> model;
  if (format.has_value() && !options.objective.empty())
    throw InputError(options.output, "--objective writes a placement file, not a model");
  if (format.has_value()) model = read_model(options.graph.path, *format);
  const OpGraph graph = load_graph(options.graph, context);
  const Cluster cluster = load_cluster(options.cluster);
  const CostModel costs(graph, cluster);
  if (!options.objective.empty()) return place_for_objective(options, costs, context);

  Placement expert;
  const PlanRequest request = request_of(options, context, costs, expert);
  PlanTimes times;
  const PlanResult result = make_plan(costs, request, &times);
  if (const auto* answer = std::get_if<Unplaceable>(&result))
    return show_unplaceable(*answer, times, graph, options, context);
  const Plan& plan = std::get<Plan>(result);
  std::string document, report;
  if (!options.output.empty())
    document =
        model.has_value() ? placed_model(*model, *format, graph, plan) : plan_to_json(plan, graph);
  const ReportPlan shown{&plan, plan.method};
  if (!options.report.empty()) report = html_report(graph, {&shown, 1});
  write_files(options, document, report);
  if (options.output != "-") show_plan(plan, times, graph, context.json);
  return ExitCode::kOk;
}

Run declare(OptionSet& set) {
  auto options = std::make_shared<Options>();
  add_graph_argument(set, options->graph);
  add_cluster_options(set, options->cluster, /*required=*/true);
  add_planning_options(set, options->planning);
  set.add("--objective", options->objective, objective_help())
      .one_of(objective_names())
      .excludes("--method");
  set.add("--lp", options->favorites, "How m-sct finds favorite children")
      .one_of({"matching", "approx", "exact"})
      .show_default();
  set.add(
         "--lp-threshold",
         [options](const std::string& text) {
           options->planning.request.place.lp_threshold =
               parse_number("--lp-threshold", text, 0.0, kLargestLpThreshold);
         },
         "With --lp approx|exact: a solution below it makes a favorite child (paper: 0.1); 0 to "
         "0.5")
      .type_name("X")
      .show_default(number_text(options->planning.request.place.lp_threshold));
  set.add_flag("!--no-completion", options->planning.request.place.complete_matching,
               "With --lp approx|exact: leave pairs unmatched that rounding left over");
  set.add("--expert", options->expert,
          "A placement to follow with --method expert, and to show with --method all")
      .check(check_path)
      .type_name("FILE");
  set.add("--robust", options->robust,
          "Choose, of the plans that the methods make, the one with the shortest worst step "
          "when costs are off by up to so much (20% when nothing is given)")
      .values(0, 1)
      .show_default("20%")
      .excludes("--objective")
      .type_name("[X%]");
  set.add_flag("!--no-bounds", options->planning.request.bounds, "Do not compute lower bounds");
  add_output_option(set, options->output);
  set.add("--report", options->report, "Also show the plan as an HTML page in this file")
      .check(check_path)
      .excludes("--objective")
      .type_name("FILE");
  return [options](const RunContext& context) { return place(*options, context); };
}

}  // namespace

extern const Command kPlaceCommand{
    .name = "place",
    .summary = "Decide which operator runs where, so that a step is short and memory suffices",
    .examples =
        "baechi place model.json --cluster 4x8GiB\n"
        "baechi place model.json --cluster 2x24GiB+2x8GiB@0.6 --link 50us,6GB/s -o plan.json\n"
        "baechi place model.json --cluster cluster.json --method all\n"
        "baechi place step.pb --costs gpu=rtx3090 --cluster 4x8GiB -o placed.pb\n"
        "baechi place model.onnx --costs gpu=rtx3090 --batch 8 --cluster 4x8GiB -o placed.onnx\n"
        "baechi place model.json --cluster 4x8GiB --robust 30%\n"
        "baechi place model.json --cluster 4x8GiB --method m-sct --lp exact --json",
    .declare = declare,
};

}  // namespace baechi::cli
