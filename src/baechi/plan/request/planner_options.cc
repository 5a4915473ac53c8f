// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/request/planner_options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "baechi/base/near_name.h"
#include "baechi/base/number_text.h"
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
    {FavoriteMethod::kLpApprox, "approx", "the paper's linear program, to half a percent"},
    {FavoriteMethod::kLpExact, "exact", "the paper's linear program, to a millionth"},
}};

struct RecomputeName {
  Recompute recompute;
  std::string_view name, summary;
};
constexpr std::array<RecomputeName, 3> kRecomputeNames{{
    {Recompute::kNone, "none", "every operator runs once"},
    {Recompute::kAuto, "auto", "those with which the step is shortest, or fits at all"},
    {Recompute::kAll, "all", "all that may, in regions whose first inputs are kept"},
}};

struct ResidingName {
  AwayChoice residency;
  std::string_view name, summary;
};
constexpr std::array<ResidingName, 3> kResidingNames{{
    {AwayChoice::kNone, "none", "devices keep all that they make and all weights"},
    {AwayChoice::kAuto, "auto", "what makes the step shortest, or fit at all"},
    {AwayChoice::kAll, "all", "all that may be, so that devices need the least memory"},
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
    PlannerOption{.name = "method",
                  .help = "How to place",
                  .takers = kAllPlan,
                  .field = [](PlanRequest& r) -> OptionField { return any_method(r.method); },
                  .command_line = "-m,--method",
                  .is_argument = true},
    PlannerOption{.name = "optimize",
                  .help = "What the Graph Optimizer does first, for the paper's methods",
                  .takers = kAllPlan | kOptimizerTakes,
                  .field = [](PlanRequest& r) -> OptionField {
                    return one_of(r.optimize.level, optimize_levels());
                  }},
    PlannerOption{.name = "coplacement",
                  .help = "How the Graph Optimizer co-places",
                  .takers = kAllPlan | kOptimizerTakes,
                  .field = [](PlanRequest& r) -> OptionField {
                    return one_of(r.optimize.coplacement.rule, coplacement_rules());
                  }},
    PlannerOption{.name = "paper",
                  .help = "the paper's system to the letter, to compare with; what does not fit is "
                          "not mended",
                  .takers = kAllPlan | kOptimizerTakes,
                  .field = [](PlanRequest& r) -> OptionField { return &r.paper; },
                  .command_line = "--paper"},
    PlannerOption{.name = "order",
                  .help = "In which order the program that runs the plan works off its operators: "
                          "the plan is made for that",
                  .takers = kAllPlan,
                  .field = [](PlanRequest& r) -> OptionField {
                    return one_of(r.place.order, execution_orders());
                  }},
    PlannerOption{.name = "budget",
                  .help = "How long auto and refine may search; it sets an amount of work, so "
                          "equal input gives an equal plan",
                  .takers = kAllPlan,
                  .field = [](PlanRequest& r) -> OptionField { return Seconds{&r.budget}; },
                  .least = 1e-9,
                  .most = 1e6},
    PlannerOption{.name = "threads",
                  .help = "Threads of the search; they change how long it takes, not the plan",
                  .takers = kAllPlan,
                  .field = [](PlanRequest& r) -> OptionField { return &r.threads; },
                  .least = 1,
                  .most = 1024},
    PlannerOption{.name = "seed",
                  .help = "For every random choice",
                  .takers = kAllPlan,
                  .field = [](PlanRequest& r) -> OptionField { return &r.place.seed; }},
    PlannerOption{.name = "lp",
                  .help = "How m-sct finds favorite children",
                  .takers = kPlaceTakes,
                  .field = [](PlanRequest& r) -> OptionField {
                    return one_of(r.place.favorites, kFavoriteMethods);
                  },
                  .taken_by = [](const PlacerEntry& placer) { return placer.favorite_children; }},
    PlannerOption{
        .name = "lp_threshold",
        .help = "With approx or exact, a solution below it makes a favorite child (paper: 0.1)",
        .takers = kPlaceTakes,
        .field = [](PlanRequest& r) -> OptionField { return &r.place.lp_threshold; },
        .least = 0,
        .most = 0.5,  // at most one child of an operator has a variable below one half
        .taken_by = [](const PlacerEntry& placer) { return placer.favorite_children; }},
    PlannerOption{.name = "complete_matching",
                  .help = "match what rounding has left over, with approx or exact",
                  .takers = kPlaceTakes,
                  .field = [](PlanRequest& r) -> OptionField { return &r.place.complete_matching; },
                  .taken_by = [](const PlacerEntry& placer) { return placer.favorite_children; },
                  .command_line = "--no-completion"},
    PlannerOption{.name = "expert",
                  .help = "A placement to follow with method expert, and to show with all",
                  .takers = kPlaceTakes,
                  .field = [](PlanRequest& r) -> OptionField { return &r.place.expert; },
                  .taken_by = [](const PlacerEntry& placer) { return placer.needs_expert; }},
    PlannerOption{.name = "robust",
                  .help = "Choose, of the plans that the methods make, the one with the shortest "
                          "worst step when costs are off by up to so much",
                  .takers = kPlaceTakes,
                  .field = [](PlanRequest& r) -> OptionField { return &r.robust; },
                  .least = 0,
                  .most = 1,
                  .implied = "20%"},
    PlannerOption{.name = "micro_batches",
                  .help =
                      "How many micro-batches a step has. Each is as large as the graph, or with "
                      "a mini-batch a part of it. Of several numbers, or of those that auto "
                      "tries, the fastest is taken",
                  .takers = kAllPlan,
                  .field = [](PlanRequest& r) -> OptionField { return &r.micro_batches; },
                  .least = 1,
                  .most = 4096},
    PlannerOption{.name = "mini_batch",
                  .help = "How many samples the micro-batches of a step are together",
                  .takers = kAllPlan,
                  .field = [](PlanRequest& r) -> OptionField { return &r.mini_batch; },
                  .least = 1,
                  .most = 1e12},
    PlannerOption{.name = "recompute",
                  .help = "Which operators of the forward pass run a second time before their "
                          "backward needs them, so that memory need not hold what they make",
                  .takers = kPlaceTakes,
                  .field = [](PlanRequest& r) -> OptionField {
                    return one_of(r.recompute, kRecomputeNames);
                  }},
    PlannerOption{
        .name = "residency",
        .help = "Which tensors the cluster's host keeps while no device reads them: "
                "weights, their updates, and what the backward pass reads",
        .takers = kPlaceTakes,
        .field = [](PlanRequest& r) -> OptionField { return one_of(r.residency, kResidingNames); }},
    PlannerOption{.name = "improvements",
                  .help = "keep in the plan when the search found which step, and by what",
                  .takers = kPlaceTakes,
                  .field = [](PlanRequest& r) -> OptionField { return &r.improvements; },
                  .command_line = "--improvements"},
    PlannerOption{.name = "bounds",
                  .help = "compute lower bounds, and so the gap",
                  .takers = kPlaceTakes,
                  .field = [](PlanRequest& r) -> OptionField { return &r.bounds; }},
    PlannerOption{.name = "suggest",
                  .help = "search for what would fit, when nothing does",
                  .takers = kPlaceTakes,
                  .field = [](PlanRequest& r) -> OptionField { return &r.suggest; }},
};

std::string seconds_text(double seconds) {
  if (!std::isfinite(seconds)) return number_text(seconds);
  return seconds > 0 && seconds < 1 ? number_text(seconds * 1e3) + "ms"
                                    : number_text(seconds) + "s";
}

std::string listed(const std::vector<std::string>& names, const char* last = " or ") {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 < names.size() ? ", " : last) + names[i];
  return text;
}

