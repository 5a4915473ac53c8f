// SPDX-License-Identifier: Apache-2.0
// The dearest set of groups that one accelerator can have without a load above a limit: what the
// bound on the largest load asks again and again (docs/explanation/bounds.md). Beyond the paper.
// Internal to dnn_partitioning/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "baechi/dnn_partitioning/dnnp_instance.h"
#include "baechi/dnn_partitioning/dnnp_segments.h"

namespace baechi::dnnp {

using Price = std::int64_t;

struct DearestSet {
  Price most = 0;             // no set within the limit is dearer
  std::vector<Index> groups;  // one that dear; none where nothing is dearer than what was asked
  Ns load = 0;                // theirs, or less; above the limit if pairs were united
};

// All sets as paths through layers: groups are taken or left one after the other, and a state says
// of every tensor under way that all of its groups so far were taken, all left, or some of both,
// which has its cost. A decision diagram; where a layer has too many states, the cheapest tensors
// are forgotten, so that loads become too small.
class SetDiagram {
 public:
  // Tensors that cost no more than `ignored` cost nothing.
  SetDiagram(const Instance& instance, const Sequence& sequence, std::size_t part,
             std::size_t most_states, Ns ignored);

  std::size_t num_states() const;

  // Sets that are no dearer than `above` do not matter: the answer is at least that. Where a layer
  // has more than `most_pairs` pairs of load and price that no other one beats, neighbors are
  // united, so that the answer can be too much. `work` grows by the pairs and states looked at.
  DearestSet dearest(const std::vector<Price>& prices, Ns limit, Price above,
                     std::size_t most_pairs, std::int64_t& work) const;

 private:
  struct State {
    Index if_left = 0, if_taken = 0;   // in the next layer
    Ns cost_left = 0, cost_taken = 0;  // of tensors, and the time of the group; kNever: not here
  };
  Sequence sequence_;
  std::vector<std::vector<State>> layers_;  // one per group; behind them one state, the end

  friend class DearestSearch;
};

}  // namespace baechi::dnnp
