// SPDX-License-Identifier: Apache-2.0
// A step that keeps tensors in a host's memory while no device reads them, as one graph
// (docs/explanation/host_memory.md). Beyond the paper.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/graph/op_graph.h"
#include "baechi/graph/unroll.h"

namespace baechi {

struct Fetch {                     // brings a tensor back from the store
  std::optional<OpId> after = {};  // it waits for this operator
  std::vector<OpId> readers;       // sorted; they read what it brings

  friend bool operator==(const Fetch&, const Fetch&) = default;
};

struct AwayTensor {
  OpId producer;
  std::uint32_t port = 0;
  std::vector<Fetch> fetches;  // a reader that none of them names reads it where it was made

  friend bool operator==(const AwayTensor&, const AwayTensor&) = default;
};

struct Residency {
  std::string store;             // the name of the device that keeps what is away
  std::vector<AwayTensor> away;  // sorted by (producer, port)
  std::vector<OpId> on_store;  // sorted; variables and updates that are there, not with their group

  bool empty() const { return away.empty() && on_store.empty(); }
  friend bool operator==(const Residency&, const Residency&) = default;
};

// The graph H of a step with this residency, whose operators and tensors are those of `step`: of several
// micro-batches, of the unrolled graph. Its operators come first, under their ids;
// then one for every fetch, in the order of the list, named "op@fetch" ("op@fetch:port", and so on
// with ":1" for its second fetch). A fetch takes no time, runs on the store alone, reads the tensor and outputs
// one of the same size, which its readers read instead. What is `on_store` is pinned there and in
// none of its colocation groups. Last come two operators for every streamed update, in their order:
// "op@new" takes no time, shares its device, waits for it, reads what it read of variables and outputs as
// much, variable by variable; "op@put" reads that on the store.
//
// Throws InputError where the lists are not sorted, a reader does not read the tensor or is named twice,
// a fetch is for nobody, an operator on the store is neither a variable nor an update, one stands
// on the store without the variables that it changes, or a streamed one fetches not all of them, shares
// one with another update or has permanent memory; where one that reads a variable on the store waits for
// an update of it; and in graphs whose memory mode is `retain`.
OpGraph residing(const StepGraph& step, const Residency& residency);
// The same, which knows its micro-batches.
Unrolled with_fetches(const Unrolled& step, const Residency& residency);

// Updates that fetch variables and are not on the store themselves. Sorted. The graph may be H, too.
std::vector<OpId> streamed_updates(const StepGraph& step, const Residency& residency);

// Who reads this variable, is no update, and waits for an update that changes it: on the store it might find
// the old value or the new one.
std::optional<OpId> reader_behind_update(const StepGraph& step, OpId variable);

// An update: an operator of the step that belongs to no forward operator and changes the variables
// that it reads.
bool is_update(const StepGraph& step, OpId op);

}  // namespace baechi
