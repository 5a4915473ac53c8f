// SPDX-License-Identifier: Apache-2.0
// One direction of soft water-filling (see soft_water_filling.h).
#include "baechi/lp/soft_sweep.h"

#include <algorithm>
#include <span>
#include <tuple>

#include "baechi/lp/exp_log.h"
#include "baechi/lp/water_filling.h"

namespace baechi::lp {
namespace {

struct Copy {
  std::uint32_t node, neighbor, edge;
  std::uint32_t group;   // the group it answers to, on whichever side; kFreeGroup for plain edges
  std::uint32_t number;  // the same in both directions
  bool own;              // it answers to a group of this side
};

// A knob has no copy for a free group: there it could always take its whole cost off, and the other
// copy is never shorter.
std::vector<Copy> copies(const ReducedGraph& graph, bool forward) {
  std::vector<Copy> result;
  result.reserve(2 * graph.num_edges());
  const auto last = static_cast<std::uint32_t>(graph.num_nodes - 1);
  for (std::uint32_t e = 0; e < graph.num_edges(); ++e) {
    const std::uint32_t node = forward ? graph.to[e] : last - graph.from[e];
    const std::uint32_t neighbor = forward ? graph.from[e] : last - graph.to[e];
    const auto add = [&](std::uint32_t group, bool own) {
      result.push_back({node, neighbor, e, group, static_cast<std::uint32_t>(result.size()), own});
    };
    const bool out = graph.out_group[e] != kFreeGroup, in = graph.in_group[e] != kFreeGroup;
    if (out) add(graph.out_group[e], !forward);
    if (in) add(graph.in_group[e], forward);
    if (!out && !in) add(kFreeGroup, false);
  }
  return result;
}

}  // namespace

SoftSweep::SoftSweep(const ReducedGraph& graph, Direction direction) {
  std::vector<Copy> arcs = copies(graph, direction == Direction::kForward);
  std::ranges::sort(arcs, {}, [](const Copy& arc) {
    return std::tuple(arc.node, !arc.own, arc.group, arc.number);
  });
  begin_.assign(graph.num_nodes + 1, 0);
  for (const Copy& arc : arcs) ++begin_[arc.node + 1];
  for (std::size_t node = 0; node < graph.num_nodes; ++node) begin_[node + 1] += begin_[node];
  twin_.resize(arcs.size());
  for (std::uint32_t a = 0; a < arcs.size(); ++a) {
    const Copy& arc = arcs[a];
    neighbor_.push_back(arc.neighbor);
    edge_.push_back(arc.edge);
    group_.push_back(arc.group);
    twin_[a] = arc.number;  // until pair() knows where the other direction keeps it
    length_.push_back(graph.length[arc.edge]);
    cost_.push_back(graph.cost[arc.edge]);
    const double cost = graph.cost[arc.edge];
    inverse_cost_.push_back(cost > 0 ? 1 / cost : 0);
    log_cost_.push_back(cost > 0 ? log_positive(cost) : 0);
  }
  group_begin_.assign(1, 0);
  for (std::uint32_t node = 0; node < graph.num_nodes; ++node) {
    for (std::uint32_t a = begin_[node]; a < begin_[node + 1] && arcs[a].own; ++a) {
      if (a == begin_[node] || arcs[a].group != arcs[a - 1].group) groups_.push_back({a, a});
      groups_.back().end = a + 1;
    }
    group_begin_.push_back(static_cast<std::uint32_t>(groups_.size()));
  }
  pay_.resize(arcs.size());
  for (std::size_t a = 0; a < arcs.size(); ++a) pay_[a] = length_[a] - cost_[a];
  soft_.assign(graph.num_nodes, 0);
  hard_.assign(graph.num_nodes, 0);
  node_flow_.assign(graph.num_nodes, 0);
  probability_.assign(arcs.size(), 0);
  price_.assign(graph.num_groups, 0);
}

void SoftSweep::pair(SoftSweep& forward, SoftSweep& backward) {
  std::vector<std::uint32_t> forward_arc(forward.twin_.size()), backward_arc(forward.twin_.size());
  for (std::uint32_t a = 0; a < forward_arc.size(); ++a) {
    forward_arc[forward.twin_[a]] = a;
    backward_arc[backward.twin_[a]] = a;
  }
  for (std::uint32_t a = 0; a < forward_arc.size(); ++a) {
    forward.twin_[a] = backward_arc[forward.twin_[a]];
    backward.twin_[a] = forward_arc[backward.twin_[a]];
  }
}

void SoftSweep::fill(Group group, double mu, SoftSweep& other) {
  const std::size_t size = group.end - group.begin;
  level_.resize(std::max(level_.size(), size));
  for (std::size_t i = 0; i < size; ++i) {
    const std::size_t a = group.begin + i;
    level_[i] = soft_[neighbor_[a]] + length_[a] + mu * log_cost_[a];
  }
  const double level = water_level({level_.data(), size}, {&cost_[group.begin], size},
                                   {&inverse_cost_[group.begin], size});
  for (std::size_t i = 0; i < size; ++i) {
    const std::size_t a = group.begin + i;
    pay_[a] = length_[a] - std::max(0.0, level_[i] - level);
    other.pay_[twin_[a]] = pay_[a];
  }
}

void SoftSweep::run(double mu, SoftSweep& other) {
  const double inverse_mu = 1 / mu;
  constexpr double kNegligible = -36;  // e^-36 is below the rounding error of 1
  for (std::size_t node = 1; node < soft_.size(); ++node) {
    for (std::uint32_t g = group_begin_[node]; g < group_begin_[node + 1]; ++g)
      fill(groups_[g], mu, other);
    const std::uint32_t begin = begin_[node], end = begin_[node + 1];
    double highest = 0, longest = 0;
    for (std::uint32_t a = begin; a < end; ++a) {
      highest = std::max(highest, soft_[neighbor_[a]] + pay_[a]);
      longest = std::max(longest, hard_[neighbor_[a]] + pay_[a]);
    }
    hard_[node] = longest;
    double sum = 0;
    for (std::uint32_t a = begin; a < end; ++a) {
      const double below = (soft_[neighbor_[a]] + pay_[a] - highest) * inverse_mu;
      probability_[a] = below > kNegligible ? exp_nonpositive(below) : 0;
      sum += probability_[a];
    }
    if (end - begin == 1) {
      soft_[node] = highest;
      continue;
    }
    soft_[node] = highest + mu * log_positive(sum);
    const double inverse_sum = 1 / sum;
    for (std::uint32_t a = begin; a < end; ++a) probability_[a] *= inverse_sum;
  }
}

SoftSweep::Flow SoftSweep::flow() {
  Flow result;
  std::ranges::fill(node_flow_, 0.0);
  std::ranges::fill(price_, 0.0);
  node_flow_.back() = 1;
  for (std::size_t node = node_flow_.size(); node-- > 1;) {
    const double inflow = node_flow_[node];
    if (inflow == 0) continue;
    for (std::uint32_t a = begin_[node]; a < begin_[node + 1]; ++a) {
      const double flow = inflow * probability_[a];
      node_flow_[neighbor_[a]] += flow;
      result.mean_length += flow * pay_[a];
      result.lower_bound += flow * length_[a];
      price_[group_[a]] = std::max(price_[group_[a]], flow * cost_[a]);
    }
  }
  for (const double price : price_) result.lower_bound -= price;
  return result;
}

std::vector<double> SoftSweep::knobs(const ReducedGraph& graph) const {
  std::vector<double> y(graph.num_edges(), 1);
  for (std::size_t a = 0; a < pay_.size(); ++a)
    y[edge_[a]] = std::min(y[edge_[a]], (length_[a] - pay_[a]) * inverse_cost_[a]);
  return y;
}

}  // namespace baechi::lp
