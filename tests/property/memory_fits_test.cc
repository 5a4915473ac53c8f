// SPDX-License-Identifier: Apache-2.0
// Memory never surprises: where any placement fits, one is found; where none does, no one claims
// it.
#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "baechi/base/random.h"
#include "baechi/generate/synthetic.h"
#include "baechi/plan/attempt/attempt.h"
#include "baechi/plan/planner.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_schedule.h"
#include "property/effort.h"
#include "unit/brute_force.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

using testing::effort;
using testing::random_dag;

// Two or three devices of a capacity around what the graph needs, so that about half do not fit.
Cluster tight_cluster(const OpGraph& graph, std::uint64_t seed) {
  Random random(seed * 7919 + 1);
  Bytes total;
  for (const OpId op : graph.ops()) total += graph[op].permanent + graph.output_bytes(op);
  const std::size_t count = 2 + random.below(2);
  ClusterSpec spec = testing::equal_devices(count, Bytes(1), Time(random.between(0, 5)), {},
                                            static_cast<CommunicationMode>(random.below(3)))
                         .spec();
  const Bytes share(total.count() / static_cast<std::int64_t>(count));
  for (Device& device : spec.devices)
    device.capacity = Bytes(random.between(std::max<std::int64_t>(1, share.count() * 7 / 10),
                                           share.count() * 16 / 10 + 6));
  return Cluster(std::move(spec));
}

TEST_CASE("memory: on 2000 tight instances m-etf, m-sct and m-topo fit whenever anything does") {
  int feasible = 0, infeasible = 0;
  std::map<std::string, int> last_fallback;
  for (std::uint64_t seed = 0; seed < effort(2000, 60); ++seed) {
    CAPTURE(seed);
    const OpGraph graph = random_dag(
        seed, {.min_ops = 3,
               .max_ops = seed % 20 == 0 ? std::size_t{9} : std::size_t{7},
               .group_chance = 0.15,
               .backward_chance = 0.3,
               .memory_mode = seed % 4 == 0 ? MemoryMode::kRetain : MemoryMode::kDataflow});
    const Cluster cluster = tight_cluster(graph, seed);
    const CostModel costs(graph, cluster);
    const Units units(costs);
    const bool fits = testing::feasible(graph, cluster);
    (fits ? feasible : infeasible) += 1;
    if (prove_cannot_fit(costs, units).has_value()) {
      CHECK_FALSE(fits);
      continue;
    }
    for (const char* method : {"m-topo", "m-etf", "m-sct"}) {
      CAPTURE(method);
      const Attempt result = attempt({costs, units}, find_placer(method), {});
      CHECK(result.placed.has_value() == fits);
      if (!result.placed.has_value()) {
        CHECK(result.proved);
        continue;
      }
      if (!result.fallbacks.empty()) ++last_fallback[result.fallbacks.back()];
      const Trace trace = simulate(costs, *result.placed);
      CHECK(check_schedule(graph, cluster, trace.schedule) == std::vector<std::string>{});
    }
  }
  // The instances are worth something: both answers occur, and every fall-back was needed.
  CHECK(feasible > static_cast<int>(effort(300, 60)));
  CHECK(infeasible > static_cast<int>(effort(300, 60)));
  if (effort(2000, 60) < 2000) return;  // too few need the last of them
  for (const char* fallback : {"reserve", "repair", "packing", "enumeration"}) {
    CAPTURE(fallback);
    CHECK(last_fallback[fallback] > 0);
  }
}

// Operators without time, retained tensors, pins and kinds: what every method returns fits, and
// what one method fits, auto fits.
TEST_CASE("memory: auto returns plans that fit on 300 instances with operators that take no time") {
  int feasible = 0;
  for (std::uint64_t seed = 0; seed < effort(300); ++seed) {
    CAPTURE(seed);
    const OpGraph graph = random_dag(
        seed, {.min_ops = 3,
               .max_ops = 7,
               .group_chance = 0.15,
               .backward_chance = 0.3,
               .max_time = 2,
               .memory_mode = seed % 2 == 0 ? MemoryMode::kRetain : MemoryMode::kDataflow});
    const Cluster cluster = tight_cluster(graph, seed);
    const CostModel costs(graph, cluster);
    PlanRequest request;
    request.budget = 0.001;
    request.suggest = false;
    const PlanResult result = make_plan(costs, request);
    const bool fits = testing::feasible(graph, cluster);
    CHECK(std::holds_alternative<Plan>(result) == fits);
    feasible += fits ? 1 : 0;
    if (const auto* plan = std::get_if<Plan>(&result))
      CHECK(check_schedule(graph, cluster, plan->schedule) == std::vector<std::string>{});
  }
  CHECK(feasible > static_cast<int>(effort(50)));
  CHECK(feasible < static_cast<int>(effort(250)));
}

// Three devices that hold so many percent of the weights of a layered graph.
Cluster tight_for_weights(const OpGraph& graph, std::int64_t percent) {
  Bytes weights;
  for (const OpId op : graph.ops()) weights += graph[op].permanent;
  return testing::equal_devices(3, Bytes(weights.count() * percent / 300), microseconds(25),
                                Bandwidth(12'000'000'000), CommunicationMode::kSequential);
}

bool places(const CostModel& costs, std::string_view method) {
  PlanRequest request;
  request.method = method;
  request.budget = 0.001;
  request.suggest = false;
  return std::holds_alternative<Plan>(make_plan(costs, request));
}

// In 12, 13, 35, 36 and 55 some methods had plans where auto had none.
TEST_CASE("memory: auto places what any method places by its name, on tight layered graphs") {
  int refused = 0;
  for (const std::uint64_t seed : {0U, 3U, 4U, 12U, 13U, 21U, 35U, 36U, 45U, 55U, 57U}) {
    CAPTURE(seed);
    const auto size = static_cast<std::int64_t>(seed % 3),
               room = static_cast<std::int64_t>(seed % 7);
    if (effort(3) < 3 && size > 0) continue;
    const OpGraph graph = generate_layered({.operators = 40 * (1 + size), .seed = seed});
    const Cluster cluster = tight_for_weights(graph, 140 + 8 * room);
    const CostModel costs(graph, cluster);
    if (places(costs, "auto")) continue;
    ++refused;
    for (const PlacerEntry& placer : all_placers()) {
      CAPTURE(placer.name);
      if (!placer.needs_expert) CHECK_FALSE(places(costs, placer.name));
    }
  }
  CHECK(refused > static_cast<int>(effort(2)));
  CHECK(refused < 10);
}

}  // namespace
}  // namespace baechi
