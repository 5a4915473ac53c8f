// SPDX-License-Identifier: Apache-2.0
#include "apps/arguments.h"

#include <string>
#include <vector>

#include "apps/console.h"
#include "apps/progress.h"
#include "baechi/base/error.h"
#include "baechi/base/number_text.h"
#include "baechi/io/graph/read_graph.h"
#include "baechi/io/text/quantity_text.h"
#include "baechi/io/text/source_place.h"
#include "baechi/verify/check_plan.h"

namespace baechi::cli {
namespace {

[[noreturn]] void throw_not_a_number(std::string_view option, std::string_view text,
                                     const std::string& expected) {
  throw InputError(std::string(option),
                   "expected " + expected + ", found '" + printable(text, 40) + "'");
}

}  // namespace

std::uint64_t parse_whole_number(std::string_view option, std::string_view text,
                                 std::uint64_t least, std::uint64_t most) {
  std::uint64_t number = 0;
  if (!read_number(text, number) || number < least || number > most)
    throw_not_a_number(
        option, text,
        "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  return number;
}

double parse_number(std::string_view option, std::string_view text, double least, double most) {
  double number = 0;
  if (!read_number(text, number) || !(number >= least && number <= most))
    throw_not_a_number(option, text,
                       "a number from " + number_text(least) + " to " + number_text(most));
  return number;
}

Speed parse_factor(std::string_view option, std::string_view text) try {
  const Speed factor = baechi::parse_factor(text);
  if (factor == Speed(0)) throw InputError("factor '" + std::string(text) + "' is zero");
  return factor;
} catch (const InputError& error) {
  throw InputError(std::string(option), error.what());
}

double parse_percent(std::string_view option, std::string_view text) {
  if (text.ends_with('%'))
    return parse_number(option, text.substr(0, text.size() - 1), 0, 100) / 100;
  return parse_number(option, text, 0, 1);
}

std::string check_path(const std::string& path) {
  return path.empty() ? "the path is empty" : std::string();
}

void add_graph_argument(OptionSet& set, GraphArgument& argument) {
  set.add("graph", argument.path, "ML graph: " + graph_format_names() + "; - is standard input")
      .required()
      .check(check_path)
      .type_name("GRAPH");
  add_model_cost_options(set, argument);
}

void add_model_cost_options(OptionSet& set, GraphArgument& argument) {
  set.add("--costs", argument.costs,
          "What operators cost. FILE is a measured profile, for any graph. KIND=PRESET, as in "
          "gpu=rtx3090,cpu=cpu, estimates what no profile says, for ONNX and GraphDef; baechi "
          "generate --list-devices lists the presets. May be given several times")
      .check(check_path)
      .repeatable()
      .type_name("FILE|KIND=PRESET,...");
  set.add(
         "--batch",
         [&argument](const std::string& text) {
           argument.batch =
               static_cast<std::int64_t>(parse_whole_number("--batch", text, 1, 1'000'000'000));
         },
         "For ONNX and GraphDef: the size of dimensions that the file leaves open")
      .type_name("N");
  set.add_each(
         "--dim",
         [&argument](const std::string& text) {
           const std::size_t equals = text.rfind('=');
           if (equals == text.npos || equals == 0)
             throw InputError("--dim", "expected NAME=N, as in sequence=128");
           argument.dimensions[text.substr(0, equals)] = static_cast<std::int64_t>(
               parse_whole_number("--dim", text.substr(equals + 1), 1, 1'000'000'000));
         },
         "For ONNX: the size of one such dimension, by its name; may be given several times")
      .type_name("NAME=N");
}

ModelCosts model_costs(const GraphArgument& argument) {
  ModelCosts costs;
  for (const std::string& text : argument.costs) add_model_costs(text, costs);
  costs.batch = argument.batch;
  costs.dimensions = argument.dimensions;
  return costs;
}

OpGraph load_graph(const GraphArgument& argument, const RunContext& context) {
  const ReadOptions options{.costs = model_costs(argument), .cancel = context.cancel};
  const Progress progress("reading " + argument.path);
  OpGraph graph = read_graph(argument.path, options);
  for (const std::string& note : profile_notes(graph, options.costs)) print_words(note);
  return graph;
}

OpenedPlan load_plan(const std::string& path, const GraphArgument& argument,
                     const RunContext& context) {
  return open_plan(path, load_graph(argument, context), context.cancel);
}

OpenedPlan load_plan_to_show(const std::string& path, const GraphArgument& argument,
                             const RunContext& context) {
  OpenedPlan opened = load_plan(path, argument, context);
  warn_of_wrong(path, opened.original.has_value() ? &*opened.original : nullptr, opened.step,
                opened.plan);
  return opened;
}

void warn_of_wrong(const std::string& path, const OpGraph* original, const StepGraph& step,
                   const Plan& plan) {
  const std::string words = why_wrong(original, step, plan);
  if (!words.empty()) print_words("baechi: warning: " + path + ": " + words);
}

void add_cluster_options(OptionSet& set, ClusterArgument& argument, bool required) {
  set.add("-c,--cluster", argument.cluster,
          "cluster.json, or one line such as 4x8GiB, 2x24GiB+2x8GiB@0.6 (slower devices), "
          "2xgpu:24GiB+1xcpu:64GiB; or known devices: paper, 4xrtx3090, 2xa100+2xt4; +host:64GiB "
          "adds "
          "a host's memory")
      .required(required)
      .check([](const std::string& text) {
        return text.empty() ? "the cluster is empty" : std::string();
      })
      .type_name("CLUSTER");
  set.add("--host", argument.host_memory,
          "Add a host with this much memory, such as 256GiB, for tensors that --residency keeps "
          "there")
      .type_name("MEMORY");
  set.add("--link", argument.link,
          "Latency and bandwidth between any two devices, such as 50us,6GB/s, or a name, such as "
          "pcie4, nvlink, 10gbit")
      .type_name("LINK");
  set.add("--comm", argument.communication,
          "Which transfers of a device wait for each other: none (parallel), all (sequential), or "
          "those "
          "of one direction (duplex)")
      .type_name("MODE");
  set.add("--sends", argument.sends,
          "Whether devices run operators while they send (free) or only afterwards (blocking, as "
          "Megatron-LM's pipelines do); or what each message takes its sender and its receiver, "
          "such as 100us,150us")
      .type_name("MODE");
  set.add("--host-time", argument.host_time,
          "How long the host's thread takes to issue an operator and a transfer, such as "
          "2us,10us, and perhaps before the first of a step: 2us,10us,1ms")
      .type_name("TIMES");
}

Cluster load_cluster(const ClusterArgument& argument) { return Cluster(read_cluster(argument)); }

Cluster load_cluster(const ClusterArgument& argument, const ClusterSpec& planned) {
  return argument.cluster.empty() ? Cluster(changed(planned, argument)) : load_cluster(argument);
}

void add_output_option(OptionSet& set, std::string& path) {
  set.add("-o,--output", path, "Write the result to this file instead of standard output")
      .check(check_path)
      .type_name("FILE");
}

}  // namespace baechi::cli
