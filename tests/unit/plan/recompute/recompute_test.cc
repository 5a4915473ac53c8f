// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/recompute/recompute.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/base/error.h"
#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/graph/topological_order.h"
#include "baechi/io/plan/plan_file.h"
#include "baechi/io/step/open_plan.h"
#include "baechi/plan/recompute/keep_or_recompute.h"
#include "baechi/plan/recompute/second_runs.h"
#include "baechi/plan/request/answer.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/search/refine.h"
#include "baechi/plan/steps/step_plan.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/study/second_run_facts.h"
#include "baechi/verify/check_plan.h"
#include "baechi/verify/check_recomputation.h"
#include "baechi/verify/check_schedule.h"
#include "property/effort.h"
#include "unit/graph/training_sketches.h"
#include "unit/graph_sketch.h"
#include "unit/graphs.h"
#include "unit/plan/one_size.h"
#include "unit/refusal.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

Cluster devices(std::size_t count, Bytes capacity) {
  return byte_per_ns(count, CommunicationMode::kDuplex, Time(0), capacity);
}

StepRequest asking(Recompute recompute) {
  StepRequest request{.search = {.budget = 0.02}};
  request.recompute = recompute;
  return request;
}

StepPlan planned(const OpGraph& graph, const Cluster& cluster, const StepRequest& request) {
  return step_plan_of(graph, cluster, request);
}

std::optional<Time> step_of_plan(const OpGraph& graph, const Cluster& cluster,
                                 Recompute recompute) {
  const StepPlan made = planned(graph, cluster, asking(recompute));
  const Plan* plan = std::get_if<Plan>(&made.result);
  if (plan == nullptr) return std::nullopt;
  CHECK(check_plan(made.graph_of_one(), made.step.graph, *plan).empty());
  return plan->makespan();
}

Bytes need_of_one(const OpGraph& graph) {
  const Cluster cluster = devices(1, Bytes(1'000'000));
  const auto order = graph.topological_order();
  DeviceOrder lists(1);
  lists[kGpu0].assign(order.begin(), order.end());
  const PlacedGraph placed{Placement(graph.num_ops(), kGpu0), lists};
  return simulate(CostModel(graph, cluster), placed).devices[kGpu0].peak;
}

std::vector<OpId> in_file_order(const OpGraph& graph) {
  const auto order = graph.topological_order();
  return {order.begin(), order.end()};
}

// The shortest step on one device of all sets of second runs, in the order of the file.
std::optional<Time> best_of_all(const OpGraph& graph, const Cluster& cluster) {
  const SecondRuns runs(graph);
  std::vector<OpId> may;
  for (const OpId op : graph.ops())
    if (runs.may(op)) may.push_back(op);
  std::optional<Time> best;
  for (std::uint32_t set = 0; set < (1U << may.size()); ++set) {
    IdVector<OpId, bool> chosen(graph.num_ops());
    for (std::size_t i = 0; i < may.size(); ++i) chosen[may[i]] = (set >> i & 1U) != 0;
    const SecondRuns::Placed placed = runs.in(in_file_order(graph), chosen);
    const OpGraph step = recomputing(graph, placed.again);
    DeviceOrder lists(1);
    lists[kGpu0] = placed.sequence;
    const Trace trace =
        simulate(CostModel(step, cluster), {Placement(step.num_ops(), kGpu0), std::move(lists)});
    if (find_overflow(trace, cluster).has_value()) continue;
    best = std::min(best.value_or(trace.schedule.makespan), trace.schedule.makespan);
  }
  return best;
}

