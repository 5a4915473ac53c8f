// SPDX-License-Identifier: Apache-2.0
// The matching-path relaxation: soft water-filling, then sifting and the interior point method.
//
// Sifting: an edge that soft water-filling leaves well off every longest path is left out at first,
// with y = 0. Without its constraint the problem is a relaxation, so lower bounds stay valid;
// whether the solution respects the edge shows on the whole graph, and if not the edge comes back.
#include "baechi/lp/relaxation_solver.h"

#include <algorithm>

#include "baechi/lp/interior_point.h"
#include "baechi/lp/soft_water_filling.h"

namespace baechi::lp {
namespace {

// Marks the edges on a path of at least `length` nanoseconds at x.
// Returns how many it marked anew.
std::size_t mark_long_edges(const MatchingPathProblem& problem, const std::vector<double>& x,
                            double length, std::vector<bool>& marked) {
  const PathGraph& graph = problem.graph();
  const auto pay = [&](std::size_t e) {
    return static_cast<double>(graph.cost[e]) * x[problem.caller_edge()[e]];
  };
  std::vector<double> head(graph.num_nodes(), 0), tail(graph.num_nodes(), 0);
  for (std::size_t e = 0; e < graph.num_edges(); ++e) {
    const double end = head[graph.from[e]] + static_cast<double>(graph.length[graph.from[e]]);
    head[graph.to[e]] = std::max(head[graph.to[e]], end + pay(e));
  }
  for (std::size_t node = graph.num_nodes(); node-- > 0;) {
    for (std::size_t e = graph.out_begin[node]; e < graph.out_begin[node + 1]; ++e)
      tail[node] = std::max(tail[node], pay(e) + tail[graph.to[e]]);
    tail[node] += static_cast<double>(graph.length[node]);
  }
  std::size_t added = 0;
  for (std::size_t e = 0; e < graph.num_edges(); ++e) {
    if (marked[e]) continue;
    const std::size_t from = graph.from[e];
    const double path =
        head[from] + static_cast<double>(graph.length[from]) + pay(e) + tail[graph.to[e]];
    if (path < length) continue;
    marked[e] = true;
    ++added;
  }
  return added;
}

std::vector<double> knobs_of(const MatchingPathProblem& problem, const ReducedGraph& reduced,
                             const std::vector<double>& x) {
  std::vector<double> y(reduced.num_edges(), 0);
  for (std::size_t e = 0; e < y.size(); ++e)
    if (reduced.cost[e] > 0) y[e] = 1 - x[problem.caller_edge()[reduced.original[e]]];
  return y;
}

// A first look: soft water-filling either ends within these sweeps or has begun to drift.
constexpr int kFewSweeps = 90;

// Keeps the better upper and the better lower bound of two solutions of one problem.
void improve(RelaxedSolution& best, RelaxedSolution&& other, double gap) {
  best.sweeps += other.sweeps;
  best.iterations += other.iterations;
  best.lower_bound = std::max(best.lower_bound, other.lower_bound);
  if (other.upper_bound < best.upper_bound) {
    best.upper_bound = other.upper_bound;
    best.x = std::move(other.x);
  }
  best.converged = best.gap() <= gap;
}

RelaxedSolution sweep(const MatchingPathProblem& problem, const ReducedGraph& reduced,
                      const SoftOptions& options) {
  const SoftSolution soft = fill_softly(reduced, options);
  RelaxedSolution solution = extend_to_problem(problem, reduced, soft.y, soft.lower_bound);
  solution.sweeps = soft.sweeps;
  solution.converged = soft.converged;
  return solution;
}

// Improves `best` by the interior point method on the edges that matter.
void sift(const MatchingPathProblem& problem, const ExactOptions& options, RelaxedSolution& best) {
  constexpr double kMargin = 0.02;        // of the path: edges nearer to a longest path are kept
  constexpr double kLaterMargin = 0.001;  // of those that turn out to be on one
  std::vector<bool> keep(problem.num_edges(), false);
  std::size_t added = mark_long_edges(problem, best.x, (1 - kMargin) * best.upper_bound, keep);
  double work = options.max_work;
  while (!best.converged && added > 0) {
    const ReducedGraph part = reduce(problem, &keep);
    const InteriorSolution inner =
        solve_interior(part, knobs_of(problem, part, best.x),
                       {.gap = options.gap / 2,
                        .max_iterations = options.max_iterations - best.iterations,
                        .max_work = work,
                        .cancel = options.cancel});
    work -= inner.work;
    RelaxedSolution whole = extend_to_problem(problem, part, inner.y, inner.lower_bound, &best.x);
    whole.iterations = inner.iterations;
    const double length = (1 - kLaterMargin) * inner.upper_bound * part.unit;
    added = inner.converged ? mark_long_edges(problem, whole.x, length, keep) : 0;
    improve(best, std::move(whole), options.gap);
  }
}

}  // namespace

RelaxedSolution solve_approximately(const MatchingPathProblem& problem,
                                    const ApproximateOptions& options) {
  const ReducedGraph reduced = reduce(problem);
  const SoftOptions few{.gap = options.gap,
                        .max_sweeps = std::min(kFewSweeps, options.max_sweeps),
                        .cancel = options.cancel};
  RelaxedSolution best = sweep(problem, reduced, few);
  if (best.converged) return best;
  sift(problem, {.gap = options.gap, .max_work = options.max_work, .cancel = options.cancel}, best);
  if (best.converged || options.max_sweeps <= kFewSweeps) return best;
  const SoftOptions many{
      .gap = options.gap, .max_sweeps = options.max_sweeps, .cancel = options.cancel};
  improve(best, sweep(problem, reduced, many), options.gap);
  return best;
}

RelaxedSolution solve_exactly(const MatchingPathProblem& problem, const ExactOptions& options) {
  const ReducedGraph reduced = reduce(problem);
  const ApproximateOptions fallback{.cancel = options.cancel};
  RelaxedSolution best = sweep(
      problem, reduced, {.gap = fallback.gap, .max_sweeps = kFewSweeps, .cancel = options.cancel});
  best.converged = best.gap() <= options.gap;
  sift(problem, options, best);
  if (best.converged || best.gap() <= fallback.gap) return best;
  improve(best,
          sweep(problem, reduced,
                {.gap = fallback.gap, .max_sweeps = fallback.max_sweeps, .cancel = options.cancel}),
          options.gap);
  return best;
}

}  // namespace baechi::lp
