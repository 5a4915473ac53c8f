// SPDX-License-Identifier: Apache-2.0
// The matching-path relaxation on a reduced graph by Mehrotra's predictor-corrector method.
#include "baechi/lp/interior_point.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "baechi/lp/path_certificate.h"
#include "baechi/lp/relaxed_solution.h"
#include "baechi/lp/sparse_ldl.h"

namespace baechi::lp {
namespace {

using Index = std::uint32_t;
using Vector = std::vector<double>;

// A point, or a direction in the same space.
struct Point {
  Vector s;           // by node: start times; the source's stays 0
  Vector y, z, f, t;  // by edge; y and t of plain edges are unused
  Vector a, r;        // by group; kFreeGroup's are unused

  explicit Point(const ReducedGraph& graph)
      : s(graph.num_nodes, 0),
        y(graph.num_edges(), 0),
        z(y),
        f(y),
        t(y),
        a(graph.num_groups, 0),
        r(a) {}
};

// Distance from zero at the start, in units of the longest unmatched path and of a group's
// capacity.
constexpr double kStartMargin = 1e-3;

class InteriorPoint {
 public:
  InteriorPoint(const ReducedGraph& graph, const Vector& start, const InteriorOptions& options);
  InteriorSolution run();

 private:
  bool is_knob(Index e) const { return graph_.cost[e] > 0; }
  Index num_unknowns() const {
    return static_cast<Index>(graph_.num_nodes - 1 + graph_.num_groups - 1);
  }
  Index node_row(Index node) const { return node - 1; }
  Index group_row(Index group) const {
    return static_cast<Index>(graph_.num_nodes - 1) + group - 1;
  }
  std::vector<MatrixEntry> pattern() const;

  double prices(const Point& at, Index e) const {
    return at.a[graph_.out_group[e]] + at.a[graph_.in_group[e]];
  }
  void start_primal(const Vector& feasible);
  void start_dual();
  void update_residuals();
  double complementarity_after(double primal, double dual) const;
  void factor();
  void set_targets(double mu, const Point* predictor);
  void solve_direction(Point& direction);
  void unfold(Point& direction) const;
  std::pair<double, double> step_lengths(const Point& direction) const;
  void advance(const Point& direction, double primal, double dual);
  void certify();
  bool may_continue() const;