TEST_CASE("recompute: on chains the dynamic program is as good as all choices") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const std::size_t n = 3 + random.below(7);
    std::vector<ForwardRun> runs(n);
    for (std::size_t i = 0; i < n; ++i) {
      runs[i] = {.may = i > 0 && random.below(8) > 0,
                 .needed = true,
                 .time = Time(static_cast<std::int64_t>(1 + random.below(20))),
                 .bytes = Bytes(static_cast<std::int64_t>(1 + random.below(20)))};
      if (i + 1 < n) runs[i].readers = {i + 1};
    }
    Bytes all;
    for (const ForwardRun& run : runs) all += run.bytes;
    // What is made again is there at once, between two that are kept.
    const auto need_and_time = [&](const std::vector<bool>& again) {
      Bytes kept, region, most;
      Time time;
      for (std::size_t i = 0; i < n; ++i) {
        (again[i] ? region : kept) += runs[i].bytes;
        if (again[i]) time += runs[i].time;
        most = std::max(most, kept + region);
        if (!again[i]) region = Bytes(0);
      }
      return std::pair(most, time);
    };
    const KeepOrRecompute choice(runs);
    std::optional<Bytes> least;
    for (Bytes limit(1); limit <= all; limit += Bytes(3)) {
      CAPTURE(limit.count());
      std::optional<Time> best;
      for (std::uint32_t set = 0; set < (1U << n); ++set) {
        std::vector<bool> again(n);
        bool may = true;
        for (std::size_t i = 0; i < n; ++i) {
          again[i] = (set >> i & 1U) != 0;
          may = may && (!again[i] || runs[i].may);
        }
        if (!may) continue;
        const auto [need, time] = need_and_time(again);
        least = std::min(least.value_or(need), need);
        if (need <= limit && time < best.value_or(time + Time(1))) best = time;
      }
      const auto found = choice.within(limit);
      REQUIRE(found.has_value() == best.has_value());
      if (!found.has_value()) continue;
      CHECK(need_and_time(*found).first <= limit);
      CHECK(need_and_time(*found).second.count() == best->count());
    }
    CHECK(choice.least() == *least);
  }
}

TEST_CASE("recompute: plans of chains on one device are as good as all sets of second runs") {
  for (std::uint64_t seed = 1; seed <= testing::effort(6, 6); ++seed) {
    const OpGraph graph = random_training(seed, 6, true);
    const Bytes need = need_of_one(graph);
    for (const int percent : {90, 75, 60, 50}) {
      CAPTURE(seed);
      CAPTURE(percent);
      const Cluster cluster = devices(1, Bytes(need.count() * percent / 100));
      const auto found = step_of_plan(graph, cluster, Recompute::kAuto);
      const auto best = best_of_all(graph, cluster);
      REQUIRE(found.has_value() == best.has_value());
      if (best.has_value()) CHECK(found->count() == best->count());
    }
  }
}

TEST_CASE("recompute: auto is never longer than none, and fits where none or all does") {
  for (std::uint64_t seed = 1; seed <= testing::effort(6, 6); ++seed) {
    const OpGraph graph = random_training(seed, 9, false);
    const Bytes need = need_of_one(graph);
    for (const int percent : {100, 60, 40}) {
      CAPTURE(seed);
      CAPTURE(percent);
      const Cluster cluster = devices(2, Bytes(need.count() * percent / 100));
      const auto none = step_of_plan(graph, cluster, Recompute::kNone);
      const auto every = step_of_plan(graph, cluster, Recompute::kAll);
      const auto best = step_of_plan(graph, cluster, Recompute::kAuto);
      if (none.has_value() || every.has_value()) REQUIRE(best.has_value());
      if (none.has_value()) CHECK(*best <= *none);
      if (!none.has_value() && every.has_value()) CHECK(*best <= *every);
    }
  }
}

TEST_CASE("recompute: any second runs in any order of a plan keep every rule") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const OpGraph graph = random_training(seed, 8, false);
    const SecondRuns runs(graph);
    IdVector<OpId, bool> chosen(graph.num_ops());
    for (const OpId op : graph.ops()) chosen[op] = random.below(2) == 0;
    const SecondRuns::Placed placed = runs.in(in_file_order(graph), chosen);
    const OpGraph step = recomputing(graph, placed.again);
    CHECK(check_recomputation(graph, step, placed.again).empty());
    const Cluster cluster = devices(2, Bytes(1'000'000));
    PlacedGraph on_both{Placement(step.num_ops(), kGpu0), DeviceOrder(2)};
    for (const OpId op : graph.ops())
      on_both.device[op] = DeviceId(static_cast<std::size_t>(random.below(2)));
    for (std::size_t i = 0; i < placed.again.size(); ++i)
      on_both.device[OpId(graph.num_ops() + i)] = on_both.device[placed.again[i].op];
    for (const OpId op : placed.sequence) (*on_both.order)[on_both.device[op]].push_back(op);
    const Trace trace = simulate(CostModel(step, cluster), on_both);
    CHECK(check_schedule(step, cluster, trace.schedule).empty());
    const auto peaks = checked_peaks(step, cluster, trace.schedule);
    for (const DeviceId device : peaks.keys())
      CHECK(peaks[device].bytes == trace.devices[device].peak);
    for (const Recomputation& again : placed.again) REQUIRE(again.after.has_value());
  }
}

