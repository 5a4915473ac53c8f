// SPDX-License-Identifier: Apache-2.0
// The options of the planner, a row each: what it may be, its help and who takes it; its default is
// that of a request's member. The command line, the Python package and the help of both are made
// of these rows, and requests are checked by them. Beyond the paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/place/placer.h"
#include "baechi/plan/request/request.h"

namespace baechi {

// Who takes options; a row names several.
enum Taker : unsigned {
  kPlaceTakes = 1,      // place, baechi.place_graph
  kStudiesTake = 2,     // what-if, sweep, min, sensitivity
  kOptimizerTakes = 4,  // optimize, baechi.optimize_graph
};

// One of a few names.
struct OneOf {
  struct Choice {
    std::string_view name, summary;
    std::function<void()> take;
  };
  std::vector<Choice> choices;
  std::string now;
};

// Where a request keeps the value.
struct Seconds {
  double* value;
};
// Numbers, or "auto": none. Absent: 1.
using Counts = std::optional<std::vector<std::uint32_t>>;
using OptionField = std::variant<bool*, unsigned*, std::uint64_t*, double*, Seconds,
                                 std::optional<std::int64_t>*, Counts*, OneOf, const Placement**>;

struct PlannerOption {
  std::string_view name;  // of the keyword in Python; dashes for the command line
  std::string_view help;  // what it is, or what it does if it can be switched off
  unsigned takers = 0;
  OptionField (*field)(StepRequest&) = nullptr;
  double least = 0, most = 0;                             // of numbers; seeds may be anything
  bool (*taken_by)(const PlacerEntry& placer) = nullptr;  // absent: by every method
  std::string_view nothing = {};       // the value that every method does justice to
  bool of_search = false;              // by methods that search on from others' plans alone
  std::string_view command_line = {};  // absent: --name, or --no-name for what can be switched off
  bool is_argument = false;            // functions in Python have an argument of that name
};

// How a user writes the option's name: "--lp-threshold" or "lp_threshold".
enum class Entrance : std::uint8_t { kCommandLine, kPython };

// In the order of help.
std::span<const PlannerOption> planner_options();
const PlannerOption& find_planner_option(std::string_view name);  // requires that there is one

// "NAME is no longer there: " and what does it now, of an option of an earlier version; else empty.
std::string gone_option(std::string_view name, Entrance entrance);

std::string command_line_names(const PlannerOption& option);  // "-m,--method"

std::string spelled(const PlannerOption& option, Entrance entrance);

// What a request asks for cannot be. what() spells the option as Python does; the command line
// spells it anew.
class OptionError : public InputError {
 public:
  OptionError(const char* option, const std::string& reason)
      : InputError(option, reason), option_(option), reason_(reason) {}
  const std::string& option() const { return option_; }  // as in planner_options()
  const std::string& reason() const { return reason_; }

 private:
  std::string option_, reason_;
};

}  // namespace baechi