std::string range_text(const PlannerOption& option) {
  return " from " + number_text(option.least) + " to " + number_text(option.most);
}

// What a request has, as text, and whether it may.
struct Value {
  std::string text;
  bool right = true;
};

struct ValueOf {
  const PlannerOption& option;

  Value within(double number, std::string text) const {
    return {std::move(text), number >= option.least && number <= option.most};
  }
  Value operator()(const bool* value) const { return {*value ? "true" : "false"}; }
  Value operator()(const unsigned* value) const { return within(*value, std::to_string(*value)); }
  Value operator()(const std::uint64_t* value) const { return {std::to_string(*value)}; }
  Value operator()(const double* value) const { return within(*value, number_text(*value)); }
  Value operator()(Seconds seconds) const {
    return within(*seconds.value, seconds_text(*seconds.value));
  }
  Value operator()(const std::optional<double>* value) const {
    return value->has_value() ? within(**value, number_text(**value)) : Value{};
  }
  Value operator()(const std::optional<std::int64_t>* value) const {
    if (!value->has_value()) return {};
    return within(static_cast<double>(**value), std::to_string(**value));
  }
  Value operator()(const Counts* counts) const {
    if (!counts->has_value()) return {"1"};
    Value value{(*counts)->empty() ? "auto" : ""};
    for (const std::uint32_t count : **counts) {
      value.text += (value.text.empty() ? "" : ",") + std::to_string(count);
      value.right = value.right && within(count, "").right;
    }
    return value;
  }
  Value operator()(const OneOf& field) const {
    return {field.now, std::ranges::find(field.choices, field.now, &OneOf::Choice::name) !=
                           field.choices.end()};
  }
  Value operator()(const Placement* const* value) const {
    return {*value != nullptr ? "a placement" : ""};
  }
};

