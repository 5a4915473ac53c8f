// SPDX-License-Identifier: Apache-2.0
// baechi min: the fewest devices, and the least memory per device, for which there is a plan.
#include <memory>
#include <string>
#include <vector>

#include "apps/arguments.h"
#include "apps/command_line.h"
#include "apps/console.h"
#include "apps/planning.h"
#include "apps/progress.h"
#include "baechi/base/error.h"
#include "baechi/io/graph/write_graph.h"
#include "baechi/io/plan/plan_file.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/steps/step_request.h"
#include "baechi/report/text/study_text.h"
#include "baechi/study/cluster_edits.h"
#include "baechi/study/least.h"
#include "baechi/study/unless_cancelled.h"

namespace baechi::cli {
namespace {

struct MinArguments {
  SizesArgument sizes;
  std::string output, micro_batch_graph, of = "both";
  ClusterArgument cluster;
  StepRequest request;
  std::string max_devices = "64";
};

void write_plan(const MinArguments& options, const Plan& plan, const std::vector<OpGraph>& sizes,
                const StepRequest& request) {
  if (!options.output.empty())
    write_result(options.output, plan_to_json(plan, step_of(sizes, request, plan.micro_batches)));
  if (!options.micro_batch_graph.empty())
    write_result(options.micro_batch_graph,
                 graph_to_json(micro_batch_of(sizes, request, plan.micro_batches)));
}

ExitCode find_least(const MinArguments& options, const RunContext& context) {
  const std::vector<OpGraph> sizes = load_sizes(options.sizes, context);
  const ClusterSpec cluster = read_cluster(options.cluster);
  const StepRequest request = request_of(options.request, context);
  const auto most = parse_whole_number("--max-devices", options.max_devices, 1, kMostTriedDevices);
  if (options.of == "both" && !(options.output.empty() && options.micro_batch_graph.empty()))
    throw InputError(options.output.empty() ? "--micro-batch-graph" : "--output",
                     "say which plan to write: --of devices or --of memory");
  print_scaling(sizes, request);

  Least least;
  if (options.of != "memory") {
    const Progress progress("fewest devices");
    least.devices = fewest_devices(sizes, cluster, most, request);
  }
  if (options.of != "devices") {
    const Progress progress("least memory per device");
    least.memory = unless_cancelled(least.devices.has_value(), [&] {
                     return least_memory(sizes, cluster, request);
                   }).value_or(std::nullopt);
  }
  if (least.devices.has_value() || least.memory.has_value())
    write_plan(options, least.devices.has_value() ? least.devices->plan : least.memory->plan, sizes,
               request);
  if (options.output != "-")
    context.json ? print_result(least_json(least)) : print_text(least_text(least));
  ExitCode code = unless_stopped(ExitCode::kOk, context, "this is the least so far");
  if (code == ExitCode::kCancelled) return code;
  if (options.of != "memory" && !least.devices.has_value()) {
    print_words("baechi: " + options.sizes.graph.path + ": no plan was found for up to " +
                std::to_string(most) + " devices");
    code = ExitCode::kDoesNotFit;
  }
  if (options.of != "devices" && !least.memory.has_value()) {
    print_words("baechi: " + options.sizes.graph.path + ": no plan was found on these " +
                std::to_string(cluster.devices.size()) + " devices, whatever their memory");
    code = ExitCode::kDoesNotFit;
  }
  return code;
}

Run declare_min(OptionSet& set) {
  auto options = std::make_shared<MinArguments>();
  options->request.search.budget = kBudgetOfMany;
  add_graph_argument(set, options->sizes.graph);
  add_sizes_option(set, options->sizes);
  add_cluster_options(set, options->cluster, /*required=*/true);
  set.add("--of", options->of, "What to minimize: devices, memory or both")
      .one_of({"devices", "memory", "both"})
      .show_default();
  set.add("--max-devices", options->max_devices, "Try more devices than the cluster has, up to N")
      .type_name("N")
      .show_default();
  add_planning_options(set, options->request, kStudiesTake);
  add_micro_batch_graph_option(set, options->micro_batch_graph);
  add_output_option(set, options->output);
  return [options](const RunContext& context) { return find_least(*options, context); };
}

}  // namespace

extern const Command kMinCommand{
    .name = "min",
    .summary = "Find the fewest devices and the least memory per device for which there is a plan",
    .examples =
        "baechi min model.json --cluster 4x8GiB\n"
        "baechi min model.json --cluster 4x8GiB --of memory --method m-sct\n"
        "baechi min model.json --cluster 8x4GiB --of devices -o plan.json --json",
    .declare = declare_min,
};

}  // namespace baechi::cli
