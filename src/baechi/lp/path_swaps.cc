// SPDX-License-Identifier: Apache-2.0
// Local search on a matching: swaps along the longest path.
#include <algorithm>
#include <utility>

#include "baechi/base/assert.h"
#include "baechi/lp/path_matching.h"

namespace baechi::lp {
namespace {

// The edge that leaves `node` along a longest path, if the path goes on.
std::optional<std::uint32_t> next_on_path(const PathGraph& graph, const PathMatching& matching,
                                          const PathLengths& lengths, std::uint32_t node) {
  for (std::uint32_t e = graph.out_begin[node]; e < graph.out_begin[node + 1]; ++e)
    if (graph.length[node] + matching.pay()[e] + lengths.tail[graph.to[e]] == lengths.tail[node])
      return e;
  return std::nullopt;
}

// Edges of one longest path that pay: matching one of them is what could shorten it.
std::vector<std::uint32_t> paying_edges(const PathGraph& graph, const PathMatching& matching,
                                        const PathLengths& lengths) {
  std::vector<std::uint32_t> edges;
  std::uint32_t node = 0;
  while (lengths.head[node] + lengths.tail[node] < lengths.longest || lengths.head[node] > 0) {
    ++node;
    BAECHI_ASSERT(node < graph.num_nodes(), "no longest path starts anywhere");
  }
  while (const auto edge = next_on_path(graph, matching, lengths, node)) {
    if (matching.pay()[*edge] > 0) edges.push_back(*edge);
    node = graph.to[*edge];
  }
  return edges;
}

class SwapSearch {
 public:
  SwapSearch(const PathGraph& graph, PathMatching& matching, std::int64_t work)
      : graph_(graph), matching_(matching), work_(work) {
    measure(current_);
  }

  void run() {
    while (work_ > 0 && improve()) {
    }
  }

 private:
  // (longest path, nodes on a longest path): ties matter, since symmetric models have many.
  using Score = std::pair<std::int64_t, std::size_t>;

  void measure(PathLengths& lengths) {
    measure_paths(graph_, matching_.pay(), lengths);
    work_ -= static_cast<std::int64_t>(graph_.num_nodes() + graph_.num_edges());
  }

  static Score score(const PathLengths& lengths) {
    std::size_t critical = 0;
    for (std::size_t node = 0; node < lengths.head.size(); ++node)
      critical += lengths.head[node] + lengths.tail[node] == lengths.longest ? 1U : 0U;
    return {lengths.longest, critical};
  }

  bool improve() {
    const Score best = score(current_);
    for (const std::uint32_t edge : paying_edges(graph_, matching_, current_)) {
      if (work_ <= 0) return false;
      if (!promising(edge)) continue;
      swap_in(edge);
      measure(trial_);
      if (score(trial_) < best) {
        std::swap(current_, trial_);
        log_.clear();
        return true;
      }
      undo();
    }
    return false;
  }

  // Whether the edges that would have to leave are short enough for it. Exact for one such edge:
  // nothing before its tail or behind its head gets shorter by the swap.
  bool promising(std::uint32_t edge) const {
    const auto affordable = [&](std::optional<std::uint32_t> blocking) {
      return !blocking || path_through(*blocking) <= current_.longest;
    };
    return affordable(matching_.out_edge(graph_.from[edge])) &&
           affordable(matching_.in_edge(graph_.to[edge]));
  }

  // The longest path through `edge` when it pays.
  std::int64_t path_through(std::uint32_t edge) const {
    const std::uint32_t from = graph_.from[edge];
    return current_.head[from] + graph_.length[from] + graph_.cost[edge] +
           current_.tail[graph_.to[edge]];
  }

  void swap_in(std::uint32_t edge) {
    const auto out = matching_.out_edge(graph_.from[edge]);
    const auto in = matching_.in_edge(graph_.to[edge]);
    if (out) remove(*out);
    if (in) remove(*in);
    add(edge);
    if (in) add_best_child(graph_.from[*in]);
    if (out) add_best_parent(graph_.to[*out]);
  }

  void add_best_child(std::uint32_t node) {
    std::optional<std::uint32_t> best;
    for (std::uint32_t e = graph_.out_begin[node]; e < graph_.out_begin[node + 1]; ++e)
      if (matching_.can_add(e) && (!best || path_through(e) > path_through(*best))) best = e;
    if (best) add(*best);
  }

  void add_best_parent(std::uint32_t node) {
    std::optional<std::uint32_t> best;
    for (std::uint32_t at = graph_.in_begin[node]; at < graph_.in_begin[node + 1]; ++at) {
      const std::uint32_t e = graph_.in_edge[at];
      if (matching_.can_add(e) && (!best || path_through(e) > path_through(*best))) best = e;
    }
    if (best) add(*best);
  }

  void add(std::uint32_t edge) {
    matching_.add(edge);
    log_.push_back({edge, true});
  }
  void remove(std::uint32_t edge) {
    matching_.remove(edge);
    log_.push_back({edge, false});
  }
  void undo() {
    for (; !log_.empty(); log_.pop_back()) {
      if (log_.back().second) {
        matching_.remove(log_.back().first);
      } else {
        matching_.add(log_.back().first);
      }
    }
  }

  const PathGraph& graph_;
  PathMatching& matching_;
  std::int64_t work_;
  PathLengths current_, trial_;
  std::vector<std::pair<std::uint32_t, bool>> log_;  // edges added (true) or removed
};

}  // namespace

void swap_on_longest_path(const PathGraph& graph, PathMatching& matching, std::int64_t work) {
  if (graph.num_nodes() > 0) SwapSearch(graph, matching, work).run();
}

}  // namespace baechi::lp
