// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/request/option_values.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <variant>

#include "baechi/base/error.h"
#include "baechi/base/near_name.h"
#include "baechi/base/number_text.h"
#include "baechi/place/pipeline/pipeline.h"
#include "baechi/plan/request/methods.h"

namespace baechi {
namespace {

std::string seconds_text(double seconds) {
  if (!std::isfinite(seconds)) return number_text(seconds);
  return seconds > 0 && seconds < 1 ? number_text(seconds * 1e3) + "ms"
                                    : number_text(seconds) + "s";
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

Value value_of(const PlannerOption& option, StepRequest request) {
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
    return "a time from 0s to " + seconds_text(option.most) + ", such as 500ms or 10s";
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
  if (option.of_search) return !places_in_stages(method) && !runs_alone(method);
  if (option.taken_by == nullptr) return true;
  if (places_in_stages(method)) return option.name == "expert" && takes_stages(method);
  return std::ranges::any_of(placers_of(method),
                             [&](const PlacerEntry* placer) { return option.taken_by(*placer); });
}

std::string methods_that_take(const PlannerOption& option) {
  StepRequest request;
  std::vector<std::string> names;
  const OptionField methods = find_planner_option("method").field(request);
  for (const OneOf::Choice& method : std::get<OneOf>(methods).choices)
    if (takes(method.name, option)) names.emplace_back(method.name);
  return listed(names);
}

}  // namespace

std::string listed(const std::vector<std::string>& names, std::string_view last) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += std::string(i == 0 ? "" : i + 1 < names.size() ? ", " : last) + names[i];
  return text;
}

std::string expected(const PlannerOption& option) {
  StepRequest request;
  return std::visit(Expected{option}, option.field(request));
}

std::string value_text(const PlannerOption& option, const StepRequest& request) {
  return value_of(option, request).text;
}

void refuse_value(const PlannerOption& option, Entrance entrance, const std::string& value) {
  throw InputError(spelled(option, entrance), unexpected(option, value));
}

std::string unexpected(const PlannerOption& option, const std::string& value) {
  StepRequest request;
  const OptionField field = option.field(request);
  std::vector<std::string> names;
  if (const auto* one = std::get_if<OneOf>(&field))
    for (const OneOf::Choice& choice : one->choices) names.emplace_back(choice.name);
  return "expected " + expected(option) + ", found '" + value + "'" + did_you_mean(value, names);
}

bool is_right(const PlannerOption& option, const StepRequest& request) {
  return value_of(option, request).right;
}

void check_ranges(const StepRequest& request) {
  for (const PlannerOption& option : planner_options())
    if (!is_right(option, request))
      refuse_value(option, Entrance::kPython, value_text(option, request));
}

void check_taken(const StepRequest& request, Taker taker, Entrance entrance) {
  const StepRequest defaults;
  StepRequest any;
  std::vector<std::string> taken;
  for (const PlannerOption& option : planner_options())
    if ((option.takers & taker) != 0) taken.push_back(spelled(option, entrance));
  for (const PlannerOption& option : planner_options()) {
    const std::string value = value_text(option, request);
    if (value == value_text(option, defaults)) continue;
    if (!option.nothing.empty() && value == option.nothing) continue;
    const std::string name = spelled(option, entrance);
    const bool shown = !std::holds_alternative<const Placement**>(option.field(any));
    const std::string found = (shown ? "'" + value + "' has" : "it has") + " no effect ";
    if ((option.takers & taker) == 0)
      throw InputError(name, found + "here: only " + listed(taken, " and ") + " have");
    if (!takes(request.search.method, option))
      throw InputError(name, found + "with method " + request.search.method + ": it is for " +
                                 methods_that_take(option));
  }
  if (places_in_stages(request.search.method)) return;
  const std::vector<const PlacerEntry*> placers = placers_of(request.search.method);
  if (placers.size() == 1 && placers.front()->needs_expert &&
      request.search.place.expert == nullptr)
    throw InputError(spelled(find_planner_option("expert"), entrance),
                     "method " + request.search.method + " needs a placement to follow");
}

}  // namespace baechi
