// SPDX-License-Identifier: Apache-2.0
#include "apps/planning.h"

#include <cstdint>
#include <limits>

#include "apps/arguments.h"
#include "baechi/io/text/quantity_text.h"
#include "baechi/place/limits.h"
#include "baechi/plan/portfolio.h"

namespace baechi::cli {

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const PortfolioEntry& method : portfolio_methods()) names.emplace_back(method.name);
  for (const PlacerEntry& placer : all_placers()) names.emplace_back(placer.name);
  return names;
}

std::string method_help() {
  std::string text = "How to place:";
  for (const PortfolioEntry& method : portfolio_methods())
    text += "\n" + std::string(method.name) + ": " + std::string(method.summary);
  for (const PlacerEntry& placer : all_placers())
    text += "\n" + std::string(placer.name) + ": " + std::string(placer.summary);
  return text;
}

namespace {

std::string optimize_help() {
  std::string text = "What the Graph Optimizer does first, for the paper's methods:";
  for (const OptimizeLevelName& level : optimize_levels())
    text += "\n" + std::string(level.name) + ": " + std::string(level.summary);
  return text;
}

}  // namespace

void add_planning_options(OptionSet& set, Planning& planning) {
  set.add("-m,--method", planning.request.method, method_help())
      .one_of(method_names())
      .show_default();
  set.add(
         "--optimize",
         [&planning](const std::string& level) {
           planning.request.optimize.level = find_optimize_level(level);
         },
         optimize_help())
      .show_default("all");
  set.add("--budget", planning.budget,
          "How long auto and refine may search, e.g. 500ms or 10s; Ctrl-C ends a search with "
          "the best plan so far and exit code 0")
      .show_default();
  set.add(
         "--threads",
         [&planning](const std::string& text) {
           planning.request.threads =
               static_cast<unsigned>(parse_whole_number("--threads", text, 1, kMostThreads));
         },
         "Threads of the search, 1 to " + std::to_string(kMostThreads) +
             "; they change how long it takes, not the plan")
      .type_name("N")
      .show_default("1");
  set.add(
         "--seed",
         [&planning](const std::string& text) {
           planning.request.place.seed =
               parse_whole_number("--seed", text, 0, std::numeric_limits<std::uint64_t>::max());
         },
         "For every random choice")
      .type_name("N")
      .show_default(std::to_string(planning.request.place.seed));
}

double budget_seconds(const Planning& planning) {
  const Time budget = in_option("--budget", [&] { return parse_time(planning.budget); });
  const double seconds = static_cast<double>(budget.count()) / 1e9;
  in_option("--budget", [&] { check_budget(seconds); });
  return seconds;
}

PlanRequest request_of(const Planning& planning, const RunContext& context) {
  PlanRequest request = planning.request;
  request.place.cancel = context.cancel;
  request.budget = budget_seconds(planning);
  return request;
}

}  // namespace baechi::cli
