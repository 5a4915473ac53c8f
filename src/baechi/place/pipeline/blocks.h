// SPDX-License-Identifier: Apache-2.0
// What `pipeline` divides into stages: the graph of one micro-batch as a row of blocks. Beyond the
// paper.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/place/topological_sequences.h"

namespace baechi::pipeline {

using BlockId = Id<struct PipelineBlockTag>;

// When in a step an operator runs: once before all micro-batches, in the forward pass of each, in
// its backward pass where other blocks wait for it (gradients by inputs), in its backward pass
// where none does (gradients by weights), or once after all of them.
enum class Phase : std::uint8_t { kBefore, kForward, kInput, kWeight, kAfter };
inline constexpr std::size_t kPhases = 5;
inline constexpr std::array kEveryMicroBatch{Phase::kForward, Phase::kInput, Phase::kWeight};
constexpr std::size_t index(Phase phase) { return static_cast<std::size_t>(phase); }

struct BlockPart {  // the operators of one block that run in one phase
  BlockId block;
  Phase phase;
  friend auto operator<=>(const BlockPart&, const BlockPart&) = default;
};

// Tensors, or order without data, from one part to the same other parts.
struct Wire {
  BlockPart from;
  std::vector<BlockPart> to;  // ascending
  bool control = false;
  bool to_end = false;  // its tensors and all copies of them are held until the step ends
  Bytes bytes;          // of all its tensors
  Bytes largest;        // of one of them
};

// Blocks are runs of the forward pass in a topological order, each with the backward pass and the
// operators per step that belong to it. What must stay together is in one block, and no two parts
// of blocks wait for each other in a circle.
class Blocks {
 public:
  // At most about `max_blocks`, cut where little flows.
  Blocks(const CostModel& costs, const TopologicalSequence& sequence, std::size_t max_blocks);

  const CostModel& costs() const { return *costs_; }
  std::size_t size() const { return block_ops_.size(); }
  IdRange<BlockId> ids() const { return block_ops_.keys(); }
  BlockId block_of(OpId op) const { return block_of_[op]; }
  Phase phase_of(OpId op) const { return phase_of_[op]; }
  const std::vector<OpId>& ops(BlockId block) const { return block_ops_[block]; }  // topological
  const std::vector<Wire>& wires() const { return wires_; }

  // Whether it has operators of this phase.
  bool has(BlockId block, Phase phase) const { return has_[block][index(phase)]; }
  // Absent when some operator cannot run there.
  std::optional<Time> time(BlockId block, Phase phase, DeviceClassId device_class) const;
  bool may_run(BlockId block, DeviceId device) const;

  struct Memory {
    Bytes step;    // held all the time: permanent memory, and what gathers over micro-batches
    Bytes to_end;  // of each micro-batch until the step ends
    std::array<Bytes, kPhases> running{};  // while a part runs, beside what its wires hold
  };
  const Memory& memory(BlockId block) const { return memory_[block]; }

 private:
  void cut(const TopologicalSequence& sequence, std::size_t max_blocks);
  void find_phases();
  void sum_times();
  void sum_memory();
  void connect();

  const CostModel* costs_;
  IdVector<OpId, BlockId> block_of_;
  IdVector<OpId, Phase> phase_of_;
  IdVector<BlockId, std::vector<OpId>> block_ops_;
  IdVector<DeviceClassId, IdVector<BlockId, std::array<std::optional<Time>, kPhases>>> times_;
  IdVector<BlockId, std::array<bool, kPhases>> has_;
  IdVector<BlockId, std::vector<DeviceId>> pins_;
  IdVector<BlockId, Memory> memory_;
  std::vector<Wire> wires_;
};

}  // namespace baechi::pipeline
