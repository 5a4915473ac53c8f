// SPDX-License-Identifier: Apache-2.0
// Longest-path passes under a matching, and under the matching each node would wish for.
#include "baechi/lp/path_matching.h"

#include <algorithm>

namespace baechi::lp {

void measure_paths(const PathGraph& graph, const std::vector<std::int64_t>& pay,
                   PathLengths& lengths) {
  const std::size_t nodes = graph.num_nodes();
  lengths.head.assign(nodes, 0);
  lengths.tail.resize(nodes);
  lengths.longest = 0;
  std::int64_t* const head = lengths.head.data();
  std::int64_t* const tail = lengths.tail.data();
  for (std::size_t node = 0; node < nodes; ++node) {
    const std::int64_t end = head[node] + graph.length[node];
    lengths.longest = std::max(lengths.longest, end);
    for (std::size_t e = graph.out_begin[node]; e < graph.out_begin[node + 1]; ++e)
      head[graph.to[e]] = std::max(head[graph.to[e]], end + pay[e]);
  }
  for (std::size_t node = nodes; node-- > 0;) {
    std::int64_t rest = 0;
    for (std::size_t e = graph.out_begin[node]; e < graph.out_begin[node + 1]; ++e)
      rest = std::max(rest, pay[e] + tail[graph.to[e]]);
    tail[node] = graph.length[node] + rest;
  }
}

namespace {

// The latest arrival at one node, once without its cost and the others with it.
struct Arrivals {
  std::int64_t latest = 0, second = 0;  // with their costs
  std::int64_t latest_free = 0;         // the latest one without its cost

  void add(std::int64_t without_cost, std::int64_t cost) {
    const std::int64_t arrival = without_cost + cost;
    if (arrival > latest) {
      second = latest;
      latest = arrival;
      latest_free = without_cost;
    } else {
      second = std::max(second, arrival);
    }
  }
  // Freeing any but the latest edge would leave the latest.
  std::int64_t best() const { return std::max(second, latest_free); }
};

}  // namespace

void measure_wishful_paths(const PathGraph& graph, PathLengths& lengths) {
  const std::size_t nodes = graph.num_nodes();
  std::vector<Arrivals> arrivals(nodes);
  lengths.head.resize(nodes);
  lengths.tail.resize(nodes);
  lengths.longest = 0;
  for (std::size_t node = 0; node < nodes; ++node) {
    lengths.head[node] = arrivals[node].best();
    const std::int64_t end = lengths.head[node] + graph.length[node];
    for (std::size_t e = graph.out_begin[node]; e < graph.out_begin[node + 1]; ++e)
      arrivals[graph.to[e]].add(end, graph.cost[e]);
  }
  for (std::size_t node = nodes; node-- > 0;) {
    Arrivals rest;
    for (std::size_t e = graph.out_begin[node]; e < graph.out_begin[node + 1]; ++e)
      rest.add(lengths.tail[graph.to[e]], graph.cost[e]);
    lengths.tail[node] = graph.length[node] + rest.best();
    lengths.longest = std::max(lengths.longest, lengths.head[node] + lengths.tail[node]);
  }
}

}  // namespace baechi::lp
