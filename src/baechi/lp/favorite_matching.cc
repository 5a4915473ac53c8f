// SPDX-License-Identifier: Apache-2.0
// Favorite children without a linear program (Paper 2.4): iterated greedy matching, and the
// rounding of a fractional solution to a matching (Paper 4.4).
#include "baechi/lp/favorite_matching.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "baechi/base/assert.h"
#include "baechi/lp/path_matching.h"

namespace baechi::lp {
namespace {

// The nodes and edges that can lie on a path longer than a bound below every w(F). The others never
// decide w(F), whatever the matching.
struct LivePart {
  PathGraph graph;
  std::vector<std::uint32_t> edge;  // live edge -> edge of the whole graph
};

LivePart live_part(const PathGraph& whole, std::int64_t lower_bound) {
  PathLengths unmatched;
  measure_paths(whole, whole.cost, unmatched);
  LivePart live;
  live.graph.out_begin.push_back(0);
  std::vector<std::uint32_t> live_node(whole.num_nodes());
  for (std::size_t node = 0; node < whole.num_nodes(); ++node) {
    live_node[node] = static_cast<std::uint32_t>(live.graph.length.size());
    if (unmatched.head[node] + unmatched.tail[node] <= lower_bound) continue;
    const std::int64_t end = unmatched.head[node] + whole.length[node];
    for (std::uint32_t e = whole.out_begin[node]; e < whole.out_begin[node + 1]; ++e) {
      if (end + whole.cost[e] + unmatched.tail[whole.to[e]] <= lower_bound) continue;
      live.edge.push_back(e);
      live.graph.from.push_back(live_node[node]);
      live.graph.to.push_back(whole.to[e]);
      live.graph.cost.push_back(whole.cost[e]);
    }
    live.graph.length.push_back(whole.length[node]);
    live.graph.out_begin.push_back(static_cast<std::uint32_t>(live.edge.size()));
  }
  for (std::uint32_t& to : live.graph.to) to = live_node[to];
  live.graph.index_in_edges();
  return live;
}

// Sorts edges by the leading bits of a non-negative key, longest first, ties by edge number: two
// counting passes of 11 bits each.
class KeySorter {
 public:
  const std::vector<std::uint32_t>& sort_descending(const std::vector<std::int64_t>& key,
                                                    std::int64_t largest) {
    const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(largest)));
    const int shift = std::max(0, bits - 2 * kDigitBits);
    reduced_.resize(key.size());
    order_.resize(key.size());
    scratch_.resize(key.size());
    std::array<std::uint32_t, kDigits> low{}, high{};
    for (std::size_t e = 0; e < key.size(); ++e) {
      reduced_[e] = static_cast<std::uint32_t>((largest - key[e]) >> shift);
      ++low[reduced_[e] % kDigits];
      ++high[reduced_[e] / kDigits];
    }
    std::exclusive_scan(low.begin(), low.end(), low.begin(), 0U);
    std::exclusive_scan(high.begin(), high.end(), high.begin(), 0U);
    for (std::uint32_t e = 0; e < key.size(); ++e) scratch_[low[reduced_[e] % kDigits]++] = e;
    for (const std::uint32_t e : scratch_) order_[high[reduced_[e] / kDigits]++] = e;
    return order_;
  }

 private:
  static constexpr int kDigitBits = 11;
  static constexpr std::uint32_t kDigits = 1U << kDigitBits;
  std::vector<std::uint32_t> reduced_, order_, scratch_;
};

// Each edge's longest path under averaged heads and tails orders the edges; a greedy matching in
// that order gives new heads and tails, which are averaged in. Repeat, keep the best.
class IteratedGreedy {
 public:
  explicit IteratedGreedy(const PathGraph& graph) : graph_(graph), key_(graph.num_edges()) {
    measure_wishful_paths(graph, average_);
  }

  PathMatching run(std::int64_t lower_bound, const FavoriteMatchingOptions& options) {
    PathMatching matching(graph_), best(graph_);
    std::int64_t best_longest = 0;
    const std::int64_t iterations = num_iterations(options.matching_work);
    for (std::int64_t i = 0; i < iterations; ++i) {
      throw_if_cancelled(options.cancel);
      match_greedily(matching);
      measure_paths(graph_, matching.pay(), latest_);
      if (i == 0 || latest_.longest < best_longest) {
        best = matching;
        best_longest = latest_.longest;
      }
      if (best_longest <= lower_bound) break;
      average_in(average_.head, latest_.head);
      average_in(average_.tail, latest_.tail);
    }
    return best;
  }

 private:
  static constexpr std::int64_t kFewestIterations = 4, kMostIterations = 60;

  std::int64_t num_iterations(std::int64_t work) const {
    const auto edges = static_cast<std::int64_t>(graph_.num_edges());
    return std::clamp(work / std::max<std::int64_t>(edges, 1), kFewestIterations, kMostIterations);
  }

