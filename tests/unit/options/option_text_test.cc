// SPDX-License-Identifier: Apache-2.0
#include "baechi/options/option_text.h"

#include <doctest/doctest.h>

#include <string>
#include <variant>

#include "baechi/plan/request/option_values.h"
#include "unit/refusal.h"

namespace baechi {
namespace {

std::string complaint(const char* name, const char* text, StepRequest& request) {
  return testing::refusal_of(
      [&] { read_option(find_planner_option(name), text, request, Entrance::kCommandLine); });
}

std::string without_effect(const StepRequest& request, Taker taker) {
  return testing::refusal_of([&] { check_taken(request, taker, Entrance::kPython); });
}

TEST_CASE("options: every row has help, a taker, and a default that reads back") {
  for (const PlannerOption& option : planner_options()) {
    CAPTURE(option.name);
    CHECK_FALSE(help_text(option, Entrance::kPython).empty());
    CHECK(option.takers != 0);
    StepRequest request;
    CHECK(is_right(option, request));
    const std::string text = value_text(option, request);
    if (text.empty()) continue;  // absent
    CHECK(complaint(std::string(option.name).c_str(), text.c_str(), request) == "");
    CHECK(value_text(option, request) == text);
    CHECK(complaint(std::string(option.name).c_str(), "?", request) ==
          spelled(option, Entrance::kCommandLine) + ": expected " + expected(option) +
              ", found '?'");
  }
  CHECK_NOTHROW(check_ranges(StepRequest{}));
}

TEST_CASE("options: values are read with their units; a bad one changes nothing") {
  StepRequest request;
  CHECK(complaint("budget", "250ms", request) == "");
  CHECK(request.search.budget.seconds == 0.25);
  CHECK(value_text(find_planner_option("budget"), request) == "250ms");
  for (const char* text : {"-1s", "1000001s", "3", "", "nan"})
    CHECK(complaint("budget", text, request) != "");
  CHECK(request.search.budget.seconds == 0.25);
  CHECK(complaint("seed", "18446744073709551615", request) == "");
  CHECK(complaint("seed", "18446744073709551616", request) != "");
  CHECK(complaint("lp_threshold", "0.6", request) ==
        "--lp-threshold: expected a number from 0 to 0.5, found '0.6'");
  CHECK(complaint("lp", "approx", request) == "");
  CHECK(request.search.place.favorites == FavoriteMethod::kLpApprox);
}

TEST_CASE("options: one without effect is refused, unless it has its default") {
  StepRequest request;
  request.search.method = "m-etf";
  CHECK(without_effect(request, kPlaceTakes) == "");
  request.search.place.lp_threshold = 0.1;
  CHECK(without_effect(request, kPlaceTakes) ==
        "lp_threshold: '0.1' has no effect with method m-etf: it is for auto, refine, all, m-sct "
        "or exact");
  request.search.method = "m-sct";
  CHECK(without_effect(request, kPlaceTakes) == "");
  request = {.search = {.method = "chain", .optimize = {.level = OptimizeLevel::kFuse}}};
  CHECK(without_effect(request, kPlaceTakes) ==
        "optimize: 'fuse' has no effect with method chain: it is for auto, refine, all, m-topo, "
        "m-etf, m-sct or exact");
  request.search.optimize.level = OptimizeLevel::kNone;  // as which it places
  CHECK(without_effect(request, kPlaceTakes) == "");
  request = {.search = {.method = "expert"}};
  CHECK(without_effect(request, kPlaceTakes) ==
        "expert: method expert needs a placement to follow");
  const Placement placement;
  request.search.place.expert = &placement;
  CHECK(without_effect(request, kPlaceTakes) == "");
  request.search.method = "auto";
  CHECK(without_effect(request, kPlaceTakes) ==
        "expert: it has no effect with method auto: it is for all, expert, gpipe, 1f1b or zb-h1");
}

TEST_CASE("options: the command line has the name with dashes, and what switches off") {
  CHECK(spelled(find_planner_option("lp_threshold"), Entrance::kCommandLine) == "--lp-threshold");
  CHECK(spelled(find_planner_option("lp_threshold"), Entrance::kPython) == "lp_threshold");
  CHECK(command_line_names(find_planner_option("method")) == "-m,--method");
  CHECK(spelled(find_planner_option("method"), Entrance::kCommandLine) == "--method");
  CHECK(command_line_names(find_planner_option("bounds")) == "--no-bounds");
}

}  // namespace
}  // namespace baechi
