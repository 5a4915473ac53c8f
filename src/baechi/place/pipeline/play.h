// SPDX-License-Identifier: Apache-2.0
// The order in which devices work off the parts of micro-batches: by one greedy rule, or as given.
// Beyond the paper.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"
#include "baechi/place/pipeline/stages.h"

namespace baechi::pipeline {

struct Action {  // one part for one micro-batch
  PartId part{0};
  std::uint32_t micro_batch = 0;
  friend bool operator==(const Action&, const Action&) = default;
};
using Actions = IdVector<DeviceId, std::vector<Action>>;

// A free device runs the gradient by the inputs of the first micro-batch for which it can, else a
// forward pass, if the stage holds less than `most_begun` micro-batches that it has not sent back
// and memory allows, else a gradient by weights. Room is kept for all that a micro-batch will still
// need on a device which has begun it: so the devices never wait for each other in a circle.
struct Rule {
  IdVector<StageId, std::uint32_t> most_begun;
  bool forward_first = false;      // before gradients by inputs
  bool weights_at_once = false;    // before all else, as if the backward pass were one
  bool later_stages_first = true;  // of a device's stages, for forward passes
  bool eager = false;              // begins where gradients will replace activations
};

// What a step would take and hold, as far as parts tell.
struct Played {
  bool finished = false;     // else the actions wait for each other
  bool lacked_room = false;  // at some time, to begin another micro-batch
  Time makespan;
  IdVector<DeviceId, Bytes> peaks;
  Actions actions;
};

// Keeps its memory from play to play.
class Player {
 public:
  explicit Player(const Cluster& cluster);
  ~Player();
  Player(Player&&) noexcept;

  // What it returns is valid until the next play. `room` is what each device may hold.
  const Played& by_rule(const StageGraph& graph, const Rule& rule,
                        const IdVector<DeviceId, Bytes>& room);
  // Requires that every present part occurs once for every micro-batch, on its device.
  const Played& as_given(const StageGraph& graph, const Actions& actions);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baechi::pipeline