  void match_greedily(PathMatching& matching) {
    std::int64_t largest = 0;
    for (std::size_t e = 0; e < key_.size(); ++e) {
      const std::uint32_t from = graph_.from[e];
      key_[e] =
          average_.head[from] + graph_.length[from] + graph_.cost[e] + average_.tail[graph_.to[e]];
      largest = std::max(largest, key_[e]);
    }
    matching.clear();
    for (const std::uint32_t e : sorter_.sort_descending(key_, largest))
      if (matching.can_add(e)) matching.add(e);
  }

  static void average_in(std::vector<std::int64_t>& average,
                         const std::vector<std::int64_t>& latest) {
    for (std::size_t node = 0; node < average.size(); ++node)
      average[node] = (average[node] + latest[node]) / 2;
  }

  const PathGraph& graph_;
  PathLengths average_, latest_;
  std::vector<std::int64_t> key_;
  KeySorter sorter_;
};

// Extends to a maximal matching, edges on long paths first. Only more edges go free: w never grows.
void make_maximal(const PathGraph& graph, PathMatching& matching) {
  PathLengths lengths;
  measure_paths(graph, matching.pay(), lengths);
  std::vector<std::uint32_t> candidates;
  std::vector<std::int64_t> key;
  for (std::uint32_t e = 0; e < graph.num_edges(); ++e) {
    if (!matching.can_add(e)) continue;
    const std::uint32_t from = graph.from[e];
    candidates.push_back(e);
    key.push_back(lengths.head[from] + graph.length[from] + graph.cost[e] +
                  lengths.tail[graph.to[e]]);
  }
  if (candidates.empty()) return;
  KeySorter sorter;
  for (const std::uint32_t at : sorter.sort_descending(key, *std::ranges::max_element(key)))
    if (matching.can_add(candidates[at])) matching.add(candidates[at]);
}

FavoriteMatching in_caller_numbers(const MatchingPathProblem& problem,
                                   const PathMatching& matching) {
  const PathGraph& graph = problem.graph();
  FavoriteMatching result;
  result.child.resize(graph.num_nodes());
  result.parent.resize(graph.num_nodes());
  for (std::uint32_t node = 0; node < graph.num_nodes(); ++node) {
    const auto edge = matching.out_edge(node);
    if (!edge) continue;
    const std::uint32_t parent = problem.caller_node()[node];
    const std::uint32_t child = problem.caller_node()[graph.to[*edge]];
    result.child[parent] = child;
    result.parent[child] = parent;
  }
  PathLengths lengths;
  measure_paths(graph, matching.pay(), lengths);
  result.longest_path = lengths.longest;
  return result;
}

}  // namespace

FavoriteMatching find_favorite_matching(const MatchingPathProblem& problem,
                                        const FavoriteMatchingOptions& options) {
  const PathGraph& graph = problem.graph();
  const std::int64_t lower_bound = matching_lower_bound(problem);
  const LivePart live = live_part(graph, lower_bound);

  PathMatching live_matching = IteratedGreedy(live.graph).run(lower_bound, options);
  swap_on_longest_path(live.graph, live_matching, options.swap_work);

  PathMatching matching(graph);
  for (std::uint32_t e = 0; e < live.edge.size(); ++e)
    if (live_matching.contains(e)) matching.add(live.edge[e]);
  make_maximal(graph, matching);
  return in_caller_numbers(problem, matching);
}

FavoriteMatching round_to_matching(const MatchingPathProblem& problem, std::span<const double> x,
                                   const MatchingRounding& rounding) {
  BAECHI_ASSERT(x.size() == problem.num_edges(), "one x per edge");
  const PathGraph& graph = problem.graph();
  std::vector<std::uint32_t> below;
  for (std::uint32_t e = 0; e < graph.num_edges(); ++e)
    if (x[problem.caller_edge()[e]] < rounding.threshold) below.push_back(e);
  std::ranges::stable_sort(below, {}, [&](std::uint32_t e) { return x[problem.caller_edge()[e]]; });

  PathMatching matching(graph);
  for (const std::uint32_t e : below)
    if (matching.can_add(e)) matching.add(e);
  if (rounding.complete) make_maximal(graph, matching);
  return in_caller_numbers(problem, matching);
}

std::int64_t longest_path_with(const MatchingPathProblem& problem,
                               const std::vector<bool>& matched) {
  BAECHI_ASSERT(matched.size() == problem.num_edges(), "one flag per edge");
  std::vector<std::int64_t> pay = problem.graph().cost;
  for (std::size_t e = 0; e < pay.size(); ++e)
    if (matched[problem.caller_edge()[e]]) pay[e] = 0;
  PathLengths lengths;
  measure_paths(problem.graph(), pay, lengths);
  return lengths.longest;
}

std::int64_t matching_lower_bound(const MatchingPathProblem& problem) {
  PathLengths lengths;
  measure_wishful_paths(problem.graph(), lengths);
  return lengths.longest;
}

}  // namespace baechi::lp
