// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/pipeline/stages.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace baechi::pipeline {
namespace {

// Whether `a` runs after `b` in a micro-batch, as far as phases and stages tell.
bool later(const StagePart& a, const StagePart& b) {
  if (a.phase != b.phase) return a.phase > b.phase;
  return a.phase == Phase::kForward ? a.stage > b.stage : a.stage < b.stage;
}

}  // namespace

StageGraph::StageGraph(const Blocks& blocks, const Division& division, std::uint32_t micro_batches)
    : micro_batches_(micro_batches),
      side_by_side_(blocks.costs().cluster().communication() == CommunicationMode::kParallel &&
                    !blocks.costs().cluster().sends_block()),
      parts_(division.device.size() * kEveryMicroBatch.size()),
      parts_on_(blocks.costs().cluster().num_devices()),
      per_step_(blocks.costs().cluster().num_devices()) {
  add_parts(blocks, division);
  add_wires(blocks, division);
  // A stage goes through its phases one by one, even where no tensor says so.
  for (const StageId stage : division.device.keys()) {
    std::optional<PartId> last;
    for (const Phase phase : kEveryMicroBatch) {
      const PartId here = part(stage, phase);
      if (!parts_[here].present) continue;
      if (last.has_value()) follow(*last, here);
      last = here;
    }
  }
  for (const Phase phase : kEveryMicroBatch)
    for (const StageId stage : division.device.keys())
      if (const PartId here = part(stage, phase); parts_[here].present)
        parts_on_[parts_[here].device].push_back(here);
  find_depths();
}

void StageGraph::add_parts(const Blocks& blocks, const Division& division) {
  const CostModel& costs = blocks.costs();
  for (const StageId stage : division.device.keys())
    for (const Phase phase : kEveryMicroBatch) {
      StagePart& made = parts_[part(stage, phase)];
      made.stage = stage;
      made.phase = phase;
      made.device = division.device[stage];
    }
  for (const BlockId block : blocks.ids()) {
    const StageId stage = division.stage_of[block];
    const DeviceId device = division.device[stage];
    const DeviceClassId of = costs.class_of(device);
    const Blocks::Memory& memory = blocks.memory(block);
    PerStep& step = per_step_[device];
    step.held += memory.step + memory.to_end * micro_batches_;
    step.before += blocks.time(block, Phase::kBefore, of).value_or(Time(0));
    step.after += blocks.time(block, Phase::kAfter, of).value_or(Time(0));
    for (const Phase phase : kEveryMicroBatch) {
      if (!blocks.has(block, phase)) continue;
      StagePart& made = parts_[part(stage, phase)];
      made.present = true;
      made.time += blocks.time(block, phase, of).value_or(Time(0));
    }
  }
}

// Wires that stay within a part take memory from their first block to their last.
void StageGraph::add_wires(const Blocks& blocks, const Division& division) {
  IdVector<BlockId, std::array<Bytes, kPhases>> begins(blocks.size() + 1), ends(blocks.size() + 1);
  LastReaders last;
  for (const Wire& wire : blocks.wires()) {
    const PartId from = part(division.stage_of[wire.from.block], wire.from.phase);
    const bool within = std::all_of(wire.to.begin(), wire.to.end(), [&](const BlockPart& to) {
      return part(division.stage_of[to.block], to.phase) == from;
    });
    if (!within) {
      add_wire(wire, division, last);
    } else if (!wire.control && !wire.to_end) {
      const auto [low, high] =
          std::minmax({wire.from.block, wire.to.front().block, wire.to.back().block});
      begins[low][index(wire.from.phase)] += wire.bytes;
      ends[high][index(wire.from.phase)] += wire.bytes;
    }
  }
  std::array<Bytes, kPhases> held{};
  for (const BlockId block : blocks.ids())
    for (const Phase phase : kEveryMicroBatch) {
      held[index(phase)] += begins[block][index(phase)];
      Bytes& running = parts_[part(division.stage_of[block], phase)].running;
      running = std::max(running, blocks.memory(block).running[index(phase)] + held[index(phase)]);
      held[index(phase)] -= ends[block][index(phase)];
    }
}

// `last` is room for what is found on every device that reads the wire: the part that does so last.
void StageGraph::add_wire(const Wire& wire, const Division& division, LastReaders& last) {
  const PartId from = part(division.stage_of[wire.from.block], wire.from.phase);
  const DeviceId home = parts_[from].device;
  last.clear();
  for (const BlockPart& reader : wire.to) {
    const PartId to = part(division.stage_of[reader.block], reader.phase);
    const DeviceId device = parts_[to].device;
    if (wire.control || device == home) {
      follow(from, to);
    } else {
      std::vector<PartId>& readers = message_to(from, device).readers;
      if (std::find(readers.begin(), readers.end(), to) == readers.end()) {
        readers.push_back(to);
        ++parts_[to].waits_for;
      }
    }
    const auto known = std::find_if(last.begin(), last.end(),
                                    [&](const auto& entry) { return entry.first == device; });
    if (known == last.end())
      last.emplace_back(device, to);
    else if (later(parts_[to], parts_[known->second]))
      known->second = to;
  }
  if (wire.control) return;
  bool held_at_home = false;
  for (const auto& [device, reader] : last) {
    if (device == home) {
      held_at_home = true;
      if (!wire.to_end) parts_[reader].gives_back += wire.bytes;
      continue;
    }
    StageMessage& message = message_to(from, device);
    message.size = side_by_side_ ? std::max(message.size, wire.largest) : message.size + wire.bytes;
    if (wire.to_end) {
      per_step_[device].held += wire.bytes * micro_batches_;
    } else {
      message.held += wire.bytes;
      parts_[reader].gives_back += wire.bytes;
    }
  }
  if (wire.to_end) return;
  parts_[from].takes += wire.bytes;
  if (!held_at_home) parts_[from].gives_back += wire.bytes;
}

void StageGraph::follow(PartId from, PartId to) {
  std::vector<PartId>& followers = parts_[from].followers;
  if (from == to || std::find(followers.begin(), followers.end(), to) != followers.end()) return;
  followers.push_back(to);
  ++parts_[to].waits_for;
}

StageMessage& StageGraph::message_to(PartId from, DeviceId to) {
  for (const std::uint32_t number : parts_[from].messages)
    if (messages_[number].to == to) return messages_[number];
  parts_[from].messages.push_back(static_cast<std::uint32_t>(messages_.size()));
  messages_.push_back({.to = to, .size = {}, .held = {}, .readers = {}});
  return messages_.back();
}

void StageGraph::find_depths() {
  depth_.assign(num_stages(), 1);
  for (std::size_t i = num_stages(); i-- > 0;) {
    const StagePart& forward = parts_[part(StageId(i), Phase::kForward)];
    const auto behind = [&](PartId next) {
      if (parts_[next].phase == Phase::kForward && parts_[next].stage > StageId(i))
        depth_[StageId(i)] = std::max(depth_[StageId(i)], depth_[parts_[next].stage] + 1);
    };
    for (const PartId next : forward.followers) behind(next);
    for (const std::uint32_t number : forward.messages)
      for (const PartId next : messages_[number].readers) behind(next);
  }
}

}  // namespace baechi::pipeline
