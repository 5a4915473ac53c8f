// SPDX-License-Identifier: Apache-2.0
// Which tensors a host keeps, and when each is fetched, for a placement and an order that there are
// (docs/explanation/host_memory.md). Beyond the paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/residency.h"
#include "baechi/plan/residency/stored_units.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// A step before anything is away, and the costs of its graph.
struct ResidencyProblem {
  const Unrolled& step;
  const CostModel& costs;
};

// Which of whole variables stay first, or are streamed first.
enum class StayFirst : std::uint8_t {
  kSpread,  // over the step
  kLate,    // those whose gradients come last, so that the host can begin early
  kLarge
};

// Whether a tensor is away before this reader, or stays since it was made or read before.
struct GivenGap {
  TensorId tensor;
  OpId reader;
  bool away = false;

  std::pair<TensorId, OpId> where() const { return {tensor, reader}; }
};

enum class UnitPlace : std::uint8_t {
  kAny,
  kStays,
  kStreamed,  // its variables are on the store
  kOnStore    // its updates, too
};

struct ResidencyPrefer {
  std::size_t lead =
      0;  // by how many operators a fetch is asked for before there is room, as it may wait for its link
  // Operators that take more than this part of a device's memory wait until what has been made is away.
  double waits = 1.0;
  double units = 0.0;  // the part of a device's memory that whole variables may take first
  double keep = 1.0;   // the part of a device's memory that may keep what could be away
  StayFirst first = StayFirst::kSpread;
  double streams =
      0.0;  // the part of what the host would take for updates that are streamed instead
  StayFirst streams_first = StayFirst::kSpread;
  bool overtakes = false;            // fetches are asked for when there is room, in whatever order
  IdVector<DeviceId, Bytes> memory;  // what devices may hold, by the account of the choice
  std::vector<GivenGap> given = {};  // sorted by where they are
  std::vector<UnitPlace> places = {};  // of units; may be empty

  UnitPlace place_of(std::size_t unit) const {
    return places.empty() ? UnitPlace::kAny : places[unit];
  }
  // Whether a tensor is away before a reader on a device with so much memory.
  bool is_away(const OpGraph& graph, TensorId tensor, std::optional<OpId> reader, Bytes there,
               bool otherwise) const;
};

// A placed graph (no operator on the store) with an estimate of when its operators run.
struct ResidencyStart {
  DeviceId store;
  Placement device;
  DeviceOrder order;
  IdVector<OpId, OpSlot> slots;
};

// Spread over the step, by fractional parts of the golden ratio's multiples; or first those that are
// needed last; or large ones.
std::vector<std::size_t> units_in_order(const OpGraph& graph, const ResidencyStart& start,
                                        const std::vector<StoredUnit>& units, StayFirst first);

// Those whose updates run on their devices: so much of the host's time as is preferred. Of those that are
// spread, the last, since the first ones stay.
std::vector<std::size_t> streamed_units(const OpGraph& graph, const Cluster& cluster,
                                        const ResidencyStart& start,
                                        const std::vector<StoredUnit>& units,
                                        const ResidencyPrefer& prefer);

// Keeps where it is what is idle for the shortest time, as far as memory allows; fetches the rest, in the
// order in which it is read, each fetch as early as memory allows.
Residency choose_residency(const ResidencyProblem& problem, const ResidencyStart& start,
                           const std::vector<StoredUnit>& units, const ResidencyPrefer& prefer);

}  // namespace baechi
