// SPDX-License-Identifier: Apache-2.0
// Where second runs of forward operators stand in a sequence of a step, and what they wait for.
// Beyond the paper.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/graph/op_graph.h"
#include "baechi/graph/recomputation.h"

namespace baechi {

// Refers to the graph, which must outlive it.
class SecondRuns {
 public:
  explicit SecondRuns(const OpGraph& graph);

  const OpGraph& graph() const { return graph_; }
  // Operators that may run again; whether that is of any use depends on which others do.
  bool may(OpId op) const { return may_[op]; }
  bool any() const { return any_; }

  struct Placed {
    std::vector<Recomputation> again;
    std::vector<OpId> sequence;  // of recomputing(graph, again), topological
  };
  // Those of `chosen` that are of use where the step runs in `sequence`, which is topological: each
  // stands before its first reader, and waits for the gradient that this reader waits for. Left out
  // are those that nobody would read, and those whose first reader comes no later than
  // the last reader of the first run, or waits for no gradient. Where `leads` has them, so many
  // gradients earlier: one that is ready sooner lets a device repeat what it will need while it waits
  // for others, and hold it for longer.
  using Leads = IdVector<OpId, std::uint32_t>;
  Placed in(const std::vector<OpId>& sequence, const IdVector<OpId, bool>& chosen,
            const Leads& leads = {}) const;

 private:
  std::optional<OpId> gradient_for(OpId reader, std::size_t before,
                                   const IdVector<OpId, std::size_t>& position) const;

  const OpGraph& graph_;
  IdVector<OpId, bool> may_;
  IdVector<OpId, bool> once_per_step_;
  bool any_ = false;
};

}  // namespace baechi
