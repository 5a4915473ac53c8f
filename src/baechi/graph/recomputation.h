// SPDX-License-Identifier: Apache-2.0
// A step that runs forward operators a second time, as one graph (docs/explanation/recomputation.md).
// Beyond the paper.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "baechi/base/id.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

struct Recomputation {
  OpId op;                         // the forward operator that runs again
  std::optional<OpId> after = {};  // its second run waits for this operator of the backward pass

  friend bool operator==(const Recomputation&, const Recomputation&) = default;
};

// Why an operator may not run again, as "operator 'x' ..."; absent: it may. It may where it is of the
// forward pass, runs once per micro-batch, is not marked otherwise, and reads a tensor: what reads
// none brings in something from outside.
class MayRunAgain {
 public:
  explicit MayRunAgain(const OpGraph& graph);
  std::optional<std::string> refusal(OpId op) const;

 private:
  const OpGraph& graph_;
  IdVector<OpId, bool> once_per_step_, touches_written_;
};

// The graph R of a step with these second runs, sorted by operator. The operators of `graph` come
// first, under their ids; then the second runs, in the order of `again`, named "op@again". The
// second run of `op` is in its colocation group, has its costs but no permanent memory, counts as
// backward, and waits for `op` and for `after`. It reads what `op` reads: of a producer that runs again, from
// its second run. Backward readers of the outputs of `op` read those of the second run instead. An
// output that somebody reads in `graph`, and nobody of this run, is temporary memory of this run.
// What nobody reads in `graph` is held to the end of the step, by the first run alone.
//
// Throws InputError where an operator may not run again, is there twice, is of no use to the backward
// pass, or would wait for itself; and in graphs whose memory mode is `retain`.
OpGraph recomputing(const OpGraph& graph, std::span<const Recomputation> again);

}  // namespace baechi
