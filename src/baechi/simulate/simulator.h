// SPDX-License-Identifier: Apache-2.0
// The Execution Simulator as an object that keeps its memory from run to run, for searches that
// replay thousands of placements of one graph.
#pragma once

#include <memory>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/schedule/schedule.h"
#include "baechi/simulate/trace.h"

namespace baechi {

struct StepSummary {  // what a search wants to know about a placement
  Time makespan;
  IdVector<DeviceId, Bytes> peaks;
};

// Refers to the cost model, which must outlive it. After the first run, makespan() and run()
// allocate nothing unless a placement sends more tensors than any before. All of them throw as
// simulate() does, and stay usable then.
class Simulator {
 public:
  explicit Simulator(const CostModel& costs);
  ~Simulator();
  Simulator(Simulator&&) noexcept;
  Simulator& operator=(Simulator&&) noexcept;

  // Times alone, without memory: about twice as fast as run().
  Time makespan(const PlacedGraph& placed);
  // Makespan and memory peaks; valid until the next call.
  const StepSummary& run(const PlacedGraph& placed);
  // When every operator ran in the last makespan() or run(); written anew by every call.
  const IdVector<OpId, OpSlot>& slots() const;
  // Everything, as simulate() tells it.
  Trace trace(const PlacedGraph& placed, const SimulateOptions& options = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baechi
