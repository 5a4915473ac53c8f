// SPDX-License-Identifier: Apache-2.0
// baechi sensitivity: what wrong profiles cost (Paper 5, Figure 8).
#include "baechi/study/sensitivity.h"

#include <limits>
#include <memory>
#include <string>
#include <variant>

#include "apps/arguments.h"
#include "apps/command_line.h"
#include "apps/console.h"
#include "apps/planning.h"
#include "apps/progress.h"
#include "baechi/base/short_text.h"
#include "baechi/report/text/study_text.h"

namespace baechi::cli {
namespace {

struct SensitivityArguments {
  SizesArgument sizes;
  std::string output, off_by = "20%", samples = "20";
  ClusterArgument cluster;
  StepRequest request;
  bool csv = false;
};

ExitCode run_sensitivity(const SensitivityArguments& options, const RunContext& context) {
  const std::vector<OpGraph> sizes = load_sizes(options.sizes, context);
  const Cluster cluster = load_cluster(options.cluster);
  const StepRequest request = request_of(options.request, context);
  const Perturbations perturbations{
      .fraction = parse_percent("--off-by", options.off_by),
      .samples = parse_whole_number("--samples", options.samples, 1, kMostSamples),
      .seed = request.search.place.seed,
      .threads = request.search.threads,
      .cancel = context.cancel};
  print_scaling(sizes, request);
  const Progress progress("planning with " + options.samples + " wrong profiles");
  const auto result = sensitivity(sizes, cluster, request, perturbations);
  if (const auto* answer = std::get_if<Unplaceable>(&result)) {
    print_words("baechi: " + options.sizes.graph.path + " does not fit: " + answer->in_words());
    return ExitCode::kDoesNotFit;
  }
  const Sensitivity& told = std::get<Sensitivity>(result);
  write_result(options.output, context.json  ? sensitivity_json(told)
                               : options.csv ? sensitivity_csv(told)
                                             : sensitivity_text(told));
  return unless_stopped(
      ExitCode::kOk, context,
      count_text(told.samples.size()) + " of " + count_text(perturbations.samples) + " samples");
}

Run declare_sensitivity(OptionSet& set) {
  auto options = std::make_shared<SensitivityArguments>();
  options->request.search.budget = kBudgetOfMany;
  add_graph_argument(set, options->sizes.graph);
  add_sizes_option(set, options->sizes);
  add_cluster_options(set, options->cluster, /*required=*/true);
  set.add("--off-by", options->off_by,
          "How far each compute time and tensor size may be off, such as 20%")
      .type_name("X%")
      .show_default();
  set.add("--samples", options->samples, "Number of wrong profiles; their seeds count from --seed")
      .type_name("N")
      .show_default();
  set.add_flag("--csv", options->csv, "Print one line per sample instead of the summary");
  add_planning_options(set, options->request, kStudiesTake);
  add_output_option(set, options->output);
  return [options](const RunContext& context) { return run_sensitivity(*options, context); };
}

}  // namespace

extern const Command kSensitivityCommand{
    .name = "sensitivity",
    .summary =
        "Show what wrong profiles cost: place with costs that are off, replay with the true ones",
    .examples =
        "baechi sensitivity model.json --cluster 4x8GiB\n"
        "baechi sensitivity model.json --cluster 4x8GiB --off-by 50% --samples 100 --method m-sct\n"
        "baechi sensitivity model.json --cluster 4x8GiB --csv -o sensitivity.csv",
    .declare = declare_sensitivity,
};

}  // namespace baechi::cli
