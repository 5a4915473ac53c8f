// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/request/paper.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/generate/transformer.h"
#include "baechi/plan/planner.h"
#include "baechi/plan/steps/step_plan.h"
#include "baechi/simulate/execution_simulator.h"
#include "property/effort.h"
#include "unit/graphs.h"
#include "unit/plan/one_size.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

using testing::figure_1;
using testing::figure_5;
using testing::random_cluster;
using testing::random_dag;
using testing::unit_latency_cluster;

StepRequest paper(const char* method = "m-etf") {
  StepRequest request;
  request.search.method = method;
  request.search.paper = true;
  return request;
}

std::string error_of(StepRequest request) try {
  as_the_paper(std::move(request));
  return "";
} catch (const InputError& error) {
  return error.what();
}

TEST_CASE("paper: figure 1 takes 8 time units") {
  const OpGraph graph = figure_1();
  const Cluster cluster = unit_latency_cluster(2, Bytes(100));
  StepRequest request = paper("m-sct");
  request.search.optimize.level = OptimizeLevel::kNone;
  CHECK(std::get<Plan>(make_plan(CostModel(graph, cluster), request.search)).makespan() == Time(8));
}

TEST_CASE("paper: figure 5 takes 7 time units without co-placement, and 3 with it") {
  const OpGraph graph = figure_5();
  const Cluster cluster =
      testing::equal_devices(2, Bytes(100), Time(5), {}, CommunicationMode::kParallel);
  const CostModel costs(graph, cluster);
  StepRequest request = paper();
  CHECK(std::get<Plan>(make_plan(costs, request.search)).makespan() == Time(3));
  request.search.optimize.coplacement.rule = CoplacementRule::kNone;
  CHECK(std::get<Plan>(make_plan(costs, request.search)).makespan() == Time(7));
}

TEST_CASE("paper: every rule has its words, and all together are what paper stands for") {
  StepRequest request;
  for (const PaperRule& rule : paper_rules()) {
    CHECK_FALSE(rule.what.empty());
    CHECK_FALSE(rule.section.empty());
    CHECK(rule.paper != rule.by_default);
    rule.apply(request.search);
  }
  CHECK(request.search.paper);
  CHECK(request.search.optimize.coplacement.rule == CoplacementRule::kNeighbours);
  CHECK_FALSE(request.search.optimize.coplacement.capped);
  CHECK(request.search.optimize.coplacement.cells_alone);
  CHECK_FALSE(request.search.optimize.fusion.by_reachability);
  CHECK_FALSE(request.search.place.call_suppliers);
  CHECK(request.search.place.favorites == FavoriteMethod::kLpExact);
  const StepRequest once = as_the_paper(paper("m-sct")), twice = as_the_paper(once);
  CHECK(once.search.place.lp_threshold == 0.1);
  CHECK(twice.search.place.lp_threshold == 0.1);
  CHECK_FALSE(twice.search.suggest);
}

TEST_CASE(
    "paper: a rule of co-placement that is asked for is that rule, in recurrent models, too") {
  StepRequest request = paper();
  request.search.optimize.coplacement.rule = CoplacementRule::kNeighbours;
  CHECK_FALSE(as_the_paper(request).search.optimize.coplacement.cells_alone);
  CHECK(as_the_paper(as_the_paper(paper())).search.optimize.coplacement.cells_alone);
}

TEST_CASE("paper: what is beyond it, or what it decides, is refused") {
  for (const char* method : {"chain", "partition", "exact", "refine", "all", "pipeline"}) {
    CAPTURE(method);
    CHECK(error_of(paper(method)).find("beyond the paper") != std::string::npos);
  }
  for (const char* method : {"auto", "m-topo", "m-etf", "m-sct", "single"})
    CHECK(error_of(paper(method)) == "");
  StepRequest request = paper("m-sct");
  request.search.place.favorites = FavoriteMethod::kLpApprox;
  CHECK(error_of(request) == "lp: with paper it is decided: leave out one of the two");
  request = paper();
  request.recompute = Recompute::kAuto;
  CHECK(error_of(request) == "recompute: it is beyond the paper: leave out one of the two");
  request = paper();
  request.residency = AwayChoice::kAuto;
  CHECK(error_of(request) == "residency: it is beyond the paper: leave out one of the two");
  request = paper();
  request.replicas = std::vector<std::uint32_t>{2};
  CHECK(error_of(request) == "replicas: it is beyond the paper: leave out one of the two");
  request = paper();
  request.micro_batches = std::vector<std::uint32_t>{2};
  CHECK_THROWS_AS(testing::step_plan_of(figure_1(), unit_latency_cluster(2, Bytes(100)), request),
                  InputError);
}

