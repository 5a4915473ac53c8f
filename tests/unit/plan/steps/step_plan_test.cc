// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/step_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/graph/recosted.h"
#include "baechi/io/plan/plan_file.h"
#include "baechi/io/step/open_plan.h"
#include "baechi/plan/request/answer.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/steps/in_runs.h"
#include "baechi/verify/check_plan.h"
#include "unit/graphs.h"
#include "unit/plan/training_graph.h"
#include "unit/refusal.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

std::vector<OpGraph> sizes(std::initializer_list<std::int64_t> batches) {
  std::vector<OpGraph> graphs;
  for (const std::int64_t batch : batches) graphs.push_back(training(batch));
  return graphs;
}

StepRequest request_for(std::vector<std::uint32_t> numbers,
                        std::optional<std::int64_t> mini_batch = {}) {
  StepRequest request{.search = {.budget = 0.05}};
  request.micro_batches = std::move(numbers);
  request.mini_batch = mini_batch;
  return request;
}

Cluster four_devices(Bytes capacity = Bytes(1000)) {
  return byte_per_ns(4, CommunicationMode::kDuplex, Time(0), capacity);
}

const Plan& plan_in(const StepPlan& made) {
  REQUIRE(std::holds_alternative<Plan>(made.result));
  return std::get<Plan>(made.result);
}

std::string error_of(std::vector<OpGraph> graphs, const StepRequest& request) {
  return refusal_of([&] { make_step_plan(std::move(graphs), four_devices(), request); });
}

TEST_CASE("micro-batches: the plan of a step is right, and its file tells it again") {
  const Cluster cluster = four_devices();
  for (const std::uint32_t number : {2U, 5U, 8U}) {
    CAPTURE(number);
    const StepPlan made = make_step_plan(sizes({4}), cluster, request_for({number}));
    const Plan& plan = plan_in(made);
    CHECK(plan.micro_batches == number);
    CHECK(check_plan(made.step.graph, plan).empty());
    const std::string text = plan_to_json(plan, made.step);
    const OpenedPlan back = open_plan_text(text, "plan.json", training(4));
    CHECK(back.plan == plan);
    CHECK(plan_to_json(back.plan, back.step) == text);
    CHECK(check_plan(back.step.graph, back.plan).empty());
    CHECK(text.find("@") == text.find("@", text.find("peak_operator")));
    // Not slower than one micro-batch after the other on one device.
    CHECK(plan.makespan() <= Time(number * 4 * ((1 + 4) + (1 + 8)) + 4));
  }
}

// f0 -> f1 -> b1 -> b0, and gradients of weights wi behind bi that nobody waits for.
OpGraph with_ends() {
  OpGraphBuilder builder("ends");
  const auto add = [&](const char* name, std::optional<OpId> forward) {
    return timed(builder, {.name = name, .forward = forward}, Time(5));
  };
  const OpId f0 = add("f0", {}), f1 = add("f1", {});
  const OpId b1 = add("b1", f1), b0 = add("b0", f0), w0 = add("w0", f0), w1 = add("w1", f1);
  const TensorId first = builder.add_output(f0, Bytes(4)),
                 arrives = builder.add_output(b1, Bytes(4));
  builder.connect(first, f1);
  builder.connect(first, w1);
  builder.connect(builder.add_output(f1, Bytes(4)), b1);
  builder.connect(arrives, b0);
  builder.connect(arrives, w0);
  builder.add_control_edge(b1, w1);
  builder.add_control_edge(b0, w0);
  return std::move(builder).build();
}

std::string names_of(const Unrolled& step, const std::vector<OpId>& ops) {
  std::string names;
  for (const OpId op : ops)
    names +=
        std::string(step.name(step.original[op])) + std::to_string(*step.micro_batch[op]) + " ";
  return names;
}

TEST_CASE("micro-batches: one device runs them one after the other, and ends as soon as it can") {
  std::vector<OpGraph> graphs;
  graphs.push_back(with_ends());
  const Cluster one = byte_per_ns(1, CommunicationMode::kDuplex, Time(0), Bytes(1000));
  const StepPlan made = make_step_plan(std::move(graphs), one, request_for({3}));
  const DeviceOrder order = order_of(plan_in(made).schedule, made.step.graph, 1);
  const std::string names = names_of(made.step, order[DeviceId(0)]);
  CHECK(names == "f00 f10 b10 w10 b00 w00 f01 f11 b11 w11 b01 w01 f02 f12 b12 w12 b02 w02 ");
  CHECK(plan_in(made).makespan() == Time(3 * 6 * 5));
}

