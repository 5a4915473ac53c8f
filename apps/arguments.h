// SPDX-License-Identifier: Apache-2.0
// The options that several subcommands share, declared alike everywhere.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/command_line.h"
#include "baechi/base/error.h"
#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"
#include "baechi/io/cluster/read_cluster.h"
#include "baechi/io/profile/model_costs.h"
#include "baechi/io/step/open_plan.h"

namespace baechi::cli {

// A graph, and what it would cost where its file does not say.
struct GraphArgument {
  std::string path;
  std::vector<std::string> costs;  // "gpu=rtx3090,cpu=cpu", "profile.json"
  std::optional<std::int64_t> batch;
  std::map<std::string, std::int64_t, std::less<>> dimensions;  // "sequence" -> 128
};

// GRAPH, --costs, --batch: of everything that reads a graph.
void add_graph_argument(OptionSet& set, GraphArgument& argument);
void add_model_cost_options(OptionSet& set, GraphArgument& argument);
ModelCosts model_costs(const GraphArgument& argument);
OpGraph load_graph(const GraphArgument& argument, const RunContext& context);
// The plan in `path` of that graph, with the graph that its ids are of.
OpenedPlan load_plan(const std::string& path, const GraphArgument& argument,
                     const RunContext& context);
// The same for what shows a plan, replays it or passes it on: a line on stderr says what is wrong
// with it, if verify would object.
OpenedPlan load_plan_to_show(const std::string& path, const GraphArgument& argument,
                             const RunContext& context);
void warn_of_wrong(const std::string& path, const OpGraph* original, const StepGraph& step,
                   const Plan& plan);

// What `read` makes of an option's text; its InputErrors name the option.
template <class Read>
auto in_option(const char* option, const Read& read) try {
  return read();
} catch (const InputError& error) {
  throw InputError(option, error.what());
}

// The value of `option`, all of its text a whole number within the bounds. Throws InputError.
std::uint64_t parse_whole_number(std::string_view option, std::string_view text,
                                 std::uint64_t least, std::uint64_t most);
// The same for a number that may have a fraction; never a NaN.
double parse_number(std::string_view option, std::string_view text, double least, double most);

// More than 0, at most six decimals: in parts per million. Throws InputError.
Speed parse_factor(std::string_view option, std::string_view text);

// A part such as "20%" or "0.2", from 0 to 1.
double parse_percent(std::string_view option, std::string_view text);

// For Option::check(): what is wrong with an empty path.
std::string check_path(const std::string& path);

// --cluster, --link, --comm.
void add_cluster_options(OptionSet& set, ClusterArgument& argument, bool required);
Cluster load_cluster(const ClusterArgument& argument);
// Of who names no cluster: that of the plan.
Cluster load_cluster(const ClusterArgument& argument, const ClusterSpec& planned);

// -o, --output: for write_result() in apps/console.h.
void add_output_option(OptionSet& set, std::string& path);

}  // namespace baechi::cli