TEST_CASE("recompute: in program order a second run stands right before its first reader") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const OpGraph graph = random_training(seed, 8, false);
    IdVector<OpId, bool> chosen(graph.num_ops());
    for (const OpId op : graph.ops()) chosen[op] = random.below(2) == 0;
    const SecondRuns::Placed placed = SecondRuns(graph).in(in_file_order(graph), chosen);
    const OpGraph step = recomputing(graph, placed.again);
    const std::vector<OpId> order = program_order(step);
    std::vector<OpId> given = order;
    std::erase_if(given, [&](OpId op) { return op.index() >= graph.num_ops(); });
    CHECK(given == in_file_order(graph));
    // Both have the same second runs between two given operators.
    std::vector<OpId> mine, theirs;
    REQUIRE(order.size() == placed.sequence.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      mine.push_back(order[i]);
      theirs.push_back(placed.sequence[i]);
      if (order[i].index() >= graph.num_ops()) continue;
      CHECK(order[i] == placed.sequence[i]);
      std::sort(mine.begin(), mine.end());
      std::sort(theirs.begin(), theirs.end());
      CHECK(mine == theirs);
    }
  }
}

// Layers with updates that the file has at its end, and which could run before.
OpGraph with_updates_at_the_end(std::size_t layers) {
  OpGraphBuilder builder("training");
  const auto add = [&](const std::string& name, OperatorSpec spec) {
    spec.name = name;
    return timed(builder, spec, Time(5));
  };
  std::vector<OpId> forward, backward;
  std::vector<TensorId> kept, gradients;
  for (std::size_t i = 0; i < layers; ++i) {
    forward.push_back(add("f" + std::to_string(i), {.name = {}}));
    if (i > 0) builder.connect(kept.back(), forward.back());
    kept.push_back(builder.add_output(forward.back(), Bytes(20)));
  }
  for (std::size_t i = layers; i-- > 0;) {
    backward.push_back(add("b" + std::to_string(i), {.name = {}, .forward = forward[i]}));
    builder.connect(kept[i], backward.back());
    if (!gradients.empty()) builder.connect(gradients.back(), backward.back());
    gradients.push_back(builder.add_output(backward.back(), Bytes(30)));
  }
  for (std::size_t i = 0; i < layers; ++i)
    builder.connect(gradients[i], add("u" + std::to_string(i), {.name = {}, .backward = true}));
  return std::move(builder).build();
}

// Second runs have the last numbers and places in the middle of the program.
TEST_CASE("recompute: a search in program order is in the order that runs") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const OpGraph graph = with_updates_at_the_end(5);
    IdVector<OpId, bool> chosen(graph.num_ops());
    for (const OpId op : graph.ops()) chosen[op] = random.below(2) == 0;
    const OpGraph step =
        recomputing(graph, SecondRuns(graph).in(in_file_order(graph), chosen).again);
    const auto executed = [&](const PlacedGraph& placed) {
      return as_executed(placed, ExecutionOrder::kProgram, step, 2);
    };
    PlacedGraph start{Placement(step.num_ops(), kGpu0), std::nullopt};
    for (const OpId op : step.ops())
      start.device[op] = DeviceId(static_cast<std::size_t>(random.below(2)));
    start = executed(start);
    const Cluster ample = devices(2, Bytes(1'000'000));
    const Trace started = simulate(CostModel(step, ample), start);
    const Cluster cluster =
        devices(2, std::max(started.devices[kGpu0].peak, started.devices[DeviceId(1)].peak));
    const CostModel costs(step, cluster);
    const Refined found =
        refine(costs, Units(costs), start, {.work = 20'000, .order = ExecutionOrder::kProgram});
    const Trace trace = simulate(costs, executed(found.placed));
    CHECK(found.evaluations > 0);
    CHECK(trace.schedule.makespan == found.makespan);
    CHECK(!find_overflow(trace, cluster).has_value());
  }
}