  const ReducedGraph& graph_;
  const InteriorOptions& options_;
  SparseLdl matrix_;
  InteriorSolution best_;
  int last_progress_ = 0;  // the iteration that last improved a bound
  Point point_, predictor_, corrector_;
  double num_pairs_ = 0;  // of complementary variables
  // What the next direction should make up for: residuals of the equations and of the products.
  Vector flow_residual_, price_residual_, length_residual_, group_residual_;
  Vector length_target_, knob_target_, group_target_;
  // Per edge, from the elimination: d = f/z, m = t/y + cost^2 d, h = weight of the node Laplacian,
  // b = cost d / m couples nodes and prices.
  Vector d_, m_, h_, b_;
  Vector diagonal_, off_diagonal_, rhs_;
};

InteriorPoint::InteriorPoint(const ReducedGraph& graph, const Vector& start,
                             const InteriorOptions& options)
    : graph_(graph),
      options_(options),
      matrix_(num_unknowns(), pattern()),
      point_(graph),
      predictor_(graph),
      corrector_(graph) {
  const std::size_t edges = graph.num_edges();
  for (Vector* v :
       {&price_residual_, &length_residual_, &length_target_, &knob_target_, &d_, &m_, &h_, &b_})
    v->assign(edges, 0);
  flow_residual_.assign(graph.num_nodes, 0);
  group_residual_.assign(graph.num_groups, 0);
  group_target_.assign(graph.num_groups, 0);
  const auto knobs = std::ranges::count_if(graph.cost, [](double cost) { return cost > 0; });
  num_pairs_ = static_cast<double>(edges + graph.num_groups - 1) + static_cast<double>(knobs);
  best_.upper_bound = std::numeric_limits<double>::infinity();
  best_.lower_bound = graph.lower_bound;
  best_.y = start;
  start_primal(start);
  start_dual();
}

// One entry per pair of unknowns that an edge couples; factor() fills them in the same order.
std::vector<MatrixEntry> InteriorPoint::pattern() const {
  std::vector<MatrixEntry> entries;
  for (Index e = 0; e < graph_.num_edges(); ++e) {
    const Index from = graph_.from[e], to = graph_.to[e];
    if (from > 0) entries.emplace_back(node_row(from), node_row(to));
    const Index out = graph_.out_group[e], in = graph_.in_group[e];
    for (const Index group : {out, in}) {
      if (group == kFreeGroup) continue;
      if (from > 0) entries.emplace_back(node_row(from), group_row(group));
      entries.emplace_back(node_row(to), group_row(group));
    }
    if (out != kFreeGroup && in != kFreeGroup) entries.emplace_back(group_row(out), group_row(in));
  }
  return entries;
}

void InteriorPoint::factor() {
  diagonal_.assign(num_unknowns(), 0);
  off_diagonal_.clear();
  for (Index g = 1; g < graph_.num_groups; ++g)
    diagonal_[group_row(g)] = -point_.r[g] / point_.a[g];
  for (Index e = 0; e < graph_.num_edges(); ++e) {
    const Index from = graph_.from[e], to = graph_.to[e];
    const double cost = graph_.cost[e];
    d_[e] = point_.f[e] / point_.z[e];
    h_[e] = d_[e];
    if (is_knob(e)) {
      const double theta = point_.t[e] / point_.y[e];
      m_[e] = theta + cost * cost * d_[e];
      h_[e] = d_[e] * theta / m_[e];
      b_[e] = cost * d_[e] / m_[e];
    }
    diagonal_[node_row(to)] += h_[e];
    if (from > 0) diagonal_[node_row(from)] += h_[e];
    if (from > 0) off_diagonal_.push_back(-h_[e]);
    const Index out = graph_.out_group[e], in = graph_.in_group[e];
    for (const Index group : {out, in}) {
      if (group == kFreeGroup) continue;
      if (from > 0) off_diagonal_.push_back(b_[e]);
      off_diagonal_.push_back(-b_[e]);
      diagonal_[group_row(group)] -= 1 / m_[e];
    }
    if (out != kFreeGroup && in != kFreeGroup) off_diagonal_.push_back(-1 / m_[e]);
  }
  matrix_.factor(diagonal_, off_diagonal_);
  best_.work += matrix_.work();
}

void InteriorPoint::start_primal(const Vector& feasible) {
  Vector size(graph_.num_groups, 1), left(graph_.num_groups, 1);
  for (Index e = 0; e < graph_.num_edges(); ++e) {
    size[graph_.out_group[e]] += 1;
    size[graph_.in_group[e]] += 1;
  }
  for (Index e = 0; e < graph_.num_edges(); ++e) {
    if (!is_knob(e)) continue;
    const Index out = graph_.out_group[e], in = graph_.in_group[e];
    const double largest =
        std::max(out == kFreeGroup ? 1 : size[out], in == kFreeGroup ? 1 : size[in]);
    point_.y[e] = (feasible[e] + 1 / largest) / 2;
    left[out] -= point_.y[e];
    left[in] -= point_.y[e];
  }
  for (Index g = 1; g < graph_.num_groups; ++g) point_.r[g] = std::max(left[g], kStartMargin);
  const auto shortened = [&](Index e) { return graph_.length[e] - graph_.cost[e] * point_.y[e]; };
  for (Index e = 0; e < graph_.num_edges(); ++e) {
    double& s = point_.s[graph_.to[e]];
    s = std::max(s, point_.s[graph_.from[e]] + shortened(e) + kStartMargin);
  }
  for (Index e = 0; e < graph_.num_edges(); ++e)
    point_.z[e] = point_.s[graph_.to[e]] - point_.s[graph_.from[e]] - shortened(e);
}

// A unit flow that prefers edges with little slack, and prices that more than cover it.
void InteriorPoint::start_dual() {
  constexpr double kLeastFlow = 1e-4;
  Vector preference(graph_.num_nodes, 0), through(graph_.num_nodes, 0);
  for (Index e = 0; e < graph_.num_edges(); ++e) preference[graph_.to[e]] += 1 / point_.z[e];
  through.back() = 1;
  for (auto e = static_cast<Index>(graph_.num_edges()); e-- > 0;) {
    const Index to = graph_.to[e];
    const double flow = through[to] / point_.z[e] / preference[to];
    through[graph_.from[e]] += flow;
    point_.f[e] = std::max(flow, kLeastFlow);
  }
  std::ranges::fill(point_.a, kStartMargin);
  for (Index e = 0; e < graph_.num_edges(); ++e)
    for (const Index g : {graph_.out_group[e], graph_.in_group[e]})
      point_.a[g] = std::max(point_.a[g], 2 * graph_.cost[e] * point_.f[e]);
  point_.a[kFreeGroup] = 0;
  for (Index e = 0; e < graph_.num_edges(); ++e)
    if (is_knob(e)) point_.t[e] = prices(point_, e) - graph_.cost[e] * point_.f[e];
}

void InteriorPoint::update_residuals() {
  std::ranges::fill(flow_residual_, 0.0);
  std::ranges::fill(group_residual_, 1.0);
  flow_residual_.back() = 1;
  for (Index e = 0; e < graph_.num_edges(); ++e) {
    const Index from = graph_.from[e], to = graph_.to[e];
    flow_residual_[to] -= point_.f[e];
    flow_residual_[from] += point_.f[e];
    length_residual_[e] = point_.s[to] - point_.s[from] - graph_.length[e] +
                          graph_.cost[e] * point_.y[e] - point_.z[e];
    if (!is_knob(e)) continue;
    price_residual_[e] = graph_.cost[e] * point_.f[e] - prices(point_, e) + point_.t[e];
    group_residual_[graph_.out_group[e]] -= point_.y[e];
    group_residual_[graph_.in_group[e]] -= point_.y[e];
  }
  for (Index g = 1; g < graph_.num_groups; ++g) group_residual_[g] -= point_.r[g];
}

// The mean product of a complementary pair after a step along the predictor.
double InteriorPoint::complementarity_after(double primal, double dual) const {
  const Point& p = point_;
  const Point& d = predictor_;
  double sum = 0;
  for (Index e = 0; e < graph_.num_edges(); ++e)
    sum += (p.z[e] + primal * d.z[e]) * (p.f[e] + dual * d.f[e]) +
           (p.y[e] + primal * d.y[e]) * (p.t[e] + dual * d.t[e]);
  for (Index g = 1; g < graph_.num_groups; ++g)
    sum += (p.a[g] + dual * d.a[g]) * (p.r[g] + primal * d.r[g]);
  return sum / num_pairs_;
}

// The changes that the products of the pairs should see: to mu, less the second-order term of a
// step along `predictor`, when one is given.
void InteriorPoint::set_targets(double mu, const Point* predictor) {
  const Point& p = point_;
  for (Index e = 0; e < graph_.num_edges(); ++e) {
    length_target_[e] = mu - p.z[e] * p.f[e];
    knob_target_[e] = mu - p.y[e] * p.t[e];
  }
  for (Index g = 1; g < graph_.num_groups; ++g) group_target_[g] = mu - p.a[g] * p.r[g];
  if (predictor == nullptr) return;
  for (Index e = 0; e < graph_.num_edges(); ++e) {
    length_target_[e] -= predictor->z[e] * predictor->f[e];
    knob_target_[e] -= predictor->y[e] * predictor->t[e];
  }
  for (Index g = 1; g < graph_.num_groups; ++g)
    group_target_[g] -= predictor->a[g] * predictor->r[g];
}

void InteriorPoint::solve_direction(Point& dir) {
  rhs_.assign(num_unknowns(), 0);
  for (Index v = 1; v < graph_.num_nodes; ++v) rhs_[node_row(v)] = -flow_residual_[v];
  for (Index g = 1; g < graph_.num_groups; ++g)
    rhs_[group_row(g)] = group_residual_[g] - group_target_[g] / point_.a[g];
  for (Index e = 0; e < graph_.num_edges(); ++e) {
    const double q = length_target_[e] / point_.f[e] - length_residual_[e];
    double along = h_[e] * q;
    if (is_knob(e)) {
      const double p = knob_target_[e] / point_.y[e] + price_residual_[e];
      along -= b_[e] * p;
      for (const Index g : {graph_.out_group[e], graph_.in_group[e]})
        if (g != kFreeGroup) rhs_[group_row(g)] -= b_[e] * q + p / m_[e];
    }
    rhs_[node_row(graph_.to[e])] += along;
    if (graph_.from[e] > 0) rhs_[node_row(graph_.from[e])] -= along;
  }
  matrix_.solve(rhs_);
  unfold(dir);
}

// The eliminated unknowns of a direction from those of the system.
void InteriorPoint::unfold(Point& dir) const {
  for (Index v = 1; v < graph_.num_nodes; ++v) dir.s[v] = rhs_[node_row(v)];
  for (Index g = 1; g < graph_.num_groups; ++g) {
    dir.a[g] = rhs_[group_row(g)];
    dir.r[g] = (group_target_[g] - point_.r[g] * dir.a[g]) / point_.a[g];
  }
  for (Index e = 0; e < graph_.num_edges(); ++e) {
    const double q = length_target_[e] / point_.f[e] - length_residual_[e];
    const double rest = q - (dir.s[graph_.to[e]] - dir.s[graph_.from[e]]);
    if (is_knob(e)) {
      const double p = knob_target_[e] / point_.y[e] + price_residual_[e];
      const double excess = p - prices(dir, e);
      dir.y[e] = (graph_.cost[e] * d_[e] * rest + excess) / m_[e];
      dir.t[e] = (knob_target_[e] - point_.t[e] * dir.y[e]) / point_.y[e];
      dir.f[e] = h_[e] * rest - b_[e] * excess;
    } else {
      dir.f[e] = d_[e] * rest;
    }
    dir.z[e] = (length_target_[e] - point_.z[e] * dir.f[e]) / point_.f[e];
  }
}

// The largest steps, up to 1, that keep the primal and the dual variables non-negative.
std::pair<double, double> InteriorPoint::step_lengths(const Point& dir) const {
  const auto shorten = [](double step, const Vector& value, const Vector& change) {
    for (std::size_t i = 0; i < value.size(); ++i)
      if (value[i] + step * change[i] < 0) step = -value[i] / change[i];
    return step;
  };
  const double primal =
      shorten(shorten(shorten(1, point_.y, dir.y), point_.z, dir.z), point_.r, dir.r);
  const double dual =
      shorten(shorten(shorten(1, point_.f, dir.f), point_.t, dir.t), point_.a, dir.a);
  return {primal, dual};
}

void InteriorPoint::advance(const Point& dir, double primal, double dual) {
  const auto move = [](Vector& value, const Vector& change, double step) {
    for (std::size_t i = 0; i < value.size(); ++i) value[i] += step * change[i];
  };
  move(point_.s, dir.s, primal), move(point_.y, dir.y, primal), move(point_.z, dir.z, primal);
  move(point_.r, dir.r, primal);
  move(point_.f, dir.f, dual), move(point_.t, dir.t, dual), move(point_.a, dir.a, dual);
}

void InteriorPoint::certify() {
  Vector y = point_.y;
  repair_group_sums(graph_, y);
  const double upper = std::max(graph_.lower_bound, longest_path(graph_, y));
  const double lower = certified_lower_bound(graph_, point_.f, point_.a);
  if (upper < best_.upper_bound || lower > best_.lower_bound) last_progress_ = best_.iterations;
  if (upper < best_.upper_bound) {
    best_.upper_bound = upper;
    best_.y = std::move(y);
  }
  if (lower > best_.lower_bound) best_.lower_bound = lower;
  best_.converged = best_.upper_bound <= (1 + options_.gap) * best_.lower_bound;
}

bool InteriorPoint::may_continue() const {
  constexpr int kUsual = 30;  // iterations; not begun where so many would exceed the limit
  constexpr int kPatience =
      20;  // iterations in which rounding errors leave both bounds where they are
  const double expected = std::max(1, kUsual - best_.iterations) * matrix_.work();
  return best_.iterations < options_.max_iterations &&
         best_.iterations - last_progress_ < kPatience &&
         best_.work + expected <= options_.max_work;
}

InteriorSolution InteriorPoint::run() {
  for (certify(); !best_.converged && may_continue(); certify()) {
    throw_if_cancelled(options_.cancel);
    ++best_.iterations;
    update_residuals();
    factor();

    set_targets(0, nullptr);
    solve_direction(predictor_);
    const auto [primal, dual] = step_lengths(predictor_);
    const double mu = complementarity_after(0, 0);
    const double ratio = complementarity_after(primal, dual) / mu;
    const double centering = std::min(1.0, ratio * ratio * ratio);

    // Much below the gap wanted, the system would only get harder to solve accurately.
    const double least_mu = 0.3 * options_.gap * best_.upper_bound / num_pairs_;
    // After a short step the second-order term says little and may be huge.
    const bool trusted = std::min(primal, dual) > 0.1;
    set_targets(std::max(centering * mu, least_mu), trusted ? &predictor_ : nullptr);
    solve_direction(corrector_);
    const auto [primal_step, dual_step] = step_lengths(corrector_);
    constexpr double kToTheBoundary = 0.995;
    advance(corrector_, kToTheBoundary * primal_step, kToTheBoundary * dual_step);
  }
  return std::move(best_);
}

}  // namespace

InteriorSolution solve_interior(const ReducedGraph& graph, const std::vector<double>& start,
                                const InteriorOptions& options) {
  if (graph.num_edges() == 0) {
    return {.y = {},
            .upper_bound = graph.lower_bound,
            .lower_bound = graph.lower_bound,
            .converged = true};
  }
  return InteriorPoint(graph, start, options).run();
}

}  // namespace baechi::lp
