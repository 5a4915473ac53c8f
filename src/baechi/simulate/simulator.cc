// SPDX-License-Identifier: Apache-2.0
#include "baechi/simulate/simulator.h"

#include "baechi/simulate/replay.h"

namespace baechi {

struct Simulator::State {
  explicit State(const CostModel& costs) : replay(costs) {
    summary.peaks.resize(costs.cluster().num_devices());
  }

  simulation::Replay replay;
  IdVector<OpId, OpSlot> slots;
  StepSummary summary;
};

Simulator::Simulator(const CostModel& costs) : state_(std::make_unique<State>(costs)) {}
Simulator::~Simulator() = default;
Simulator::Simulator(Simulator&&) noexcept = default;
Simulator& Simulator::operator=(Simulator&&) noexcept = default;

Time Simulator::makespan(const PlacedGraph& placed) {
  return state_->replay.run(placed, {.memory = false});
}

const StepSummary& Simulator::run(const PlacedGraph& placed) {
  StepSummary& summary = state_->summary;
  summary.makespan = state_->replay.run(placed, {});
  for (const DeviceId device : summary.peaks.keys())
    summary.peaks[device] = state_->replay.peak(device);
  return summary;
}

const IdVector<OpId, OpSlot>& Simulator::slots() const {
  state_->replay.tell(state_->slots);
  return state_->slots;
}

Trace Simulator::trace(const PlacedGraph& placed, const SimulateOptions& options) {
  Trace trace;
  simulation::Replay& replay = state_->replay;
  trace.schedule.makespan =
      replay.run(placed, {.record_memory = options.record_memory, .cancel = options.cancel});
  replay.tell(trace.schedule.slots);
  trace.schedule.transfers = replay.transfers();
  trace.schedule.asked = replay.asked();
  for (const DeviceId device : state_->summary.peaks.keys())
    trace.devices.push_back(replay.device_trace(device));
  return trace;
}

}  // namespace baechi
