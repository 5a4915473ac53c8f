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
    for (const Phase phase : {Phase::kBefore, Phase::kAfter})
      step.passing = std::max(step.passing, memory.running[index(phase)]);
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

// What the parts of blocks begin and end to hold. The backward pass runs its last block first.
struct StageGraph::Holding {
  using OfBlocks = IdVector<BlockId, std::array<Bytes, kPhases>>;
  OfBlocks begins, ends;

  static BlockId first(Phase phase, BlockId a, BlockId b) {
    return phase == Phase::kForward ? std::min(a, b) : std::max(a, b);
  }
  static BlockId last(Phase phase, BlockId a, BlockId b) {
    return phase == Phase::kForward ? std::max(a, b) : std::min(a, b);
  }
};

void StageGraph::add_wires(const Blocks& blocks, const Division& division) {
  const Holding::OfBlocks nothing(blocks.size());
  Holding holding{nothing, nothing};
  std::vector<LastReader> readers;
  for (const Wire& wire : blocks.wires()) {
    const Phase phase = wire.from.phase;
    const StageId stage = division.stage_of[wire.from.block];
    const bool within = std::all_of(wire.to.begin(), wire.to.end(), [&](const BlockPart& to) {
      return to.phase == phase && division.stage_of[to.block] == stage;
    });
    if (!within) {
      add_wire(wire, division, readers, holding);
    } else if (!wire.control && !wire.to_end) {
      const auto [low, high] =
          std::minmax({wire.from.block, wire.to.front().block, wire.to.back().block});
      holding.begins[Holding::first(phase, low, high)][index(phase)] += wire.bytes;
      holding.ends[Holding::last(phase, low, high)][index(phase)] += wire.bytes;
    }
  }
  IdVector<PartId, Bytes> held(parts_.size());
  for (const Phase phase : kEveryMicroBatch)
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const BlockId block(phase == Phase::kForward ? i : blocks.size() - 1 - i);
      const PartId here = part(division.stage_of[block], phase);
      Bytes& rise = parts_[here].rise;
      held[here] += holding.begins[block][index(phase)];
      rise = std::max(rise, held[here] + blocks.memory(block).running[index(phase)]);
      held[here] -= holding.ends[block][index(phase)];
    }
}

// `last` is room for what is found on every device that reads the wire: where that is done last.
void StageGraph::add_wire(const Wire& wire, const Division& division, std::vector<LastReader>& last,
                          Holding& holding) {
  const PartId from = part(division.stage_of[wire.from.block], wire.from.phase);
  const DeviceId home = parts_[from].device;
  last.clear();
  for (const BlockPart& reader : wire.to) {
    const PartId to = part(division.stage_of[reader.block], reader.phase);
    const DeviceId device = parts_[to].device;
    const auto known = std::ranges::find(last, device, &LastReader::device);
    if (known != last.end() && known->part == to) {
      known->block = Holding::last(reader.phase, known->block, reader.block);
      continue;
    }
    const bool sent = !wire.control && device != home;
    const std::uint32_t message =
        !sent ? 0 : (known != last.end() ? known->message : message_to(from, device));
    if (sent)
      read(message, to);
    else
      follow(from, to);
    if (known == last.end())
      last.push_back({device, to, reader.block, message});
    else if (later(parts_[to], parts_[known->part]))
      *known = {device, to, reader.block, message};
  }
  if (wire.control) return;
  const auto give_back = [&](const LastReader& reader) {
    parts_[reader.part].gives_back += wire.bytes;
    holding.ends[reader.block][index(parts_[reader.part].phase)] += wire.bytes;
  };
  bool held_at_home = false;
  for (const LastReader& reader : last) {
    if (reader.device == home) {
      held_at_home = true;
      if (!wire.to_end) give_back(reader);
      continue;
    }
    StageMessage& message = messages_[reader.message];
    message.size = side_by_side_ ? std::max(message.size, wire.largest) : message.size + wire.bytes;
    if (wire.to_end) {
      per_step_[reader.device].held += wire.bytes * micro_batches_;
    } else {
      message.held += wire.bytes;
      give_back(reader);
    }
  }
  if (wire.to_end) return;
  parts_[from].takes += wire.bytes;
  holding.begins[wire.from.block][index(wire.from.phase)] += wire.bytes;
  if (!held_at_home) parts_[from].gives_back += wire.bytes;  // sent when the part has ended
}

void StageGraph::follow(PartId from, PartId to) {
  std::vector<PartId>& followers = parts_[from].followers;
  if (from == to || std::find(followers.begin(), followers.end(), to) != followers.end()) return;
  followers.push_back(to);
  ++parts_[to].waits_for;
}

void StageGraph::read(std::uint32_t message, PartId to) {
  std::vector<PartId>& readers = messages_[message].readers;
  if (std::find(readers.begin(), readers.end(), to) != readers.end()) return;
  readers.push_back(to);
  ++parts_[to].waits_for;
}

std::uint32_t StageGraph::message_to(PartId from, DeviceId to) {
  for (const std::uint32_t number : parts_[from].messages)
    if (messages_[number].to == to) return number;
  const auto number = static_cast<std::uint32_t>(messages_.size());
  parts_[from].messages.push_back(number);
  messages_.push_back({.to = to, .size = {}, .held = {}, .readers = {}});
  return number;
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