// What the paper's methods find where memory is short is replayed, and never mended.
TEST_CASE("paper: a plan fits by replay and has taken no fall-back, or there is none") {
  std::size_t fits = 0, lost = 0;
  for (std::uint64_t seed = 0; seed < testing::effort(300); ++seed) {
    CAPTURE(seed);
    const OpGraph graph =
        random_dag(seed, {.max_ops = 20, .group_chance = 0.2, .backward_chance = 0.3});
    const Cluster cluster = random_cluster(seed, Bytes(150));
    const CostModel costs(graph, cluster);
    for (const char* method : {"m-topo", "m-etf", "m-sct", "auto"}) {
      const PlanResult result = make_plan(costs, paper(method).search);
      if (const auto* plan = std::get_if<Plan>(&result)) {
        ++fits;
        CHECK(plan->fallbacks.empty());
        for (const DeviceId device : cluster.devices())
          CHECK(plan->devices[device].peak <= cluster[device].capacity);
      } else if (!std::get<Unplaceable>(result).proved) {
        StepRequest request = paper(method);
        request.search.paper = false;
        lost += std::holds_alternative<Plan>(make_plan(costs, request.search));
      }
    }
  }
  CHECK(fits > testing::effort(300));
  CHECK(lost > testing::effort(10));
}

TEST_CASE("paper: auto is the best of its three") {
  for (std::uint64_t seed = 0; seed < testing::effort(40); ++seed) {
    CAPTURE(seed);
    const OpGraph graph = random_dag(seed, {.max_ops = 20, .backward_chance = 0.3});
    const Cluster cluster = random_cluster(seed, Bytes(1'000));
    const CostModel costs(graph, cluster);
    const PlanResult best = make_plan(costs, paper("auto").search);
    const auto* plan = std::get_if<Plan>(&best);
    for (const char* method : {"m-topo", "m-etf", "m-sct"})
      if (const PlanResult other = make_plan(costs, paper(method).search);
          std::holds_alternative<Plan>(other)) {
        REQUIRE(plan != nullptr);
        CHECK(plan->makespan() <= std::get<Plan>(other).makespan());
      }
    if (plan != nullptr) CHECK(plan->methods.size() == 3);
  }
}

TEST_CASE("paper: forward operators alone are placed as soon as one device holds the model") {
  const OpGraph graph = generate_transformer({.batch = 8, .length = 10, .layers = 2});
  const auto forward_note = [&](Bytes capacity, bool letter) {
    const Cluster cluster = testing::equal_devices(2, capacity, Time(100));
    const CostModel costs(graph, cluster);
    OptimizeOptions options = letter ? as_the_paper(paper()).search.optimize : OptimizeOptions{};
    return optimize(costs, options).passes.back().note;
  };
  const Cluster one = testing::equal_devices(1, gibibytes(100), Time(0));
  const CostModel costs(graph, one);
  DeviceOrder order(1);
  order[DeviceId(0)].assign(graph.topological_order().begin(), graph.topological_order().end());
  const Bytes need =
      simulate(costs, {Placement(graph.num_ops(), DeviceId(0)), order}).devices[DeviceId(0)].peak;
  CHECK(forward_note(need, true) == "backward operators follow forward ones");
  CHECK(forward_note(need - Bytes(1), true) ==
        "backward operators are placed too: no device has room for all of the model");
  CHECK(forward_note(need, false) != forward_note(need, true));
}

}  // namespace
}  // namespace baechi
