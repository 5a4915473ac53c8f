// SPDX-License-Identifier: Apache-2.0
// Contracts edges of a DAG one by one and never makes a cycle (Paper 3.1.3). Searching
// for second paths goes beyond the paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/graph/op_graph.h"
#include "baechi/graph/union_find.h"

namespace baechi {

enum class EdgeContraction : std::uint8_t {
  kByDegree,  // the paper's rule: the source has no other successor or the sink no other parent
  kByReachability,  // a search proved that no second path joins the two
  kWouldCycle,      // there is a second path
  kGaveUp,          // the search would have taken too long
};

// Keeps a topological numbering of the clusters, so that only clusters numbered between the two
// ends of an edge can lie on a second path; repairs it after each contraction like Pearce and
// Kelly's dynamic topological order. A contraction looks at a bounded number of edges.
class AcyclicContraction {
 public:
  struct Options {
    bool by_reachability = true;     // else by degree alone
    std::size_t search_limit = 200;  // edges that one look around may follow
  };
  AcyclicContraction(const OpGraph& graph, const Options& options);

  // The smallest operator of the cluster.
  std::uint32_t find(OpId op) { return clusters_.find(op.value()); }
  // Requires an edge of the graph from `from` to `to`, which are not in one cluster.
  EdgeContraction contract(OpId from, OpId to);

 private:
  struct Row {  // of pool_: the clusters next to one, by any of their operators, perhaps repeated
    std::size_t begin = 0;
    std::uint32_t size = 0, room = 0;
  };
  enum class Others : std::uint8_t { kNone, kBeyond, kBetween };
  enum class Search : std::uint8_t { kSeparate, kMeets, kTooLong };

  Others others(std::uint32_t of, std::uint32_t but, bool outgoing);
  Search search(std::uint32_t start, std::uint32_t stop, bool outgoing,
                std::vector<std::uint32_t>& found);
  void renumber(std::uint32_t from, std::uint32_t to);
  void merge(std::uint32_t a, std::uint32_t b, std::uint32_t number);
  void append(Row& row, Row more, std::uint32_t owner);
  void drop_repeats(Row& row, std::uint32_t owner);
  std::vector<Row>& rows(bool outgoing) { return outgoing ? out_ : in_; }
  bool between(std::uint32_t x) const { return low_ < number_[x] && number_[x] < high_; }

  UnionFind clusters_;
  std::vector<std::uint32_t> number_;  // topological, of each cluster's representative
  std::vector<std::uint32_t> pool_;
  std::vector<Row> out_, in_;
  std::vector<std::uint32_t> stamp_;  // last search or cleaning that met the cluster
  std::uint32_t round_ = 0;
  Options options_;
  std::uint32_t low_ = 0, high_ = 0;  // numbers of the ends of the edge at hand
  std::vector<std::uint32_t> after_, before_, slots_;
};

}  // namespace baechi
