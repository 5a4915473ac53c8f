// SPDX-License-Identifier: Apache-2.0
// When operators join the queue of a list scheduler (Paper 2.3), and where suppliers go.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/place/list/cluster_state.h"

namespace baechi {

// An operator is ready once all its parents are placed. A supplier (suppliers.h) also waits until
// it is called: the first operator that lacks nothing but suppliers calls them to the device where
// it could start earliest itself. One with a placed parent waits no longer, but may still be called
// to a device while it is in the queue.
class ReadyOps {
 public:
  // `suppliers`: who waits; nobody, for the paper's m-ETF and m-SCT to the letter.
  ReadyOps(ClusterState& state, IdVector<OpId, bool> suppliers);

  // Each returns the operators that have become ready, or were and have been called to a device
  // since; valid until the next call.
  std::span<const OpId> start();
  std::span<const OpId> placed(OpId op);
  // When the queue has run dry: the suppliers that nobody needed.
  std::span<const OpId> rest();

 private:
  struct Call {
    DeviceId device{0};
    Time work;  // of the caller and of those it called
  };

  void lacks_only_suppliers(OpId op);
  void call_parents(OpId op, DeviceId device, Time& work);
  DeviceId best_device(OpId op) const;

  ClusterState& state_;
  const OpGraph& graph_;
  IdVector<OpId, bool> supplier_;
  IdVector<OpId, bool> called_;      // suppliers that wait no longer
  IdVector<OpId, bool> has_called_;  // no need to look for uncalled parents again
  struct Unplaced {  // parents of an operator; side by side, since every decision asks for both
    std::uint32_t parents = 0;
    std::uint32_t lacking = 0;  // those that are no suppliers
  };
  IdVector<OpId, Unplaced> unplaced_;
  IdVector<OpId, Call> calls_;
  IdVector<DeviceId, Time> expected_;  // the work of calls whose caller has not been placed
  std::vector<OpId> ready_;
  std::vector<OpId> callers_;  // scratch
};

}  // namespace baechi
