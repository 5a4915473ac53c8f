// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/step_search.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/base/error.h"
#include "baechi/plan/planner.h"
#include "baechi/plan/steps/names_of_one.h"
#include "baechi/plan/steps/step_plan.h"
#include "baechi/verify/check_plan.h"
#include "unit/plan/one_size.h"
#include "unit/plan/training_graph.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

StepRequest steps_of(std::vector<std::uint32_t> numbers, double budget = 0.05) {
  StepRequest request{.search = {.budget = budget}};
  request.micro_batches = std::move(numbers);
  return request;
}

StepPlan planned_step(const StepRequest& request, Bytes capacity = Bytes(1000),
                      std::int64_t batch = 4) {
  return step_plan_of(training(batch),
                      byte_per_ns(4, CommunicationMode::kDuplex, Time(0), capacity), request);
}

bool says_stopped(const Plan& plan) {
  return std::ranges::any_of(plan.notes, [](const std::string& note) {
    return note.find("stopped") != std::string::npos;
  });
}

TEST_CASE("micro-batches: who stops the search gets the best plan so far") {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kAuto, Recompute::kAll}) {
    CancelFlag flag;
    std::vector<Time> told;
    StepRequest request = steps_of({8}, 5);
    request.recompute = recompute;
    request.search.place.cancel = &flag;
    request.search.watch = [&](const SearchNews& news) {
      told.push_back(*news.step);
      flag.request();
    };
    const StepPlan made = planned_step(request);
    REQUIRE(std::holds_alternative<Plan>(made.result));
    const Plan& plan = std::get<Plan>(made.result);
    CHECK(check_plan(made.graph_of_one(), made.step.graph, plan).empty());
    CHECK(says_stopped(plan));
    CHECK(plan.makespan() <= told.front());
  }
}

TEST_CASE("micro-batches: of several numbers, those that were planned until then are compared") {
  CancelFlag flag;
  StepRequest request = steps_of({1, 2, 4}, 5);
  request.mini_batch = 8;
  request.search.place.cancel = &flag;
  request.search.watch = [&](const SearchNews&) { flag.request(); };
  const StepPlan made = planned_step(request);
  REQUIRE(std::holds_alternative<Plan>(made.result));
  const Plan& plan = std::get<Plan>(made.result);
  CHECK(plan.micro_batches == 1);
  CHECK(plan.notes.back() == "you stopped before 2 micro-batches were planned");
}

TEST_CASE("micro-batches: who stops the search before there is a plan gets none") {
  CancelFlag flag;
  flag.request();
  StepRequest request = steps_of({8});
  request.search.place.cancel = &flag;
  CHECK_THROWS_AS(planned_step(request), Cancelled);
}

TEST_CASE("micro-batches: news are of shorter and shorter steps, the plan's the last") {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kAuto}) {
    std::vector<Time> told;
    StepRequest request = steps_of({4});
    request.recompute = recompute;
    request.search.watch = [&](const SearchNews& news) { told.push_back(*news.step); };
    const StepPlan made = planned_step(request);
    REQUIRE_FALSE(told.empty());
    CHECK(std::ranges::is_sorted(told, std::greater<>()));
    CHECK(told.back() == std::get<Plan>(made.result).makespan());
  }
}

TEST_CASE("micro-batches: reasons name the operators that somebody wrote") {
  StepRequest request = steps_of({4});
  request.search.suggest = false;
  const StepPlan made = planned_step(request, Bytes(15));
  const auto& answer = std::get<Unplaceable>(made.result);
  CHECK(answer.reason.find('@') == std::string::npos);
  CHECK(answer.reason.starts_with("the colocation group of operator 'f1' (3 operators) needs "));
  REQUIRE(answer.op.has_value());
  CHECK(made.graph_told_of()[*answer.op].name == "f1");
  const Unrolled step = unroll(training(4), 3);
  CHECK(in_names_of_one("operator 'f0@2' and 'b0@sum' and 'f9@2'", step) ==
        "operator 'f0' and 'b0' and 'f9@2'");
}

TEST_CASE("micro-batches: methods see the same devices as the plan uses") {
  const StepPlan made = planned_step(steps_of({4}));
  const Plan& plan = std::get<Plan>(made.result);
  std::vector<DeviceId> used;
  for (const OpSlot& slot : plan.schedule.slots) used.push_back(slot.device);
  std::ranges::sort(used);
  used.erase(std::unique(used.begin(), used.end()), used.end());
  for (const MethodOutcome& row : plan.methods)
    if (row.method == plan.method && row.makespan == plan.makespan())
      CHECK(row.devices_used == used.size());
}

TEST_CASE("planner: a method of several micro-batches is none of make_plan()'s, and it says so") {
  const OpGraph graph = training(4);
  const Cluster two = byte_per_ns(2, CommunicationMode::kDuplex, Time(0));
  CHECK_THROWS_WITH_AS(
      make_plan(CostModel(graph, two), {.method = "pipeline"}),
      "method: 'pipeline' places steps of several micro-batches: say how many there are",
      InputError);
}

TEST_CASE("micro-batches: all that auto needs is said at once") {
  try {
    planned_step(steps_of({}));
    FAIL("no error");
  } catch (const InputError& error) {
    const std::string words = error.what();
    CHECK(words.starts_with("mini_batch: missing; auto divides a mini-batch"));
    CHECK(words.find("give the graph at two or more batch sizes") != std::string::npos);
  }
}

}  // namespace
}  // namespace baechi::testing