Value value_of(const PlannerOption& option, PlanRequest request) {
  return std::visit(ValueOf{option}, option.field(request));
}

struct Expected {
  const PlannerOption& option;

  std::string operator()(const bool*) const { return "true or false"; }
  std::string operator()(const unsigned*) const { return "a whole number" + range_text(option); }
  std::string operator()(const std::uint64_t*) const {
    return "a whole number from 0 to " + std::to_string(std::numeric_limits<std::uint64_t>::max());
  }
  std::string operator()(const double*) const { return "a number" + range_text(option); }
  std::string operator()(Seconds) const {
    return "a time above 0s, up to " + seconds_text(option.most) + ", such as 500ms or 10s";
  }
  std::string operator()(const std::optional<double>*) const {
    return "a part" + range_text(option) + ", such as 0.2 or 20%";
  }
  std::string operator()(const std::optional<std::int64_t>*) const {
    return "a whole number from 1 up";
  }
  std::string operator()(const Counts*) const {
    return "auto or whole numbers" + range_text(option) + ", such as 8 or 1,2,4,8";
  }
  std::string operator()(const OneOf& field) const {
    std::vector<std::string> names;
    for (const OneOf::Choice& choice : field.choices) names.emplace_back(choice.name);
    return "one of " + listed(names);
  }
  std::string operator()(const Placement* const*) const { return "a placement"; }
};

// Its own placer's, or any of those that it runs.
bool takes(std::string_view method, const PlannerOption& option) {
  if (option.taken_by == nullptr) return true;
  if (places_in_stages(method)) return false;
  return std::ranges::any_of(placers_of(method),
                             [&](const PlacerEntry* placer) { return option.taken_by(*placer); });
}

std::string methods_that_take(const PlannerOption& option) {
  PlanRequest request;
  std::vector<std::string> names;
  for (const OneOf::Choice& method : any_method(request.method).choices)
    if (takes(method.name, option)) names.emplace_back(method.name);
  return listed(names);
}

}  // namespace

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
  PlanRequest request;
  return (std::holds_alternative<bool*>(option.field(request)) ? "--no-" : "--") + name;
}

std::string spelled(const PlannerOption& option, Entrance entrance) {
  if (entrance == Entrance::kPython) return std::string(option.name);
  const std::string names = command_line_names(option);
  return names.substr(names.find("--"));
}

std::string expected(const PlannerOption& option) {
  PlanRequest request;
  return std::visit(Expected{option}, option.field(request));
}

std::string value_text(const PlannerOption& option, const PlanRequest& request) {
  return value_of(option, request).text;
}

void refuse_value(const PlannerOption& option, Entrance entrance, const std::string& value) {
  throw InputError(spelled(option, entrance), unexpected(option, value));
}

std::string unexpected(const PlannerOption& option, const std::string& value) {
  PlanRequest request;
  const OptionField field = option.field(request);
  std::vector<std::string> names;
  if (const auto* one = std::get_if<OneOf>(&field))
    for (const OneOf::Choice& choice : one->choices) names.emplace_back(choice.name);
  return "expected " + expected(option) + ", found '" + value + "'" + did_you_mean(value, names);
}

bool is_right(const PlannerOption& option, const PlanRequest& request) {
  return value_of(option, request).right;
}

void check_ranges(const PlanRequest& request) {
  for (const PlannerOption& option : kOptions)
    if (const Value value = value_of(option, request); !value.right)
      refuse_value(option, Entrance::kPython, value.text);
}

void check_taken(const PlanRequest& request, Taker taker, Entrance entrance) {
  const PlanRequest defaults;
  PlanRequest any;
  std::vector<std::string> taken;
  for (const PlannerOption& option : kOptions)
    if ((option.takers & taker) != 0) taken.push_back(spelled(option, entrance));
  for (const PlannerOption& option : kOptions) {
    const std::string value = value_text(option, request);
    if (value == value_text(option, defaults)) continue;
    const std::string name = spelled(option, entrance);
    const bool shown = !std::holds_alternative<const Placement**>(option.field(any));
    const std::string found = (shown ? "'" + value + "' has" : "it has") + " no effect ";
    if ((option.takers & taker) == 0)
      throw InputError(name, found + "here: only " + listed(taken, " and ") + " have");
    if (!takes(request.method, option))
      throw InputError(name, found + "with method " + request.method + ": it is for " +
                                 methods_that_take(option));
  }
  if (places_in_stages(request.method)) return;
  const std::vector<const PlacerEntry*> placers = placers_of(request.method);
  if (placers.size() == 1 && placers.front()->needs_expert && request.place.expert == nullptr)
    throw InputError(spelled(find_planner_option("expert"), entrance),
                     "method " + request.method + " needs a placement to follow");
}

}  // namespace baechi
