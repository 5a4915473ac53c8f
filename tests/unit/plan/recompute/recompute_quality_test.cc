// SPDX-License-Identifier: Apache-2.0
// How good plans with second runs are, on a fixed set of steps that may only become shorter.
#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/plan/steps/step_plan.h"
#include "baechi/verify/check_plan.h"
#include "unit/graph/training_sketches.h"
#include "unit/plan/one_size.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

struct Fixed {
  std::size_t layers;
  std::size_t devices;
  std::uint32_t micro_batches;
  std::int64_t capacity;
  Recompute recompute;
  std::int64_t most;  // what a step took when this was written: it may take less
};

std::optional<Time> fixed_step(std::uint64_t seed, const Fixed& fixed) {
  const OpGraph graph = random_training(seed, fixed.layers, seed % 2 == 0);
  StepRequest request{.search = {.budget = 0.02}};
  request.recompute = fixed.recompute;
  request.search.suggest = false;
  request.micro_batches = {fixed.micro_batches};
  const Cluster cluster =
      byte_per_ns(fixed.devices, CommunicationMode::kDuplex, Time(0), Bytes(fixed.capacity));
  const StepPlan made = step_plan_of(graph, cluster, request);
  const Plan* plan = std::get_if<Plan>(&made.result);
  if (plan == nullptr) return std::nullopt;
  CHECK(check_plan(graph, made.step.graph, *plan).empty());
  return plan->makespan();
}

constexpr Recompute kAny = Recompute::kAuto, kEvery = Recompute::kAll;
constexpr Fixed kFixed[] = {
    {6, 1, 1, 70, kAny, 122},   {6, 1, 1, 75, kAny, 99},    {8, 1, 1, 90, kAny, 146},
    {8, 2, 1, 60, kAny, 180},   {10, 2, 1, 80, kAny, 230},  {10, 2, 1, 60, kAny, 241},
    {12, 2, 1, 90, kAny, 265},  {12, 3, 1, 100, kAny, 297}, {8, 1, 1, 80, kEvery, 171},
    {8, 2, 1, 90, kEvery, 203}, {6, 1, 2, 70, kAny, 310},   {6, 2, 2, 60, kAny, 285},
    {8, 2, 3, 80, kAny, 292},   {8, 2, 2, 70, kEvery, 377},
};

TEST_CASE("recompute: on a fixed set of steps it is no longer") {
  std::uint64_t seed = 40;
  for (const Fixed& fixed : kFixed) {
    CAPTURE(seed);
    const auto step = fixed_step(seed, fixed);
    REQUIRE(step.has_value());
    CHECK(step->count() <= fixed.most);
    ++seed;
  }
}

// build/release/baechi_tests --no-skip -tc="recompute: figures of the fixed set"
TEST_CASE("recompute: figures of the fixed set" * doctest::skip()) {
  std::uint64_t seed = 40;
  std::string rows;
  for (const Fixed& fixed : kFixed) {
    const auto step = fixed_step(seed++, fixed);
    rows += std::to_string(step.has_value() ? step->count() : 0) + " ";
  }
  MESSAGE(rows);
}

}  // namespace
}  // namespace baechi::testing
