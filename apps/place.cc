// SPDX-License-Identifier: Apache-2.0
// baechi place: the main job. Which operator runs where and when, how long a step takes, and how
// far that is from the best possible.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/arguments.h"
#include "apps/command_line.h"
#include "apps/console.h"
#include "apps/model_output.h"
#include "apps/planning.h"
#include "apps/progress.h"
#include "baechi/base/error.h"
#include "baechi/base/short_text.h"
#include "baechi/io/graph/write_graph.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/io/plan/placement_file.h"
#include "baechi/io/plan/plan_file.h"
#include "baechi/io/text/text_file.h"
#include "baechi/options/option_text.h"
#include "baechi/plan/planner.h"
#include "baechi/plan/request/answer.h"
#include "baechi/plan/request/option_values.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/steps/step_plan.h"
#include "baechi/report/html/html_report.h"
#include "baechi/report/text/plan_text.h"

namespace baechi::cli {
namespace {

struct PlaceArguments {
  SizesArgument sizes;
  std::string output, report, expert, micro_batch_graph;
  bool verbose = false, quiet = false;
  ClusterArgument cluster;
  StepRequest request;
};

std::string unplaceable_json(const Unplaceable& answer, const OpGraph& graph) {
  return json_document([&](JsonWriter& json) {
    json.field("fits", false);
    json.field("proved", answer.proved);
    json.field("reason", answer.reason);
    if (answer.op.has_value()) json.field("operator", graph[*answer.op].name);
    json.field("short_by", answer.short_by.count());
    if (answer.smallest_capacity.has_value())
      json.field("smallest_equal_capacity", answer.smallest_capacity->count());
    if (answer.more_devices.has_value()) json.field("smallest_device_count", *answer.more_devices);
    if (answer.step_with_recomputation.has_value())
      json.field("step_with_recomputation", answer.step_with_recomputation->count());
    if (answer.step_with_host.has_value()) {
      json.field("step_with_host", answer.step_with_host->count());
      json.field("host_needs", answer.host_needs.count());
    }
  });
}

struct Expert {
  Placement placement;
  std::optional<DeviceWords> order;
  std::optional<OpenedPlan> plan;
};

// `expert` is filled where the options name its file, and must outlive the request.
StepRequest request_of(const PlaceArguments& options, const RunContext& context,
                       const CostModel& costs, Expert& expert) {
  StepRequest request = request_of(options.request, context);
  if (!options.expert.empty() && request.residency == AwayChoice::kAuto) {
    expert.plan = open_plan(options.expert, recosted(costs.graph(), {}));
    request.known = &expert.plan->plan;
  } else if (!options.expert.empty()) {
    expert.placement =
        read_placement(options.expert, costs.graph(), costs.cluster(), &expert.order);
    request.search.place.expert = &expert.placement;
    if (expert.order.has_value()) request.search.place.expert_order = &*expert.order;
  }
  check_taken(request, kPlaceTakes, Entrance::kCommandLine);
  return request;
}

void show_unplaceable(const Unplaceable& answer, const PlanTimes& times, const OpGraph& graph,
                      const PlaceArguments& options, const RunContext& context) {
  if (context.json)
    print_result(unplaceable_json(answer, graph));
  else if (answer.methods.size() > 1 && options.verbose)
    print_text(methods_text(answer.methods, times.methods));
  print_words("baechi: " + options.sizes.graph.path + " does not fit: " + answer.in_words());
}

// The plan and the report: both, or when one cannot be written neither.
void write_files(const PlaceArguments& options, const std::string& plan, const std::string& report,
                 const std::string& graph) {
  std::vector<NewText> files;
  if (!options.micro_batch_graph.empty()) files.push_back({options.micro_batch_graph, graph});
  if (!options.report.empty()) files.push_back({options.report, report});
  const bool to_stdout = options.output == "-";
  if (!options.output.empty() && !to_stdout) files.push_back({options.output, plan});
  write_text_files(files);
  if (to_stdout) print_result(plan);
  if (!options.report.empty() && !options.quiet)
    print_words("wrote " + options.report + ": open it in a browser");
}

void show_plan(const Plan& plan, const PlanTimes& times, const Unrolled& step,
               const PlaceArguments& options, const RunContext& context) {
  if (context.json) {
    print_result(plan_to_json(plan, step));
    return;
  }
  if (options.quiet) return;
  const OpGraph& graph = step.graph;
  std::string tables = brief_text(plan);
  if (options.verbose) {
    tables = headline(plan) + "\n\n";
    if (!plan.passes.empty()) tables += passes_text(plan.passes, times.passes) + "\n";
    tables += methods_text(plan, times.methods) + "\n" + devices_text(plan, graph);
  }
  print_text(tables);
  for (const std::string& note : plan.notes) print_words(note);
  if (const std::string words = fewer_devices_words(plan); !words.empty()) print_words(words);
}

void refuse_for_models(const PlaceArguments& options) {
  if (options.request.second_runs() != Recompute::kNone)
    throw InputError(options.output, "a model's file has no room for second runs: write a plan");
  if (options.request.residency != AwayChoice::kNone)
    throw InputError(options.output, "a model's file has no room for fetches: write a plan");
  if (!options.request.micro_batches.has_value() && !options.request.mini_batch.has_value()) return;
  throw InputError(options.output, "a model's file has no room for micro-batches: write a plan");
}

StepPlan planned(std::vector<OpGraph> sizes, const Cluster& cluster, StepRequest request,
                 PlanTimes& times, const PlaceArguments& options) {
  Progress progress("placing " + options.sizes.graph.path);
  request.search.watch = [&](const SearchNews& news) { progress.tell(news.in_words()); };
  return make_step_plan(std::move(sizes), cluster, request, &times);
}

// One line: what the same request takes as it is by default, beside the paper's.
void show_default(const PlanResult& paper, const OpGraph& graph, const Cluster& cluster,
                  StepRequest request) {
  request.search.paper = request.search.suggest = request.search.bounds = false;
  const PlanResult result = make_plan(CostModel(graph, cluster), request.search);
  const Plan *ours = std::get_if<Plan>(&result), *theirs = std::get_if<Plan>(&paper);
  std::string words = "by default: ";
  if (ours == nullptr) return print_words(words + "no plan fits either");
  words += short_text(ours->makespan()) + " by " + ours->method;
  if (theirs == nullptr) return print_words(words + ", where the paper's runs out of memory");
  char times[32];
  std::snprintf(times, sizeof times, "%.2f",
                static_cast<double>(theirs->makespan().count()) /
                    static_cast<double>(std::max<std::int64_t>(1, ours->makespan().count())));
  print_words(words + "; the paper's step, " + short_text(theirs->makespan()) + ", is " + times +
              " times as long");
}

ExitCode place(const PlaceArguments& options, const RunContext& context) {
  // A model that cannot be filled is refused before any planning.
  const std::optional<ModelFormat> format = model_format(options.output);
  std::optional<SourceText> model;
  if (format.has_value()) refuse_for_models(options);
  if (format.has_value()) model = read_model(options.sizes.graph.path, *format);
  std::vector<OpGraph> sizes = load_sizes(options.sizes, context);
  const Cluster cluster = load_cluster(options.cluster);

  Expert expert;
  const StepRequest request =
      request_of(options, context, CostModel(sizes.front(), cluster), expert);
  PlanTimes times;
  const StepPlan made = planned(std::move(sizes), cluster, request, times, options);
  const OpGraph& graph = made.step.graph;
  if (const auto* answer = std::get_if<Unplaceable>(&made.result)) {
    show_unplaceable(*answer, times, made.graph_told_of(), options, context);
    if (request.search.paper) show_default(made.result, graph, cluster, request);
    return ExitCode::kDoesNotFit;
  }
  const Plan& plan = std::get<Plan>(made.result);
  std::string document, report, micro_batch;
  if (!options.output.empty())
    document = model.has_value() ? placed_model(*model, *format, graph, plan)
                                 : plan_to_json(plan, made.step);
  const ReportPlan shown{&plan, plan.method};
  if (!options.report.empty()) report = html_report(made.step, {&shown, 1});
  if (!options.micro_batch_graph.empty()) micro_batch = graph_to_json(made.graph_of_one());
  write_files(options, document, report, micro_batch);
  if (options.output != "-") show_plan(plan, times, made.step, options, context);
  if (request.search.paper) show_default(made.result, graph, cluster, request);
  if (model.has_value() && !options.quiet) print_words(orderless_step(graph, plan).words);
  return ExitCode::kOk;
}

Run declare_place(OptionSet& set) {
  auto options = std::make_shared<PlaceArguments>();
  add_graph_argument(set, options->sizes.graph);
  add_cluster_options(set, options->cluster, /*required=*/true);
  add_planning_options(set, options->request, kPlaceTakes);
  const PlannerOption& expert = find_planner_option("expert");
  set.add(command_line_names(expert), options->expert,
          help_text(expert, Entrance::kCommandLine) +
              "; with --residency auto a plan, of less memory, say, that the search begins with")
      .check(check_path)
      .type_name("FILE");
  add_sizes_option(set, options->sizes);
  add_micro_batch_graph_option(set, options->micro_batch_graph);
  add_output_option(set, options->output);
  set.add("--report", options->report, "Also show the plan as an HTML page in this file")
      .check(check_path)
      .type_name("FILE");
  set.add_flag("-v,--verbose", options->verbose,
               "Print the step time of every method, and more about devices");
  set.add_flag("-q,--quiet", options->quiet, "Print only errors").excludes("--verbose");
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
        "baechi place micro_batch.json --cluster 4x8GiB --micro-batches 8\n"
        "baechi place model.json --cluster 4x8GiB --method m-sct --lp exact --json\n"
        "baechi place model.json --cluster paper --method m-sct --paper",
    .declare = declare_place,
};

}  // namespace baechi::cli
