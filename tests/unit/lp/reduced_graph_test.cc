// SPDX-License-Identifier: Apache-2.0
#include "baechi/lp/reduced_graph.h"

#include <doctest/doctest.h>

#include <cmath>

#include "baechi/lp/exp_log.h"
#include "baechi/lp/path_certificate.h"
#include "baechi/lp/relaxation_solver.h"
#include "baechi/lp/relaxed_solution.h"
#include "baechi/lp/soft_water_filling.h"
#include "baechi/lp/water_filling.h"
#include "unit/lp/dense_simplex.h"
#include "unit/lp/matching_oracle.h"

namespace baechi::lp {
namespace {

using instances::Instance;
using instances::Regime;

TEST_CASE("presolve: any y means the same on the reduced graph as on the whole one") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    for (const Regime regime : instances::kRegimes) {
      CAPTURE(seed);
      CAPTURE(instances::name(regime));
      const Instance instance =
          instances::with_times(seed % 2 == 0 ? instances::layered_random(6, 4, seed)
                                              : instances::random_dag(16, 0.2, seed),
                                regime, seed);
      const MatchingPathProblem problem = instance.problem();
      const ReducedGraph reduced = reduce(problem);
      Random random(seed);
      std::vector<double> y(reduced.num_edges());
      for (double& value : y) value = random.unit();
      repair_group_sums(reduced, y);
      const RelaxedSolution whole = extend_to_problem(problem, reduced, y, reduced.lower_bound);
      const double length = std::max(reduced.lower_bound, longest_path(reduced, y)) * reduced.unit;
      CHECK(whole.upper_bound == doctest::Approx(length).epsilon(1e-11));
      CHECK(reduced.lower_bound * reduced.unit <= oracle::relaxed_optimum(instance) * (1 + 1e-10));
    }
  }
}

TEST_CASE("presolve: leaving edges out is a relaxation, and nothing is left of a chain") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    const Instance instance =
        instances::with_times(instances::random_dag(9, 0.4, seed), Regime::kMeasured, seed);
    const MatchingPathProblem problem = instance.problem();
    Random random(seed);
    std::vector<bool> keep(problem.num_edges());
    for (std::size_t e = 0; e < keep.size(); ++e) keep[e] = random.chance(0.7);
    const ReducedGraph part = reduce(problem, &keep);
    const SoftSolution soft = fill_softly(part);
    const double optimum = oracle::relaxed_optimum(instance);
    CHECK(soft.lower_bound * part.unit <= optimum * (1 + 1e-10));
  }
  Instance chain = instances::with_times(instances::chain_with_skips(1, 0), Regime::kSct, 0);
  chain.lengths = {3, 4, 5};
  chain.edges = {{0, 1, 10}, {1, 2, 10}};
  const ReducedGraph reduced = reduce(chain.problem());
  CHECK(reduced.lower_bound * reduced.unit == doctest::Approx(12));
  const RelaxedSolution solution = solve_approximately(chain.problem());
  CHECK(solution.x == std::vector<double>{0, 0});
  CHECK(solution.upper_bound == 12);
}

TEST_CASE("certificate: any flow and prices give a valid lower bound") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    const Instance instance =
        instances::with_times(instances::random_dag(9, 0.4, seed), Regime::kDominating, seed);
    const ReducedGraph reduced = reduce(instance.problem());
    const double optimum = oracle::relaxed_optimum(instance) / reduced.unit;
    Random random(seed);
    for (int draw = 0; draw < 20; ++draw) {
      std::vector<double> flow(reduced.num_edges()), price(reduced.num_groups);
      for (double& f : flow) f = random.chance(0.2) ? 0 : random.unit();
      for (double& p : price) p = random.unit() * 0.1;
      CHECK(certified_lower_bound(reduced, flow, price) <= optimum * (1 + 1e-10));
    }
  }
}

TEST_CASE("water-filling: one unit of effort, spent where it is highest") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    std::vector<double> level, cost, inverse;
    for (std::uint64_t size = 1 + random.below(12); size > 0; --size) {
      level.push_back(random.unit());
      cost.push_back(random.chance(0.2) ? 1e-9 * (1 + random.unit()) : random.unit() + 1e-3);
      inverse.push_back(1 / cost.back());
    }
    const double filled = water_level(level, cost, inverse);
    double effort = 0;
    for (std::size_t e = 0; e < level.size(); ++e)
      effort += std::max(0.0, level[e] - filled) * inverse[e];
    CHECK(effort == doctest::Approx(1).epsilon(1e-6));
  }
}

TEST_CASE("exp and log: close to the C library's, monotone where it matters") {
  for (int i = 0; i <= 100'000; ++i) {
    const double x = -7e-3 * i;
    const double expected = std::exp(x);
    CHECK(std::abs(exp_nonpositive(x) - expected) <= 1e-9 * expected);
  }
  CHECK(exp_nonpositive(0) == 1);
  CHECK(exp_nonpositive(-1e300) > 0);
  for (int i = -300; i <= 300; ++i) {
    const double x = std::pow(10.0, i) * 1.2345;
    CHECK(std::abs(log_positive(x) - std::log(x)) <= 1e-9);
  }
  CHECK(log_positive(1) == 0);
}

}  // namespace
}  // namespace baechi::lp