// What they read from the other device is there, since others have read it.
TEST_CASE("micro-batches: ends move up behind what is on their own device") {
  const Unrolled step = unroll(with_ends(), 2);
  PlacedGraph placed{{}, DeviceOrder(2)};
  for (const OpId op : step.graph.ops())
    placed.device.push_back(DeviceId(step.name(step.original[op]).ends_with('0') ? 0 : 1));
  for (const bool ends : {false, true})
    for (const OpId op : step.graph.topological_order())
      if (step.name(step.original[op]).starts_with('w') == ends)
        (*placed.order)[placed.device[op]].push_back(op);
  const std::vector<DeviceOrder> orders = orders_in_runs(step, placed);
  REQUIRE(orders.size() == 3);  // of both devices, and of each
  CHECK(names_of(step, orders[0][DeviceId(0)]) == "f00 b00 w00 f01 b01 w01 ");
  CHECK(names_of(step, orders[0][DeviceId(1)]) == "f10 b10 w10 f11 b11 w11 ");
}

TEST_CASE("micro-batches: a long step is searched as a whole only if nothing else fits") {
  const auto rows = [](std::uint32_t number) {
    std::vector<std::string> names;
    const StepPlan made = make_step_plan(sizes({4}), four_devices(), request_for({number}));
    for (const MethodOutcome& row : plan_in(made).methods) names.push_back(row.method);
    return names;
  };
  const std::vector<std::string> few = rows(8), many = rows(600);
  CHECK(std::ranges::count(few, "m-etf") == 1);
  CHECK(std::ranges::count(many, "m-etf") == 0);
  CHECK(std::ranges::count(many, "replayed m-etf") == 1);
  CHECK(std::ranges::count(many, "pipeline") == 1);
  CHECK(std::ranges::count(few, "cut") == 0);
  CHECK(std::ranges::count(many, "cut") == 1);

  StepRequest request = request_for({600});
  request.search.suggest = false;
  const StepPlan none = make_step_plan(sizes({4}), four_devices(Bytes(15)), request);
  REQUIRE(std::holds_alternative<Unplaceable>(none.result));
  CHECK(std::get<Unplaceable>(none.result).proved);
}

TEST_CASE("micro-batches: eight of them keep four devices busier than one does") {
  const Cluster cluster = four_devices();
  const Time whole = plan_in(make_step_plan(sizes({32}), cluster, request_for({1}))).makespan();
  const Time parts = plan_in(make_step_plan(sizes({4}), cluster, request_for({8}))).makespan();
  CHECK(parts.count() * 2 < whole.count());
}

TEST_CASE("micro-batches: of several numbers the one with the shortest step is taken and told") {
  const Cluster cluster = four_devices();
  const StepPlan made = make_step_plan(sizes({2, 32}), cluster, request_for({1, 2, 4, 8}, 32));
  const Plan& plan = plan_in(made);
  Time best = plan.makespan();
  for (const std::uint32_t number : {1U, 2U, 4U, 8U}) {
    const StepPlan alone = make_step_plan(sizes({32 / number}), cluster, request_for({number}));
    if (number == plan.micro_batches)
      CHECK(plan_in(alone).makespan() == best);
    else
      CHECK(plan_in(alone).makespan() >= best);
  }
  CHECK(plan.micro_batches > 1);
  CHECK(std::count_if(plan.notes.begin(), plan.notes.end(),
                      [](const std::string& note) { return note.find(" micro-batch") == 1; }) == 4);
  // auto finds it among all divisors that are within the sizes: 16 micro-batches, too.
  const StepPlan any = make_step_plan(sizes({2, 32}), cluster, request_for({}, 32));
  CHECK(plan_in(any).makespan() <= best);
  CHECK(any.graph_of_one().batch_size() == 32 / plan_in(any).micro_batches);
}

TEST_CASE("micro-batches: costs of one size grow in proportion, and a note says so") {
  const StepPlan made = make_step_plan(sizes({8}), four_devices(), request_for({4}, 16));
  const Plan& plan = plan_in(made);
  CHECK(made.graph_of_one().batch_size() == 4);
  CHECK(plan.notes.back().starts_with("costs were scaled from a batch of 8 to 4 samples"));
  std::vector<OpGraph> unmarked;
  unmarked.push_back(training(4, false));
  const StepPlan guessed = make_step_plan(std::move(unmarked), four_devices(), request_for({2}));
  CHECK(plan_in(guessed).notes.back() ==
        "no operator is marked as running once per step: 4 are taken to be variables or updates");
  CHECK(plan_in(guessed).makespan() ==
        plan_in(make_step_plan(sizes({4}), four_devices(), request_for({2}))).makespan());
}