TEST_CASE("recompute: plans in program order fit, and are verified in it") {
  std::uint64_t found = 0;
  for (std::uint64_t seed = 1; seed <= testing::effort(30, 15); ++seed) {
    CAPTURE(seed);
    const OpGraph graph = random_training(seed, 8, false);
    const Bytes need = need_of_one(graph);
    const Cluster cluster = devices(1 + seed % 2, Bytes(need.count() * 3 / 4));
    StepRequest request = asking(Recompute::kAuto);
    request.search.place.order = ExecutionOrder::kProgram;
    const StepPlan made = planned(graph, cluster, request);
    const Plan* plan = std::get_if<Plan>(&made.result);
    if (plan == nullptr) continue;
    CHECK(plan->order == ExecutionOrder::kProgram);
    CHECK(check_plan(made.graph_of_one(), made.step.graph, *plan).empty());
    if (!plan->recomputed.empty()) ++found;
  }
  CHECK(found >= testing::effort(10, 15));
}

// Their order cannot be read off a schedule.
TEST_CASE("recompute: operators that take no time are no reason for a plan that does not fit") {
  const std::uint64_t seeds = testing::effort(60);
  std::uint64_t found = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = random_training(seed, 8, false, true);
    const Bytes need = need_of_one(graph);
    const Cluster cluster = devices(2 + seed % 2, Bytes(need.count() / 2));
    StepRequest request = asking(Recompute::kAuto);
    if (seed % 4 < 2) request.search.place.order = ExecutionOrder::kProgram;
    const StepPlan made = planned(graph, cluster, request);
    const Plan* plan = std::get_if<Plan>(&made.result);
    if (plan == nullptr) continue;
    CHECK(check_plan(made.graph_of_one(), made.step.graph, *plan).empty());
    if (!plan->recomputed.empty()) ++found;
  }
  CHECK(found >= seeds / 6);
}

TEST_CASE("recompute: the file of a plan tells it again, and only with the graph as given") {
  const OpGraph graph = three_layers();
  const Cluster cluster = devices(1, Bytes(21));
  const StepPlan made = planned(graph, cluster, asking(Recompute::kAuto));
  REQUIRE(std::holds_alternative<Plan>(made.result));
  const Plan& plan = std::get<Plan>(made.result);
  CHECK(plan.makespan() == Time(29));
  CHECK(plan.recomputed ==
        std::vector<Recomputation>{{op_named(graph, "f0"), op_named(graph, "b2")}});
  CHECK(plan.bounds.front().value == Time(27));
  const std::string text = plan_to_json(plan, made.step);
  const OpenedPlan back = open_plan_text(text, "plan.json", three_layers());
  CHECK(back.plan == plan);
  REQUIRE(back.original.has_value());
  CHECK(check_plan(*back.original, back.step.graph, back.plan).empty());
  CHECK(plan_to_json(back.plan, back.step) == text);
  CHECK_THROWS_WITH_AS(parse_plan(text, "plan.json", graph),
                       doctest::Contains("$.recomputed: the plan runs operators a second time"),
                       InputError);
  const auto spoiled = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    other.replace(other.find(from), from.size(), to);
    return refusal_of([&] { open_plan_text(other, "plan.json", three_layers()); });
  };
  CHECK(spoiled(R"("operator": "f0")", R"("operator": "b0")").find("of the backward pass") !=
        std::string::npos);
  CHECK(spoiled(R"("operator": "f0")", R"("operator": "no")").find("no operator 'no'") !=
        std::string::npos);
  CHECK(spoiled(R"("after": "b2")", R"("after": "b1")").find("cycle") != std::string::npos);
  CHECK(spoiled(R"("operators": 7)", R"("operators": 8)").find("$.graph.operators") !=
        std::string::npos);

  const std::vector<SecondRunFacts> facts = second_run_facts(made.step, plan);
  REQUIRE(facts.size() == 1);
  CHECK(facts[0].time == Time(2));
  CHECK(facts[0].bytes == Bytes(10));
  CHECK(facts[0].gaps == std::vector<SecondRunFacts::Gap>{{Time(5), Time(14)}});
  CHECK(facts[0].at_once == 1);
}

