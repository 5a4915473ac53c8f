// SPDX-License-Identifier: Apache-2.0
// baechi bounds: what no placement on this cluster can beat; with --paper, what the paper's theorems
// promise of its methods (Paper 2.5).
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/arguments.h"
#include "apps/command_line.h"
#include "apps/console.h"
#include "baechi/base/short_text.h"
#include "baechi/bounds/lower_bounds.h"
#include "baechi/bounds/theorems.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/report/text/text_table.h"

namespace baechi::cli {
namespace {

struct BoundsArguments {
  GraphArgument graph;
  ClusterArgument cluster;
  bool paper = false;
};

// makespan <= factor w + rest, where w is an optimum.
struct Promise {
  std::string method, optimum;
  double factor = 0;
  Time rest;
};

// What the theorems say of a graph on a cluster.
struct Theorems {
  std::optional<double> rho;
  bool sct_assumption = false, about_it = false;
  MemorySufficiency memory;
  Time C;
  std::vector<Promise> promises;
};

Theorems theorems_of(const CostModel& costs) {
  Theorems result{.rho = rho(costs),
                  .sct_assumption = sct_assumption_holds(costs),
                  .about_it = theorem_machine(costs),
                  .memory = memory_sufficiency(costs),
                  .C = longest_chain_communication(costs),
                  .promises = {}};
  const auto [n, R] = result.memory;
  if (!result.about_it || R == 0) return result;
  const char* const without = "without communication and memory limits";
  result.promises.push_back({"m-etf, m-sct", without, m_etf_bound(n, R, 1, 0), result.C});
  if (!result.sct_assumption || !result.rho.has_value()) return result;
  result.promises.push_back(
      {"m-sct, any favorites", without, any_favorites_bound(n, R, *result.rho, 1), Time(0)});
  result.promises.push_back({"m-sct, favorites by the LP", "without memory limits",
                             m_sct_bound(n, R, *result.rho, 1), Time(0)});
  return result;
}

std::string four_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

std::string theorems_text(const Theorems& found) {
  TextTable facts({{"letter"}, {"is"}, {"value", Align::kRight}});
  facts.add_row({"rho", "longest transfer / shortest operator",
                 found.rho.has_value() ? four_digits(*found.rho) : "infinite"});
  facts.add_row(
      {"", "the SCT assumption, rho <= 1", found.sct_assumption ? "holds" : "does not hold"});
  facts.add_row({"n", "devices", std::to_string(found.memory.n)});
  facts.add_row({"R", "devices that never run short of memory", std::to_string(found.memory.R)});
  facts.add_row({"C", "most communication on one chain", short_text(found.C)});
  std::string text = facts.text() + "\n";
  if (!found.about_it)
    return text +
           "The theorems are about equal devices and links, parallel transfers, no pins and no "
           "groups: they say nothing of this graph on this cluster.\n";
  if (found.promises.empty())
    return text + "Every device may run short of memory: the theorems say nothing.\n";
  TextTable promises({{"method"}, {"step time at most"}, {"w is the optimum"}});
  for (const Promise& promise : found.promises)
    promises.add_row(
        {promise.method,
         four_digits(promise.factor) + " w" +
             (promise.rest > Time(0) ? " + " + short_text(promise.rest) : std::string()),
         promise.optimum});
  return text + promises.text();
}

std::string theorems_json(const Theorems& found) {
  return json_document([&](JsonWriter& json) {
    json.key("rho");
    if (found.rho.has_value())
      json.value(*found.rho);
    else
      json.null();
    json.field("sct_assumption", found.sct_assumption);
    json.field("applies", found.about_it);
    json.field("n", found.memory.n);
    json.field("R", found.memory.R);
    json.field("C_ns", found.C.count());
    json.objects("promises", found.promises, [&](const Promise& promise) {
      json.field("method", promise.method);
      json.field("factor", promise.factor);
      json.field("rest_ns", promise.rest.count());
      json.field("optimum", promise.optimum);
    });
  });
}

ExitCode bounds(const BoundsArguments& options, const RunContext& context) {
  const OpGraph graph = load_graph(options.graph, context);
  const Cluster cluster = load_cluster(options.cluster);
  if (options.paper) {
    const Theorems found = theorems_of(CostModel(graph, cluster));
    if (context.json)
      print_result(theorems_json(found));
    else
      print_text(theorems_text(found));
    return ExitCode::kOk;
  }
  const std::vector<NamedBound> bounds = lower_bounds(CostModel(graph, cluster), context.cancel);
  if (context.json) {
    std::string text;
    JsonWriter json(text);
    json.begin_object();
    json.objects("bounds", bounds, [&](const NamedBound& bound) {
      json.field("name", bound.name);
      json.field("nanoseconds", bound.value.count());
    });
    json.end_object();
    json.finish();
    print_result(text);
    return ExitCode::kOk;
  }
  TextTable table({{"bound"}, {"step time", Align::kRight}, {"nanoseconds", Align::kRight}});
  for (const NamedBound& bound : bounds)
    table.add_row({bound.name, short_text(bound.value), count_text(bound.value.count())});
  print_text(table.text());
  return ExitCode::kOk;
}

Run declare_bounds(OptionSet& set) {
  auto options = std::make_shared<BoundsArguments>();
  add_graph_argument(set, options->graph);
  add_cluster_options(set, options->cluster, /*required=*/true);
  set.add_flag("--paper", options->paper,
               "Show instead rho, R and what the paper's theorems promise of its methods");
  return [options](const RunContext& context) { return bounds(*options, context); };
}

}  // namespace

extern const Command kBoundsCommand{
    .name = "bounds",
    .summary = "Compute lower bounds on the step time of any placement",
    .examples =
        "baechi bounds model.json --cluster 4x8GiB\n"
        "baechi bounds model.json --cluster 4x8GiB --comm parallel --paper\n"
        "baechi bounds model.json --cluster cluster.json --json",
    .declare = declare_bounds,
};

}  // namespace baechi::cli
