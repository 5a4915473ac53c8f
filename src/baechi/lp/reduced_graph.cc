// SPDX-License-Identifier: Apache-2.0
// Presolve of the matching-path relaxation: bounds on heads and tails prove edges idle, knobs whose
// groups have no other use for their unit are taken, and what remains is contracted.
#include "baechi/lp/reduced_graph.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "baechi/base/assert.h"
#include "baechi/lp/water_filling.h"

namespace baechi::lp {
namespace {

using Index = std::uint32_t;

// The edges of row r are edge[begin[r]] .. edge[begin[r + 1] - 1].
struct Rows {
  std::vector<Index> begin, edge;
  std::span<const Index> operator[](std::size_t row) const {
    return {edge.data() + begin[row], edge.data() + begin[row + 1]};
  }
};

// Stable counting sort of `edges` by key[edge].
Rows sorted_rows(const std::vector<Index>& key, std::size_t num_rows,
                 const std::vector<Index>& edges) {
  Rows rows;
  rows.begin.assign(num_rows + 1, 0);
  for (const Index e : edges) ++rows.begin[key[e] + 1];
  std::partial_sum(rows.begin.begin(), rows.begin.end(), rows.begin.begin());
  rows.edge.resize(edges.size());
  std::vector<Index> next(rows.begin.begin(), rows.begin.end() - 1);
  for (const Index e : edges) rows.edge[next[key[e]]++] = e;
  return rows;
}

// The graph while it shrinks. Nodes are 0 (source), the original ones plus 1, and the sink; a group
// is named by the original node its knobs leave or enter, wherever contraction moves them.
struct Edges {
  std::vector<Index> from, to, out_group, in_group, original;
  std::vector<double> length, cost;

  std::size_t size() const { return from.size(); }
  bool is_knob(Index e) const { return cost[e] > 0; }

  void add(Index tail, Index head, double total, double knob_cost, Index original_edge) {
    from.push_back(tail);
    to.push_back(head);
    out_group.push_back(tail);
    in_group.push_back(head);
    original.push_back(original_edge);
    length.push_back(total);
    cost.push_back(knob_cost);
  }

  template <class Keep>
  void keep_if(const Keep& keep) {
    std::vector<Index> kept;
    for (Index e = 0; e < size(); ++e)
      if (keep(e)) kept.push_back(e);
    const auto gather = [&](auto& values) {
      for (std::size_t i = 0; i < kept.size(); ++i) values[i] = values[kept[i]];
      values.resize(kept.size());
    };
    gather(from), gather(to), gather(out_group), gather(in_group), gather(original);
    gather(length), gather(cost);
  }
};

// One direction of travel: rows of edges by the node they are seen from, that side's groups, and
// the node at the other end.
struct View {
  Rows rows;  // within a row, edges of one group are neighbours
  const std::vector<Index>& group;
  const std::vector<Index>& neighbor;
  bool backward;
};

// The longest paths from one terminal: when every knob is at 0, and when each group of that side
// does the best it could do alone, which no y can beat.
struct Potentials {
  std::vector<double> longest, wishful;
};

class Reduction {
 public:
  Reduction(const MatchingPathProblem& problem, const std::vector<bool>* keep);
  ReducedGraph run() &&;

 private:
  View heads_view() const {
    return {rows_by(edges_.to, edges_.in_group), edges_.in_group, edges_.from, false};
  }
  View tails_view() const {
    return {rows_by(edges_.from, edges_.out_group), edges_.out_group, edges_.to, true};
  }
  Rows rows_by(const std::vector<Index>& node, const std::vector<Index>& group) const;
  Potentials potentials(const View& view);
  double wishful_value(std::span<const Index> group, const View& view,
                       const std::vector<double>& wishful);
  void remove_idle_edges();
  void take_lonely_knobs();
  void contract(const View& view, std::vector<Index>& near_end);
  void merge_parallel_edges();
  void export_nodes();
  void export_groups();

