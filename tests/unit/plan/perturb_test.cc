// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/perturb.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <variant>

#include "baechi/base/cancel.h"
#include "baechi/base/error.h"
#include "baechi/io/graph/write_graph.h"
#include "baechi/plan/attempt/attempt.h"
#include "baechi/plan/planner.h"
#include "baechi/plan/robust.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_schedule.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

TEST_CASE("perturb: every cost is within its part, draws differ by seed and repeat") {
  const OpGraph graph = chain(std::vector<Time>(200, Time(1000)), Bytes(1000));
  const KindId kind(0);
  std::set<std::int64_t> times, sizes;
  const OpGraph wrong = perturbed(graph, 0.2, 7);
  for (const OpId op : graph.ops()) times.insert(wrong.times(kind)[op]->count());
  for (const TensorId tensor : graph.tensors()) sizes.insert(wrong.size(tensor).count());
  for (const auto& values : {times, sizes}) {
    CHECK(*values.begin() >= 800);
    CHECK(*values.begin() < 820);
    CHECK(*values.rbegin() <= 1200);
    CHECK(*values.rbegin() > 1180);
    CHECK(values.size() > 100);
  }
  CHECK(times != sizes);
  CHECK(graph_to_json(perturbed(graph, 0.2, 7)) == graph_to_json(wrong));
  CHECK(graph_to_json(perturbed(graph, 0.2, 8)) != graph_to_json(wrong));
  CHECK(graph_to_json(perturbed(graph, 0, 8)) == graph_to_json(graph));
  CHECK_THROWS_AS(perturbed(graph, 1.1, 1), InputError);
}

TEST_CASE("perturb: the worst step is one of the samples', whatever the threads") {
  const OpGraph graph = chain({Time(1000), Time(2000), Time(500)}, Bytes(0));
  const Cluster cluster = unit_latency_cluster(2, Bytes(100));
  const CostModel costs(graph, cluster);
  const PlacedGraph one{Placement(3, DeviceId(0)), std::nullopt},
      two{Placement{DeviceId(0), DeviceId(1), DeviceId(0)}, std::nullopt};
  Time longest;
  for (std::uint64_t seed = 5; seed < 15; ++seed) {
    const OpGraph wrong = perturbed(graph, 0.3, seed);
    longest = std::max(longest, simulate(CostModel(wrong, cluster), one).schedule.makespan);
  }
  const auto worst = worst_steps(costs, {&one, &two}, {.fraction = 0.3, .samples = 10, .seed = 5});
  CHECK(worst[0] == longest);
  CHECK(worst[1] == longest + Time(2));  // two transfers of a nanosecond
  CHECK(worst_steps(costs, {&one, &two},
                    {.fraction = 0.3, .samples = 10, .seed = 5, .threads = 3}) == worst);
}

// The costs as they are make the first plan shorter by one nanosecond; but it waits for a tensor
// that takes most of its time, so it is the worse one when costs are off.
TEST_CASE("robust: the plan with the shortest worst step is chosen, and the note says so") {
  const OpGraph graph = chain({Time(1000), Time(1000)}, Bytes(1000));
  const Cluster cluster = equal_devices(2, Bytes(10'000), Time(0), Bandwidth(1'000'000'000));
  const CostModel costs(graph, cluster);
  std::vector<Attempt> attempts(3);
  attempts[0].method = "apart";
  attempts[0].placed = {Placement{DeviceId(0), DeviceId(1)}, std::nullopt};
  attempts[0].makespan = Time(1);  // as if: what is measured are the samples
  attempts[1].method = "none";
  attempts[2].method = "together";
  attempts[2].placed = {Placement{DeviceId(0), DeviceId(0)}, std::nullopt};
  attempts[2].makespan = Time(2);
  const RobustChoice choice = choose_robust(costs, attempts, {.fraction = 0.1});
  CHECK(choice.attempt == 2);
  CHECK(choice.note.starts_with("robust: of 2 plans together's has the shortest worst step, "));
  CHECK(choice.note.find("off by up to 10% (16 samples); apart ") != std::string::npos);
}

TEST_CASE("robust: who stops the search gets the shortest of the plans so far, with a note") {
  int stopped = 0;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = random_dag(seed, {.min_ops = 30, .max_ops = 90, .edge_chance = 0.1});
    const Cluster cluster = random_cluster(seed, Bytes(100'000));
    const CostModel costs(graph, cluster);
    CancelFlag cancel;
    PlanRequest request;
    request.budget = 0.1;
    request.robust = 0.2;
    request.place.cancel = &cancel;
    request.watch = [&](const SearchNews& news) {
      if (news.method.starts_with("refine")) cancel.request();
    };
    const Plan plan = std::get<Plan>(make_plan(costs, request));
    if (!cancel.requested()) continue;
    ++stopped;
    for (const MethodOutcome& method : plan.methods)
      if (method.makespan.has_value()) CHECK(plan.makespan() <= *method.makespan);
    CHECK(plan.notes.back().starts_with("robust: you stopped before"));
    CHECK(check_schedule(graph, cluster, plan.schedule).empty());
  }
  CHECK(stopped > 1);
}

TEST_CASE("robust: a planner's choice is at worst no worse than any of its methods' plans") {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = random_dag(seed, {.min_ops = 15, .max_ops = 25, .cpu_chance = 0.9});
    const Cluster cluster = random_cluster(seed);
    const CostModel costs(graph, cluster);
    PlanRequest request;
    request.budget = 0.01;
    request.robust = 0.5;
    const PlanResult robust = make_plan(costs, request);
    request.robust.reset();
    const PlanResult fastest = make_plan(costs, request);
    const auto *a = std::get_if<Plan>(&robust), *b = std::get_if<Plan>(&fastest);
    REQUIRE((a == nullptr) == (b == nullptr));
    if (a == nullptr) continue;
    CHECK(a->makespan() >= b->makespan());
    CHECK(std::any_of(a->notes.begin(), a->notes.end(),
                      [](const std::string& note) { return note.starts_with("robust: "); }));
    request.robust = 1.5;
    CHECK_THROWS_AS(make_plan(costs, request), InputError);
  }
}

}  // namespace
}  // namespace baechi::testing
