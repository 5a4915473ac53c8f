// SPDX-License-Identifier: Apache-2.0
// Favorite children: the LP-free matching, and the certified solvers of the relaxation, on graphs
// shaped like GNMT in five cost regimes, and on the graphs that m-SCT gets. Every answer is
// checked: its bounds must enclose the exact optimum, and every matching's path must respect them.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "../tests/unit/lp/path_instances.h"
#include "baechi/cluster/cluster.h"
#include "baechi/cost/cost_model.h"
#include "baechi/generate/generate.h"
#include "baechi/lp/favorite_matching.h"
#include "baechi/lp/relaxation_solver.h"
#include "baechi/place/list/favorite_child.h"
#include "bench.h"

namespace baechi::bench {
namespace {

using lp::MatchingPathProblem;
using lp::RelaxedSolution;
using lp::instances::Instance;
using lp::instances::Regime;

void require(bool condition, const std::string& what) {
  if (condition) return;
  std::fprintf(stderr, "wrong answer: %s\n", what.c_str());
  std::exit(1);
}

std::uint64_t checksum(const RelaxedSolution& solution) {
  return Checksum()
      .add(std::llround(solution.upper_bound))
      .add(std::llround(solution.lower_bound))
      .value();
}

void report_gap(const char* how, const RelaxedSolution& solution, double optimum) {
  std::printf("    %s: certified gap %.2g %%, true error %.2g %%, %d sweeps, %d iterations%s\n",
              how, 100 * solution.gap(), 100 * (solution.upper_bound / optimum - 1),
              solution.sweeps, solution.iterations,
              solution.converged ? "" : ", STOPPED AT ITS LIMIT");
}

struct Case {
  std::string name = {};
  int repeats = 5;
  bool exact = true;
};

void favorites_of(const MatchingPathProblem& problem, const Case& measured) {
  const std::size_t work = problem.num_nodes() + problem.num_edges();
  const auto timed = [&](const char* how) {
    return Measured{
        .name = std::string(how) + measured.name, .work = work, .repeats = measured.repeats};
  };
  lp::FavoriteMatching matching;
  report(timed("matching    "), [&] {
    matching = lp::find_favorite_matching(problem);
    return Checksum().add(matching.longest_path).value();
  });
  RelaxedSolution soft, exact;
  report(timed("approximate "), [&] { return checksum(soft = lp::solve_approximately(problem)); });
  if (measured.exact)
    report(timed("exact       "), [&] { return checksum(exact = lp::solve_exactly(problem)); });

  const RelaxedSolution& best = measured.exact ? exact : soft;
  const auto wished = static_cast<double>(lp::matching_lower_bound(problem));
  const auto found = static_cast<double>(matching.longest_path);
  report_gap("approximate", soft, best.upper_bound);
  if (measured.exact) report_gap("exact", exact, best.upper_bound);
  std::printf(
      "    w(matching) / relaxation %.4f, / quick bound %.4f; rounded approximation %.4f\n",
      found / best.upper_bound, found / wished,
      static_cast<double>(lp::round_to_matching(problem, soft.x).longest_path) / best.upper_bound);
  require(soft.lower_bound <= best.upper_bound, measured.name + ": the lower bound is no bound");
  require(soft.upper_bound >= best.lower_bound, measured.name + ": better than the optimum");
  require(found >= best.lower_bound * (1 - 1e-12), measured.name + ": below every matching");
  require(found >= wished, measured.name + ": below the quick bound");
}

std::string shape(const std::string& name, const MatchingPathProblem& problem) {
  return name + ", " + std::to_string(problem.num_nodes()) + " nodes";
}

void regimes_of(const std::string& name, const Instance& graph, const Case& measured) {
  for (const Regime regime : lp::instances::kRegimes) {
    const MatchingPathProblem problem = lp::instances::with_times(graph, regime, 1).problem();
    Case in_regime = measured;
    in_regime.name = shape(name, problem) + ", " + lp::instances::name(regime);
    favorites_of(problem, in_regime);
  }
}

void generated(const OpGraph& graph) {
  const Cluster cluster(uniform_cluster({.count = 4,
                                         .capacity = gibibytes(8),
                                         .latency = microseconds(134),
                                         .bandwidth = Bandwidth(5'700'000'000)}));
  const FavoriteProblem favorite = favorite_problem(CostModel(graph, cluster));
  report({.name = "build       " + graph.name(), .work = graph.num_ops()}, [&] {
    return Checksum()
        .add(MatchingPathProblem(favorite.lengths, favorite.edges).unmatched_path())
        .value();
  });
  const MatchingPathProblem problem(favorite.lengths, favorite.edges);
  favorites_of(problem, {.name = shape("generated " + graph.name(), problem)});
}

}  // namespace

void bench_lp() {
  for (const char* name : {"inception-v3", "gnmt"}) generated(generate_graph(name));
  generated(generate_graph("gnmt", {.length = 50}));
  regimes_of("gnmt-like", lp::instances::gnmt_like(4, 100), {});
  regimes_of("transformer-like", lp::instances::transformer_like(90, 16), {});
}

void bench_lp_large() {
  regimes_of("gnmt-like", lp::instances::gnmt_like(4, 450), {.repeats = 3});
  regimes_of("layered", lp::instances::layered_random(400, 250, 1), {.repeats = 3, .exact = false});
  regimes_of("gnmt-like", lp::instances::gnmt_like(8, 2300), {.repeats = 1, .exact = false});
}

}  // namespace baechi::bench
