// SPDX-License-Identifier: Apache-2.0
#include "baechi/lp/relaxation_solver.h"

#include <doctest/doctest.h>

#include <cmath>

#include "unit/lp/dense_simplex.h"
#include "unit/lp/matching_oracle.h"

namespace baechi::lp {
namespace {

using instances::Instance;
using instances::Regime;

constexpr double kRounding = 1e-12;

// x is in [0, 1], takes at most one unit off each node's out-edges and in-edges, and w at x is the
// upper bound.
void check_solution(const Instance& instance, const RelaxedSolution& solution) {
  REQUIRE(solution.x.size() == instance.edges.size());
  std::vector<double> out(instance.lengths.size(), 0), in(out), pay;
  for (std::size_t e = 0; e < instance.edges.size(); ++e) {
    const double x = solution.x[e];
    CHECK((x >= 0 && x <= 1));
    out[instance.edges[e].from] += 1 - x;
    in[instance.edges[e].to] += 1 - x;
    pay.push_back(static_cast<double>(instance.edges[e].cost) * x);
  }
  for (std::size_t node = 0; node < out.size(); ++node)
    CHECK((out[node] <= 1 + kRounding && in[node] <= 1 + kRounding));
  const double longest = oracle::longest_path(instance, pay);
  CHECK(std::abs(solution.upper_bound - longest) <= kRounding * longest);
  CHECK(solution.lower_bound <= solution.upper_bound);
}

std::vector<Instance> tiny_graphs(std::uint64_t seed) {
  return {instances::random_dag(7, 0.5, seed), instances::layered_random(3, 3, seed),
          instances::chain_with_skips(9, seed), instances::random_dag(10, 0.25, seed)};
}

TEST_CASE("exact solver: agrees with a dense simplex on every cost regime") {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    for (const Regime regime : instances::kRegimes) {
      for (const Instance& graph : tiny_graphs(seed)) {
        CAPTURE(seed);
        CAPTURE(instances::name(regime));
        const Instance instance = instances::with_times(graph, regime, seed);
        const double optimum = oracle::relaxed_optimum(instance);
        const RelaxedSolution exact = solve_exactly(instance.problem());
        check_solution(instance, exact);
        CHECK(exact.converged);
        CHECK(exact.upper_bound <= optimum * (1 + 1e-6));
        CHECK(exact.upper_bound >= optimum * (1 - 1e-10));
        CHECK(exact.lower_bound <= optimum * (1 + 1e-10));
      }
    }
  }
}

TEST_CASE("approximate solver: what it certifies is true against a dense simplex") {
  for (std::uint64_t seed = 100; seed < 112; ++seed) {
    for (const Regime regime : instances::kRegimes) {
      for (const Instance& graph : tiny_graphs(seed)) {
        CAPTURE(seed);
        CAPTURE(instances::name(regime));
        const Instance instance = instances::with_times(graph, regime, seed);
        const double optimum = oracle::relaxed_optimum(instance);
        for (const double gap : {0.1, 0.005, 0.0005}) {
          const RelaxedSolution soft = solve_approximately(instance.problem(), {.gap = gap});
          check_solution(instance, soft);
          CHECK(soft.lower_bound <= optimum * (1 + 1e-10));
          CHECK(soft.upper_bound >= optimum * (1 - 1e-10));
          CHECK((!soft.converged || soft.gap() <= gap * (1 + 1e-9)));
        }
        CHECK(solve_approximately(instance.problem(), {.gap = 0.1}).converged);
      }
    }
  }
}

TEST_CASE("exact solver: converges, within the approximate solver's bounds, on larger graphs") {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    for (const Regime regime : instances::kRegimes) {
      for (const Instance& graph :
           {instances::gnmt_like(1, 5), instances::transformer_like(2, 3),
            instances::layered_random(12, 8, seed), instances::chain_with_skips(150, seed),
            instances::random_dag(60, 0.1, seed)}) {
        CAPTURE(seed);
        CAPTURE(instances::name(regime));
        const Instance instance = instances::with_times(graph, regime, seed);
        const RelaxedSolution soft = solve_approximately(instance.problem());
        const RelaxedSolution exact = solve_exactly(instance.problem());
        check_solution(instance, soft);
        check_solution(instance, exact);
        CHECK(soft.converged);
        CHECK(exact.converged);
        CHECK(soft.lower_bound <= exact.upper_bound);
        CHECK(exact.lower_bound <= soft.upper_bound);
        CHECK(exact.upper_bound <= soft.upper_bound);
      }
    }
  }
}

Instance scaled(Instance instance, std::int64_t factor) {
  for (std::int64_t& length : instance.lengths) length *= factor;
  for (PathEdge& edge : instance.edges) edge.cost *= factor;
  return instance;
}

