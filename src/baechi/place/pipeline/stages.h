// SPDX-License-Identifier: Apache-2.0
// Blocks as stages on devices: what a step of micro-batches looks like from that far. Beyond the
// paper.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/place/pipeline/blocks.h"

namespace baechi::pipeline {

using StageId = Id<struct PipelineStageTag>;
using PartId = Id<struct PipelinePartTag>;  // of a stage, what runs in one phase of a micro-batch

// The blocks of every stage, and its device. A device may have several stages. Stages are numbered
// so that forward tensors go from lower to higher ones.
struct Division {
  IdVector<BlockId, StageId> stage_of;
  IdVector<StageId, DeviceId> device;

  friend bool operator==(const Division&, const Division&) = default;
};

// Absent parts take no time and wait for nothing; nobody waits for them.
struct StagePart {
  StageId stage{0};
  Phase phase = Phase::kForward;
  DeviceId device{0};
  bool present = false;
  Time time;
  Bytes takes;                          // of each micro-batch, by its end
  Bytes gives_back;                     // by its end
  Bytes rise;                           // the most that it holds more than at its start
  std::uint32_t waits_for = 0;          // parts on its device, order without data, messages
  std::vector<PartId> followers;        // that it lets go at once
  std::vector<std::uint32_t> messages;  // that it sends
};

// All that one part sends to one device, for the parts there that read it.
struct StageMessage {
  DeviceId to{0};
  Bytes size;  // that takes as long as its tensors do
  Bytes held;  // by the receiver, until readers give it back
  std::vector<PartId> readers;
};

class StageGraph {
 public:
  StageGraph(const Blocks& blocks, const Division& division, std::uint32_t micro_batches);

  std::uint32_t micro_batches() const { return micro_batches_; }
  std::size_t num_stages() const { return parts_.size() / kEveryMicroBatch.size(); }
  IdRange<StageId> stages() const { return IdRange<StageId>(num_stages()); }
  IdRange<PartId> parts() const { return parts_.keys(); }
  const StagePart& operator[](PartId part) const { return parts_[part]; }
  static PartId part(StageId stage, Phase phase) {
    return PartId(stage.index() * kEveryMicroBatch.size() + index(phase) - index(Phase::kForward));
  }
  const StageMessage& message(std::uint32_t number) const { return messages_[number]; }
  // Forward first, then gradients by inputs, then by weights; the present ones.
  const std::vector<PartId>& parts_on(DeviceId device) const { return parts_on_[device]; }

  struct PerStep {  // of a device
    Time before, after;
    Bytes held;     // permanent memory and all else that is held from begin to end
    Bytes passing;  // by what runs once, besides
  };
  const PerStep& per_step(DeviceId device) const { return per_step_[device]; }

  // How many stages there are on the longest way from the stage to the last one, itself included.
  const IdVector<StageId, std::uint32_t>& depth() const { return depth_; }

 private:
  void add_parts(const Blocks& blocks, const Division& division);
  void add_wires(const Blocks& blocks, const Division& division);
  struct LastReader {
    DeviceId device;
    PartId part;
    BlockId block;
    std::uint32_t message;  // to a device other than the wire's
  };
  struct Holding;
  void add_wire(const Wire& wire, const Division& division, std::vector<LastReader>& last,
                Holding& holding);
  void follow(PartId from, PartId to);
  void read(std::uint32_t message, PartId to);
  std::uint32_t message_to(PartId from, DeviceId to);
  void find_depths();

  std::uint32_t micro_batches_;
  bool side_by_side_;  // transfers do not wait for each other
  IdVector<PartId, StagePart> parts_;
  std::vector<StageMessage> messages_;
  IdVector<DeviceId, std::vector<PartId>> parts_on_;
  IdVector<DeviceId, PerStep> per_step_;
  IdVector<StageId, std::uint32_t> depth_;
};

}  // namespace baechi::pipeline