  std::size_t num_nodes_;
  Edges edges_;
  ReducedGraph result_;
  std::vector<double> level_, cost_, inverse_cost_;  // one group's, for water_level
};

Reduction::Reduction(const MatchingPathProblem& problem, const std::vector<bool>* keep)
    : num_nodes_(problem.num_nodes() + 2) {
  const PathGraph& graph = problem.graph();
  result_.unit = std::max(1.0, static_cast<double>(problem.unmatched_path()));
  const auto scaled = [&](std::int64_t ns) { return static_cast<double>(ns) / result_.unit; };
  const auto sink = static_cast<Index>(num_nodes_ - 1);
  std::vector<bool> has_parent(graph.num_nodes(), false);
  for (Index node = 0; node < graph.num_nodes(); ++node) {
    if (!has_parent[node]) edges_.add(0, node + 1, 0, 0, 0);
    const double length = scaled(graph.length[node]);
    bool has_child = false;
    for (Index e = graph.out_begin[node]; e < graph.out_begin[node + 1]; ++e) {
      if (keep != nullptr && !(*keep)[e]) continue;
      has_child = has_parent[graph.to[e]] = true;
      const double cost = scaled(graph.cost[e]);
      edges_.add(node + 1, graph.to[e] + 1, length + cost, cost, e);
    }
    if (!has_child) edges_.add(node + 1, sink, length, 0, 0);
  }
}

ReducedGraph Reduction::run() && {
  constexpr int kRounds = 2;
  for (int round = 0; round < kRounds; ++round) {
    remove_idle_edges();
    take_lonely_knobs();
    contract(heads_view(), edges_.from);
    contract(tails_view(), edges_.to);
    merge_parallel_edges();
  }
  take_lonely_knobs();
  export_nodes();
  export_groups();
  return std::move(result_);
}

Rows Reduction::rows_by(const std::vector<Index>& node, const std::vector<Index>& group) const {
  std::vector<Index> all(edges_.size());
  std::iota(all.begin(), all.end(), Index{0});
  return sorted_rows(node, num_nodes_, sorted_rows(group, num_nodes_, all).edge);
}

double Reduction::wishful_value(std::span<const Index> group, const View& view,
                                const std::vector<double>& wishful) {
  level_.clear(), cost_.clear(), inverse_cost_.clear();
  double highest = 0;
  for (const Index e : group) {
    const double level = wishful[view.neighbor[e]] + edges_.length[e];
    if (edges_.is_knob(e)) {
      level_.push_back(level);
      cost_.push_back(edges_.cost[e]);
      inverse_cost_.push_back(1 / edges_.cost[e]);
    } else {
      highest = std::max(highest, level);
    }
  }
  return level_.empty() ? highest : std::max(highest, water_level(level_, cost_, inverse_cost_));
}

Potentials Reduction::potentials(const View& view) {
  Potentials result{std::vector<double>(num_nodes_, 0), std::vector<double>(num_nodes_, 0)};
  for (std::size_t step = 0; step < num_nodes_; ++step) {
    const std::size_t node = view.backward ? num_nodes_ - 1 - step : step;
    const std::span<const Index> row = view.rows[node];
    for (std::size_t begin = 0, end = 0; begin < row.size(); begin = end) {
      while (end < row.size() && view.group[row[end]] == view.group[row[begin]]) {
        result.longest[node] =
            std::max(result.longest[node],
                     result.longest[view.neighbor[row[end]]] + edges_.length[row[end]]);
        ++end;
      }
      const double value = wishful_value(row.subspan(begin, end - begin), view, result.wishful);
      result.wishful[node] = std::max(result.wishful[node], value);
    }
  }
  return result;
}

// An edge decides nothing when every path through it is within the lower bound, or when it arrives
// before (or leaves after) something that is longer whatever the knobs do.
void Reduction::remove_idle_edges() {
  const Potentials head = potentials(heads_view()), tail = potentials(tails_view());
  for (std::size_t node = 0; node < num_nodes_; ++node)
    result_.lower_bound = std::max(result_.lower_bound, head.wishful[node] + tail.wishful[node]);
  edges_.keep_if([&](Index e) {
    const Index from = edges_.from[e], to = edges_.to[e];
    const double arrival = head.longest[from] + edges_.length[e];
    const double departure = tail.longest[to] + edges_.length[e];
    return arrival + tail.longest[to] > result_.lower_bound && arrival >= head.wishful[to] &&
           departure >= tail.wishful[from];
  });
}

// A knob alone in both its groups takes its whole cost off.
void Reduction::take_lonely_knobs() {
  std::vector<Index> out_size(num_nodes_, 0), in_size(num_nodes_, 0);
  for (Index e = 0; e < edges_.size(); ++e) {
    if (!edges_.is_knob(e)) continue;
    ++out_size[edges_.out_group[e]];
    ++in_size[edges_.in_group[e]];
  }
  for (Index e = 0; e < edges_.size(); ++e) {
    if (!edges_.is_knob(e)) continue;
    if (out_size[edges_.out_group[e]] > 1 || in_size[edges_.in_group[e]] > 1) continue;
    result_.taken.push_back(edges_.original[e]);
    edges_.length[e] -= edges_.cost[e];
    edges_.cost[e] = 0;
  }
}

// A node that the view sees along one plain edge only merges into that edge's other end; its
// remaining edges, whose near end is `near_end`, start there and are longer by the edge.
void Reduction::contract(const View& view, std::vector<Index>& near_end) {
  std::vector<Index> merged_into(num_nodes_);
  std::vector<double> detour(num_nodes_, 0);
  std::vector<bool> contracted(edges_.size(), false);
  for (std::size_t step = 0; step < num_nodes_; ++step) {
    const std::size_t node = view.backward ? num_nodes_ - 1 - step : step;
    merged_into[node] = static_cast<Index>(node);
    if (node == 0 || node + 1 == num_nodes_ || view.rows[node].size() != 1) continue;
    const Index only = view.rows[node].front();
    if (edges_.is_knob(only)) continue;
    const Index neighbor = view.neighbor[only];
    merged_into[node] = merged_into[neighbor];
    detour[node] = detour[neighbor] + edges_.length[only];
    contracted[only] = true;
  }
  for (Index e = 0; e < edges_.size(); ++e) {
    edges_.length[e] += contracted[e] ? 0 : detour[near_end[e]];
    near_end[e] = merged_into[near_end[e]];
  }
  edges_.keep_if([&](Index e) { return !contracted[e]; });
}

// Of the edges that join two nodes, the longest plain one silences the others that are no longer.
void Reduction::merge_parallel_edges() {
  const Rows rows = rows_by(edges_.from, edges_.out_group);
  std::vector<Index> longest(num_nodes_, 0);  // plain edge to a node, valid when stamped
  std::vector<std::size_t> stamp(num_nodes_, num_nodes_);
  std::vector<bool> silent(edges_.size(), false);
  for (std::size_t node = 0; node < num_nodes_; ++node) {
    for (const Index e : rows[node]) {
      if (edges_.is_knob(e)) continue;
      Index& best = longest[edges_.to[e]];
      if (stamp[edges_.to[e]] != node || edges_.length[e] > edges_.length[best]) best = e;
      stamp[edges_.to[e]] = node;
    }
    for (const Index e : rows[node])
      if (stamp[edges_.to[e]] == node && longest[edges_.to[e]] != e)
        silent[e] = edges_.length[e] <= edges_.length[longest[edges_.to[e]]];
  }
  edges_.keep_if([&](Index e) { return !silent[e]; });
}

// Numbers the nodes that still have edges, in order, and sorts the edges.
void Reduction::export_nodes() {
  const Rows rows = rows_by(edges_.from, edges_.out_group);
  std::vector<Index> number(num_nodes_, 0);
  for (Index e = 0; e < edges_.size(); ++e) number[edges_.from[e]] = number[edges_.to[e]] = 1;
  number.front() = number.back() = 1;
  std::exclusive_scan(number.begin(), number.end(), number.begin(), Index{0});
  result_.num_nodes = number.back() + std::size_t{1};
  for (const Index e : rows.edge) {
    result_.from.push_back(number[edges_.from[e]]);
    result_.to.push_back(number[edges_.to[e]]);
    result_.length.push_back(edges_.length[e]);
    result_.cost.push_back(edges_.cost[e]);
    result_.out_group.push_back(edges_.out_group[e]);
    result_.in_group.push_back(edges_.in_group[e]);
    result_.original.push_back(edges_.original[e]);
  }
}

// Numbers the groups that restrict something: those of two knobs or more.
void Reduction::export_groups() {
  const auto number_groups = [&](std::vector<Index>& group) {
    std::vector<Index> size(num_nodes_, 0), number(num_nodes_, kFreeGroup);
    for (Index e = 0; e < result_.num_edges(); ++e)
      if (result_.cost[e] > 0) ++size[group[e]];
    for (std::size_t label = 0; label < num_nodes_; ++label)
      if (size[label] > 1) number[label] = static_cast<Index>(result_.num_groups++);
    for (Index e = 0; e < result_.num_edges(); ++e)
      group[e] = result_.cost[e] > 0 ? number[group[e]] : kFreeGroup;
  };
  number_groups(result_.out_group);
  number_groups(result_.in_group);
}

}  // namespace

ReducedGraph reduce(const MatchingPathProblem& problem, const std::vector<bool>* keep) {
  return Reduction(problem, keep).run();
}

}  // namespace baechi::lp
