// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/request/planner_options.h"

#include <algorithm>
#include <array>
#include <utility>

#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "baechi/optimize/optimize.h"
#include "baechi/place/pipeline/pipeline.h"
#include "baechi/plan/request/methods.h"

namespace baechi {
namespace {

struct FavoriteMethodName {
  FavoriteMethod method;
  std::string_view name, summary;
};
constexpr std::array<FavoriteMethodName, 3> kFavoriteMethods{{
    {FavoriteMethod::kMatching, "matching", "greedy matching, then swaps on the longest path"},
    {FavoriteMethod::kLpApprox, "approx", "the paper's linear program, within half a percent"},
    {FavoriteMethod::kLpExact, "exact", "the paper's linear program, within a millionth"},
}};

struct RecomputeName {
  Recompute recompute;
  std::string_view name, summary;
};
constexpr std::array<RecomputeName, 3> kRecomputeNames{{
    {Recompute::kNone, "none", "every operator runs once"},
    {Recompute::kAuto, "auto", "those that make the step shortest, or make it fit at all"},
    {Recompute::kAll, "all",
     "every operator that may, so that each region of them keeps only its inputs"},
}};

struct ResidingName {
  AwayChoice residency;
  std::string_view name, summary;
};
constexpr std::array<ResidingName, 3> kResidingNames{{
    {AwayChoice::kNone, "none", "no tensor: devices keep all weights and results"},
    {AwayChoice::kAuto, "auto", "those that make the step shortest, or make it fit at all"},
    {AwayChoice::kAll, "all", "every tensor that may, so that devices need the least memory"},
}};

struct CopiesName {
  bool apart;
  std::string_view name, summary;
};
constexpr std::array<CopiesName, 2> kCopiesNames{{
    {false, "together", "all on one device"},
    {true, "free", "each wherever it ends first; the step's operators are there once"},
}};

template <class Value, class Rows>  // rows of a value, its name and a summary
OneOf one_of(Value& into, const Rows& rows) {
  OneOf field;
  for (const auto& [value, name, summary] : rows) {
    field.choices.push_back({name, summary, [&into, value = value] { into = value; }});
    if (value == into) field.now = name;
  }
  return field;
}

OneOf second_runs(std::optional<Recompute>& into) {
  OneOf field;
  for (const auto& [value, name, summary] : kRecomputeNames) {
    field.choices.push_back({name, summary, [&into, value = value] { into = value; }});
    if (value == into.value_or(Recompute::kNone)) field.now = name;
  }
  return field;
}

OneOf any_method(std::string& into) {
  OneOf field{.choices = {}, .now = into};
  const auto add = [&](std::string_view name, std::string_view summary) {
    field.choices.push_back({name, summary, [&into, name] { into = name; }});
  };
  for (const PortfolioEntry& method : portfolio_methods()) add(method.name, method.summary);
  for (const PlacerEntry& placer : all_placers()) add(placer.name, placer.summary);
  for (const StepPlacer& placer : step_placers()) add(placer.name, placer.summary);
  return field;
}

constexpr unsigned kAllPlan = kPlaceTakes | kStudiesTake;

constexpr std::array kOptions{
    PlannerOption{
        .name = "method",
        .help = "How to place",
        .takers = kAllPlan,
        .field = [](StepRequest& r) -> OptionField { return any_method(r.search.method); },
        .command_line = "-m,--method",
        .is_argument = true},
    PlannerOption{.name = "optimize",
                  .help = "What the Graph Optimizer does first, for the paper's methods",
                  .takers = kAllPlan | kOptimizerTakes,
                  .field = [](StepRequest& r) -> OptionField {
                    return one_of(r.search.optimize.level, optimize_levels());
                  },
                  .taken_by = [](const PlacerEntry& placer) { return placer.optimizable; },
                  .nothing = "none"},
    PlannerOption{.name = "coplacement",
                  .help = "How the Graph Optimizer co-places",
                  .takers = kAllPlan | kOptimizerTakes,
                  .field = [](StepRequest& r) -> OptionField {
                    return one_of(r.search.optimize.coplacement.rule, coplacement_rules());
                  },
                  .taken_by = [](const PlacerEntry& placer) { return placer.optimizable; },
                  .nothing = "none"},
    PlannerOption{.name = "paper",
                  .help = "follow the paper to the letter, for comparison; a plan that does not "
                          "fit is not repaired",
                  .takers = kAllPlan | kOptimizerTakes,
                  .field = [](StepRequest& r) -> OptionField { return &r.search.paper; },
                  .command_line = "--paper"},
    PlannerOption{
        .name = "order",
        .help = "The order in which devices will run their operators; the plan is made for it",
        .takers = kAllPlan,
        .field = [](StepRequest& r) -> OptionField {
          return one_of(r.search.place.order, execution_orders());
        }},
    PlannerOption{
        .name = "budget",
        .help = "How long auto and refine may search; 0s: the first plan that fits. It stands "
                "for an amount of work, so equal input gives an equal plan",
        .takers = kAllPlan,
        .field = [](StepRequest& r) -> OptionField { return Seconds{&r.search.budget.seconds}; },
        .most = 1e6},
    PlannerOption{.name = "threads",
                  .help = "Threads of the search; they change how long it takes, not the plan",
                  .takers = kAllPlan,
                  .field = [](StepRequest& r) -> OptionField { return &r.search.threads; },
                  .least = 1,
                  .most = 1024},
    PlannerOption{.name = "seed",
                  .help = "Seed for every random choice",
                  .takers = kAllPlan,
                  .field = [](StepRequest& r) -> OptionField { return &r.search.place.seed; }},
    PlannerOption{.name = "lp",
                  .help = "How m-sct finds favorite children",
                  .takers = kPlaceTakes,
                  .field = [](StepRequest& r) -> OptionField {
                    return one_of(r.search.place.favorites, kFavoriteMethods);
                  },
                  .taken_by = [](const PlacerEntry& placer) { return placer.favorite_children; }},
    PlannerOption{
        .name = "lp_threshold",
        .help =
            "With approx or exact, a child whose variable is below this is a favorite (paper: 0.1)",
        .takers = kPlaceTakes,
        .field = [](StepRequest& r) -> OptionField { return &r.search.place.lp_threshold; },
        .least = 0,
        .most = 0.5,  // at most one child of an operator has a variable below one half
        .taken_by = [](const PlacerEntry& placer) { return placer.favorite_children; }},
    PlannerOption{
        .name = "complete_matching",
        .help =
            "match operators that rounding leaves without a favorite child, with approx or exact",
        .takers = kPlaceTakes,
        .field = [](StepRequest& r) -> OptionField { return &r.search.place.complete_matching; },
        .taken_by = [](const PlacerEntry& placer) { return placer.favorite_children; },
        .command_line = "--no-completion"},
    PlannerOption{
        .name = "expert",
        .help =
            "A placement for method expert to follow, for gpipe, 1f1b and zb-h1 to take as stages, "
            "and for method all to show",
        .takers = kPlaceTakes,
        .field = [](StepRequest& r) -> OptionField { return &r.search.place.expert; },
        .taken_by = [](const PlacerEntry& placer) { return placer.needs_expert; }},
    PlannerOption{.name = "tidy",
                  .help = "let the step grow by up to 0.3%, not 0.05%, to move small islands of "
                          "operators to a neighbour's device",
                  .takers = kPlaceTakes,
                  .field = [](StepRequest& r) -> OptionField { return &r.search.tidy; },
                  .of_search = true,
                  .command_line = "--tidy"},
    PlannerOption{.name = "micro_batches",
                  .help = "How many micro-batches a step has. Each is as large as the graph or, "
                          "with a mini-batch, an equal part of the mini-batch. Of several numbers, "
                          "and of those that auto tries, the plan has the fastest",
                  .takers = kAllPlan,
                  .field = [](StepRequest& r) -> OptionField { return &r.micro_batches; },
                  .least = 1,
                  .most = 4096},
    PlannerOption{.name = "mini_batch",
                  .help = "Samples per step, in all its micro-batches together",
                  .takers = kAllPlan,
                  .field = [](StepRequest& r) -> OptionField { return &r.mini_batch; },
                  .least = 1,
                  .most = 1e12},
    PlannerOption{.name = "replicas",
                  .help =
                      "How many copies of a placement, on devices of their own, share the "
                      "micro-batches of a step and reduce the gradients. Of several numbers, or "
                      "with auto of those that divide the micro-batches, the best plan found wins",
                  .takers = kPlaceTakes,
                  .field = [](StepRequest& r) -> OptionField { return &r.replicas; },
                  .least = 1,
                  .most = 1024},
    PlannerOption{
        .name = "recompute",
        .help =
            "Which operators of the forward pass run a second time for the backward pass, so that "
            "memory need not hold their results (default with residency auto: auto)",
        .takers = kPlaceTakes,
        .field = [](StepRequest& r) -> OptionField { return second_runs(r.recompute); }},
    PlannerOption{
        .name = "residency",
        .help = "Which tensors are in the host's memory while no device needs them: weights, "
                "optimizer state, and results that the backward pass reads",
        .takers = kPlaceTakes,
        .field = [](StepRequest& r) -> OptionField { return one_of(r.residency, kResidingNames); }},
    PlannerOption{
        .name = "place_copies",
        .help = "With residency, where the copies of an operator for the micro-batches may be",
        .takers = kPlaceTakes,
        .field = [](StepRequest& r) -> OptionField {
          return one_of(r.copies_apart, kCopiesNames);
        }},
    PlannerOption{.name = "bounds",
                  .help = "compute lower bounds and the gap",
                  .takers = kPlaceTakes,
                  .field = [](StepRequest& r) -> OptionField { return &r.search.bounds; }},
    PlannerOption{.name = "suggest",
                  .help = "search for what would make a plan fit if none does",
                  .takers = kPlaceTakes,
                  .field = [](StepRequest& r) -> OptionField { return &r.search.suggest; }},
};

constexpr std::pair<std::string_view, std::string_view> kGone[] = {
    {"objective", "a plan makes the step of our simulator short"},
    {"improvements", "nothing replaces it; a terminal shows each shorter step while planning"},
    {"robust", "nothing replaces it; sensitivity says what wrong costs do to a step"},
};

}  // namespace

std::string gone_option(std::string_view name, Entrance entrance) {
  const auto gone = std::ranges::find(kGone, name, [](const auto& row) { return row.first; });
  if (gone == std::end(kGone)) return "";
  return std::string(entrance == Entrance::kCommandLine ? "--" : "") + std::string(name) +
         " is no longer there: " + std::string(gone->second);
}

std::span<const PlannerOption> planner_options() { return kOptions; }

const PlannerOption& find_planner_option(std::string_view name) {
  const auto option = std::ranges::find(kOptions, name, &PlannerOption::name);
  BAECHI_ASSERT(option != kOptions.end(), "the planner has the option");
  return *option;
}

std::string command_line_names(const PlannerOption& option) {
  if (!option.command_line.empty()) return std::string(option.command_line);
  std::string name(option.name);
  std::ranges::replace(name, '_', '-');
  StepRequest request;
  return (std::holds_alternative<bool*>(option.field(request)) ? "--no-" : "--") + name;
}

std::string spelled(const PlannerOption& option, Entrance entrance) {
  if (entrance == Entrance::kPython) return std::string(option.name);
  const std::string names = command_line_names(option);
  return names.substr(names.find("--"));
}

}  // namespace baechi