TEST_CASE("exact solver: the unit of time does not matter, from nanoseconds to years") {
  const Instance instance =
      instances::with_times(instances::random_dag(20, 0.2, 5), Regime::kMixed, 5);
  const double optimum = solve_exactly(instance.problem()).upper_bound;
  constexpr std::int64_t kLarge = 1'000'000'000;  // lengths near 1e14 ns
  const double large = solve_exactly(scaled(instance, kLarge).problem()).upper_bound;
  CHECK(std::abs(large / static_cast<double>(kLarge) - optimum) <= 2e-6 * optimum);
}

//  0 -> 1 and 0 -> 2 with equal times: both children want to be the favorite.
Instance symmetric_fork(std::int64_t length, std::int64_t cost) {
  Instance instance;
  instance.lengths.assign(3, length);
  instance.edges = {{0, 1, cost}, {0, 2, cost}};
  return instance;
}

TEST_CASE("exact solver: a symmetric fork has x = 1/2 twice, and rounding it gives one favorite") {
  const Instance instance = symmetric_fork(2, 2);
  const MatchingPathProblem problem = instance.problem();
  const RelaxedSolution exact = solve_exactly(problem);
  check_solution(instance, exact);
  CHECK(exact.upper_bound == doctest::Approx(5).epsilon(1e-6));
  CHECK(exact.x[0] == doctest::Approx(0.5).epsilon(1e-5));
  CHECK(exact.x[1] == doctest::Approx(0.5).epsilon(1e-5));
  const FavoriteMatching favorites = round_to_matching(problem, exact.x);
  CHECK(favorites.child[0].has_value());
  CHECK(favorites.longest_path == 6);
}

TEST_CASE("relaxation solvers: degenerate graphs") {
  const auto both = [](const Instance& instance, double expected) {
    for (const RelaxedSolution& solution :
         {solve_approximately(instance.problem()), solve_exactly(instance.problem())}) {
      check_solution(instance, solution);
      CHECK(solution.converged);
      CHECK(solution.upper_bound == doctest::Approx(expected).epsilon(0.006));
      CHECK(solution.lower_bound <= expected * (1 + 1e-10));
    }
  };
  both(Instance{}, 0);
  both(Instance{{7}, {}}, 7);
  both(Instance{{7, 9}, {}}, 9);
  both(symmetric_fork(0, 0), 0);
  both(symmetric_fork(5, 0), 10);
  both(symmetric_fork(0, 8), 4);
  both(symmetric_fork(1, 1'000'000'000'000'000), 500'000'000'000'002.0);
  both(symmetric_fork(1'000'000'000'000'000, 1), 2e15);
  both(Instance{{1, 1}, {{0, 1, 100}}}, 2);  // one child, one parent: the edge is free
}

TEST_CASE("exact solver: at its limits it returns the certified approximate solution and says so") {
  const Instance instance =
      instances::with_times(instances::layered_random(10, 10, 3), Regime::kDominating, 3);
  const RelaxedSolution stopped =
      solve_exactly(instance.problem(), {.max_work = 0, .max_iterations = 1000});
  check_solution(instance, stopped);
  CHECK(!stopped.converged);
  CHECK(stopped.iterations == 0);
  CHECK(stopped.gap() <= 0.0051);
  const RelaxedSolution brief = solve_exactly(instance.problem(), {.max_iterations = 3});
  check_solution(instance, brief);
  CHECK(!brief.converged);
  CHECK(brief.iterations == 3);

  CancelFlag cancel;
  cancel.request();
  CHECK_THROWS_AS(solve_exactly(instance.problem(), {.cancel = &cancel}), Cancelled);
  CHECK_THROWS_AS(solve_approximately(instance.problem(), {.cancel = &cancel}), Cancelled);
}

TEST_CASE("rounding: solutions of the relaxation give matchings near its optimum") {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    for (const Regime regime : {Regime::kSct, Regime::kUet}) {
      CAPTURE(seed);
      CAPTURE(instances::name(regime));
      const Instance instance =
          instances::with_times(instances::layered_random(8, 5, seed), regime, seed);
      const MatchingPathProblem problem = instance.problem();
      const RelaxedSolution exact = solve_exactly(problem);
      const FavoriteMatching rounded = round_to_matching(problem, exact.x);
      CHECK(oracle::matched_edges(instance, rounded).has_value());
      // Paper appendix: with costs at most rho times lengths, rounding at 1/2 loses at most
      // (2 + 2 rho) / (2 + rho), which is 4/3 for rho = 1.
      CHECK(static_cast<double>(rounded.longest_path) <= 4.0 / 3 * exact.upper_bound);
    }
  }
}

}  // namespace
}  // namespace baechi::lp