TEST_CASE("micro-batches: auto tries stages, and its plan is no slower than pipeline's") {
  const Cluster cluster = four_devices();
  StepRequest request = request_for({8});
  const Plan all = plan_in(make_step_plan(sizes({4}), cluster, request));
  request.search.method = "pipeline";
  const StepPlan made = make_step_plan(sizes({4}), cluster, request);
  CHECK(plan_in(made).method == "pipeline");
  CHECK(check_plan(made.step.graph, plan_in(made)).empty());
  CHECK(open_plan_text(plan_to_json(plan_in(made), made.step), "p", training(4)).plan ==
        plan_in(made));
  CHECK(all.makespan() <= plan_in(made).makespan());
  CHECK(error_of(sizes({4}), StepRequest{.search = {.method = "pipeline"}}) ==
        "method: 'pipeline' places steps of several micro-batches: say how many there are");
}

TEST_CASE("micro-batches: what does not fit says why") {
  const StepPlan made = make_step_plan(sizes({4}), four_devices(Bytes(15)), request_for({4}));
  REQUIRE(std::holds_alternative<Unplaceable>(made.result));
  CHECK_FALSE(std::get<Unplaceable>(made.result).reason.empty());
}

TEST_CASE("micro-batches: requests that cannot be right are refused in one sentence") {
  CHECK(error_of(sizes({4}), request_for({3}, 16)) ==
        "micro_batches: 3 does not divide the mini-batch of 16 samples; 2 and 4 do");
  CHECK(error_of(sizes({4}), request_for({32}, 24)) ==
        "micro_batches: 32 does not divide the mini-batch of 24 samples; 24 does");
  CHECK(error_of(sizes({4}), request_for({1, 2})) ==
        "mini_batch: missing; several numbers of micro-batches are compared by the step of one "
        "mini-batch: give the number of its samples");
  CHECK(error_of(sizes({4}), request_for({}, 16)) ==
        "micro_batches: auto compares micro-batches of several sizes, and there are costs for one "
        "only: give the graph at two or more batch sizes (sizes), or the numbers to compare, "
        "such as 1,2,4");
  CHECK(error_of(sizes({4, 8}), request_for({1}, 16)) ==
        "a micro-batch of 16 samples is outside of the batch sizes that there are costs for, 4 to "
        "8: give the graph at a larger one, too, or take another number of micro-batches");
  CHECK(error_of(sizes({4, 8}), request_for({2})) ==
        "mini_batch: graphs at several batch sizes need a mini-batch to divide");
  CHECK(error_of(sizes({4, 8}), request_for({}, 3)) ==
        "mini_batch: no micro-batch of 3 samples is within the batch sizes that there are costs "
        "for, 4 to 8");
  const Plan known;
  CHECK(error_of(sizes({4}), {.known = &known}) ==
        "residency: only auto begins with a plan that is known");
}

std::string changed(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

TEST_CASE("micro-batches: plans whose runs are not those of the step are refused") {
  StepRequest request = request_for({2});
  request.search.bounds = false;
  const StepPlan made =
      make_step_plan(sizes({4}), byte_per_ns(1, CommunicationMode::kDuplex), request);
  const std::string text = plan_to_json(plan_in(made), made.step);
  const auto refused = [&](const std::string& from, const std::string& to) {
    return refusal_of([&] { open_plan_text(changed(text, from, to), "p.json", training(4)); });
  };
  CHECK(refused("[0,1]", "[0,0]").find("operator 'f0' runs twice for one micro-batch") !=
        std::string::npos);
  CHECK(refused("[0,1]", "[0,2]").find("there is no micro-batch 2") != std::string::npos);
  CHECK(refused("[0,1]", "[0]").find("'f0' runs once per micro-batch: say of which") !=
        std::string::npos);
  CHECK(refused(",[0,1]", "")
            .find("expected 20 runs, one of every operator and micro-batch, found "
                  "19") != std::string::npos);
  CHECK(refused("\"micro_batches\": 2", "\"micro_batches\": 3").find("expected 28 runs") !=
        std::string::npos);
  CHECK(refused("\"micro_batches\": 2", "\"micro_batches\": 1").find("expected 2 to 4096") !=
        std::string::npos);
  CHECK(refused("\"makespan\": ", "\"makespan\": 1").find("the plan claims a step of") !=
        std::string::npos);
  // Another graph's costs are noticed, too.
  CHECK_THROWS_WITH_AS(open_plan_text(text, "p.json", training(5)),
                       doctest::Contains("its runs take"), InputError);
}

}  // namespace
}  // namespace baechi::testing