TEST_CASE("recompute: a refusal says what second runs would bring") {
  const StepPlan made = planned(three_layers(), devices(1, Bytes(21)), asking(Recompute::kNone));
  REQUIRE(std::holds_alternative<Unplaceable>(made.result));
  const auto& answer = std::get<Unplaceable>(made.result);
  CHECK(answer.step_with_recomputation == Time(29));
  CHECK(answer.in_words().find("with recompute auto it fits: a step takes 29 ns") !=
        std::string::npos);
}

TEST_CASE("recompute: what would fit is told of plans with second runs") {
  const auto smallest = [&](Recompute recompute) {
    const StepPlan made = planned(three_layers(), devices(1, Bytes(14)), asking(recompute));
    REQUIRE(std::holds_alternative<Unplaceable>(made.result));
    return std::get<Unplaceable>(made.result).smallest_capacity.value_or(Bytes(0));
  };
  const Bytes with = smallest(Recompute::kAuto);
  CHECK(with < smallest(Recompute::kNone));
  CHECK(step_of_plan(three_layers(), devices(1, with), Recompute::kAuto).has_value());
}

// A search would see the flag, and throw.
TEST_CASE("recompute: nothing is searched for what no second run can make fit") {
  const CancelFlag* const stopped = [] {
    static CancelFlag flag;
    flag.request();
    return &flag;
  }();
  StepRequest request = asking(Recompute::kAuto);
  request.search.place.cancel = stopped;
  request.search.suggest = false;
  const StepPlan made = planned(three_layers(), devices(2, Bytes(14)), request);
  REQUIRE(std::holds_alternative<Unplaceable>(made.result));
  CHECK(std::get<Unplaceable>(made.result).proved);
}

constexpr const char* kStoppedNote =
    "you stopped before second runs were looked for: this plan has none";

// Without that the stop would end in an exception from the search for second runs. It comes when
// there is a plan, and long before the budget ends.
TEST_CASE("recompute: who stops a search keeps the plan without second runs") {
  const std::chrono::milliseconds first_plan(testing::effort(20) < 20 ? 5'000 : 500);
  for (const std::uint64_t seed : {2U, 4U}) {
    CAPTURE(seed);
    const OpGraph graph = random_training(seed, 80, false);
    const Cluster cluster = devices(2, Bytes(need_of_one(graph).count() * 6 / 10));
    CancelFlag flag;
    StepRequest request = asking(Recompute::kAuto);
    request.search.budget = 20;
    request.search.place.cancel = &flag;
    const std::jthread user([&] {
      std::this_thread::sleep_for(first_plan);
      flag.request();
    });
    const StepPlan made = planned(graph, cluster, request);
    REQUIRE(std::holds_alternative<Plan>(made.result));
    const Plan& plan = std::get<Plan>(made.result);
    CHECK(check_plan(made.graph_of_one(), made.step.graph, plan).empty());
    CHECK_FALSE(plan.bounds.empty());
    CHECK(std::ranges::count(plan.notes, kStoppedNote) == 1);
  }
}

TEST_CASE("recompute: what it is not for is refused or told") {
  const Cluster cluster = devices(1, Bytes(1000));
  const auto error = [&](const StepRequest& request) {
    return refusal_of([&] { planned(three_layers(), cluster, request); });
  };
  StepRequest request = asking(Recompute::kAll);
  request.search.place.order = ExecutionOrder::kNone;
  CHECK(error(request).find("the planned order or that of the program") != std::string::npos);

  const auto note = [&](const OpGraph& graph) {
    const StepPlan made = planned(graph, cluster, asking(Recompute::kAll));
    REQUIRE(std::holds_alternative<Plan>(made.result));
    REQUIRE_FALSE(std::get<Plan>(made.result).notes.empty());
    CHECK(std::get<Plan>(made.result).recomputed.empty());
    return std::get<Plan>(made.result).notes.back();
  };
  CHECK(note(chain({Time(1), Time(2)}, Bytes(3))) ==
        "nothing is recomputed: no operator of the graph is marked as backward");
  CHECK(note(GraphSketch().op("x", 1).op("b", 1).backward("b").tensor("x", 1, {"b"}).build()) ==
        "nothing is recomputed: no operator of the forward pass may run again");
}

}  // namespace
}  // namespace baechi::testing
