// SPDX-License-Identifier: Apache-2.0
// baechi sweep: memory per device x number of devices x method, as CSV.
#include "baechi/study/sweep.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/arguments.h"
#include "apps/command_line.h"
#include "apps/console.h"
#include "apps/planning.h"
#include "apps/progress.h"
#include "baechi/base/short_text.h"
#include "baechi/report/text/study_text.h"

namespace baechi::cli {
namespace {

struct SweepArguments {
  SizesArgument sizes;
  std::string output;
  ClusterArgument cluster;
  StepRequest request;
  std::vector<std::string> memory, devices, methods;
};

ExitCode run_sweep(const SweepArguments& options, const RunContext& context) {
  const std::vector<OpGraph> sizes = load_sizes(options.sizes, context);
  const ClusterSpec cluster = read_cluster(options.cluster);
  Grid grid{.memory = {kFullSpeed}, .devices = {}, .methods = options.methods};
  if (!options.memory.empty()) {
    grid.memory.clear();
    for (const std::string& text : options.memory)
      grid.memory.push_back(parse_factor("--memory", text));
  }
  for (const std::string& text : options.devices)
    grid.devices.push_back(parse_whole_number("--devices", text, 1, kMostTriedDevices));

  const std::size_t count = grid.memory.size() * std::max<std::size_t>(1, grid.devices.size()) *
                            std::max<std::size_t>(1, grid.methods.size());
  const StepRequest request = request_of(options.request, context);
  check_methods(sizes, grid, request, "--methods");
  print_scaling(sizes, request);
  const Progress progress("planning " + count_text(count) + " points");
  const std::vector<GridPoint> points = sweep(sizes, cluster, grid, request);
  write_result(options.output, context.json ? sweep_json(points) : sweep_csv(points));
  return unless_stopped(ExitCode::kOk, context,
                        count_text(points.size()) + " of " + count_text(count) +
                            " points, the last with the best plan so far");
}

Run declare_sweep(OptionSet& set) {
  auto options = std::make_shared<SweepArguments>();
  add_graph_argument(set, options->sizes.graph);
  add_sizes_option(set, options->sizes);
  add_cluster_options(set, options->cluster, /*required=*/true);
  set.add("--memory", options->memory,
          "Fractions of each device's memory, such as 0.3,0.5,1 (default: 1)")
      .separated_by_commas()
      .type_name("X,...");
  set.add("--devices", options->devices,
          "Numbers of devices: the first ones, and copies of the last if there are not enough "
          "(default: "
          "all)")
      .separated_by_commas()
      .type_name("N,...");
  set.add("--methods", options->methods, "Methods to compare, instead of --method")
      .separated_by_commas()
      .type_name("NAME,...");
  add_planning_options(set, options->request, kStudiesTake);
  add_output_option(set, options->output);
  return [options](const RunContext& context) { return run_sweep(*options, context); };
}

}  // namespace

extern const Command kSweepCommand{
    .name = "sweep",
    .summary = "Plan a grid of memory, devices and methods; print the step times as CSV",
    .examples =
        "baechi sweep model.json --cluster 4x8GiB --memory 0.3,0.5,0.7,1 -o memory.csv\n"
        "baechi sweep model.json --cluster 4x8GiB --devices 1,2,4,8 --methods m-etf,m-sct,auto\n"
        "baechi sweep model.json --cluster 4x8GiB --devices 2,4 --json",
    .declare = declare_sweep,
};

}  // namespace baechi::cli
