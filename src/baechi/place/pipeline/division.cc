// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/pipeline/division.h"

#include <algorithm>
#include <limits>

namespace baechi::pipeline {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// The runs of blocks that stages may be, and what they cost.
class Program {
 public:
  Program(const RunCosts& costs, std::span<const DeviceId> order, const DivisionGoal& goal)
      : costs_(costs), order_(order), goal_(goal), cells_(order.size() + 1) {
    for (const DeviceId device : order)
      shares_.push_back(std::count(order.begin(), order.end(), device));
  }

  // The smallest possible largest load; kNever when nothing fits.
  std::int64_t most_even() {
    solve([](std::int64_t before, const Load& load) { return std::max(before, load.pace); },
          kNever);
    return cells_.back()[costs_.size()].value;
  }
  // The smallest sum of loads with none above `most`.
  std::optional<Division> shortest(std::int64_t most) {
    solve([](std::int64_t before, const Load& load) { return before + load.pass; }, most);
    if (cells_.back()[costs_.size()].value == kNever) return std::nullopt;
    Division division{IdVector<BlockId, StageId>(costs_.size(), StageId(0)), {}};
    for (const DeviceId device : order_) division.device.push_back(device);
    std::size_t end = costs_.size();
    for (std::size_t stage = order_.size(); stage-- > 0;) {
      const std::size_t begin = cells_[stage + 1][end].begin;
      for (std::size_t b = begin; b < end; ++b) division.stage_of[BlockId(b)] = StageId(stage);
      end = begin;
    }
    return division;
  }

 private:
  struct Cell {  // stages so far end before this block
    std::int64_t value = kNever;
    std::size_t begin = 0;  // of the last one
  };
  struct Load {
    std::int64_t pace;  // of its device or of the link into it, with its share
    std::int64_t pass;  // for one micro-batch, there and back
  };

  std::optional<Load> load(std::size_t stage, std::size_t first, std::size_t last) const {
    const DeviceId device = order_[stage];
    const auto work = costs_.work(first, last, costs_.blocks().costs().class_of(device));
    if (!work.has_value() || !costs_.may_run(first, last, device)) return std::nullopt;
    Time there, back;
    if (stage > 0 && order_[stage - 1] != device && first > 0) {
      const Cluster& cluster = costs_.blocks().costs().cluster();
      const DeviceId before = order_[stage - 1];
      if (const Bytes bytes = costs_.forward_border(first); bytes > Bytes(0))
        there = cluster.link(before, device).transfer_time(bytes);
      if (const Bytes bytes = costs_.backward_border(first); bytes > Bytes(0))
        back = cluster.link(device, before).transfer_time(bytes);
    }
    const Time step = costs_.per_step(first, last, costs_.blocks().costs().class_of(device));
    const Time pace = *work + Time(step.count() / goal_.micro_batches);
    return Load{std::max({pace, there, back}).count() * shares_[stage],
                (*work + there + back).count()};
  }

  // Permanent memory, what it keeps of all micro-batches that have begun, and one more that arrives.
  bool fits(std::size_t stage, std::size_t first, std::size_t last, Bytes running) const {
    const auto behind = static_cast<std::uint32_t>(order_.size() - stage);
    const std::uint32_t begun = std::min({goal_.micro_batches, goal_.most_begun, behind});
    const Bytes capacity = costs_.blocks().costs().cluster()[order_[stage]].capacity;
    const Bytes need = costs_.step(first, last) + costs_.to_end(first, last) * goal_.micro_batches +
                       costs_.kept(first, last) * begun + running +
                       (first > 0 ? costs_.forward_border(first) : Bytes(0));
    return need <= Bytes(capacity.count() / shares_[stage]);
  }

  template <class Combine>
  void solve(Combine&& combine, std::int64_t most) {
    const std::size_t end = costs_.size();
    for (auto& row : cells_) row.assign(end + 1, Cell{});
    cells_[0][0].value = 0;
    for (std::size_t stage = 0; stage < order_.size(); ++stage)
      for (std::size_t first = 0; first < end; ++first) {
        const std::int64_t before = cells_[stage][first].value;
        if (before == kNever) continue;
        Bytes running;
        for (std::size_t last = first + 1; last <= end; ++last) {
          running = std::max(running, costs_.running(last - 1));
          if (!fits(stage, first, last, running)) break;
          const std::optional<Load> own = load(stage, first, last);
          if (!own.has_value() || own->pace > most) break;  // it only grows
          const std::int64_t value = combine(before, *own);
          Cell& cell = cells_[stage + 1][last];
          if (value < cell.value) cell = {value, first};
        }
      }
  }

  const RunCosts& costs_;
  std::span<const DeviceId> order_;
  const DivisionGoal& goal_;
  std::vector<std::int64_t> shares_;
  std::vector<std::vector<Cell>> cells_;
};

}  // namespace

std::optional<Division> divide(const RunCosts& costs, std::span<const DeviceId> order,
                               const DivisionGoal& goal) {
  if (order.size() > costs.size()) return std::nullopt;
  Program program(costs, order, goal);
  const std::int64_t least = program.most_even();
  if (least == kNever) return std::nullopt;
  return program.shortest(scale_up(least, goal.load_percent, 100, "time"));
}

RunCosts::RunCosts(const Blocks& blocks) : blocks_(&blocks), size_(blocks.size()) {
  sum_times();
  sum_kept();
  sum_borders();
}

void RunCosts::sum_times() {
  const CostModel& costs = blocks_->costs();
  step_.assign(size_ + 1, Bytes(0));
  to_end_.assign(size_ + 1, Bytes(0));
  for (const BlockId block : blocks_->ids()) {
    const Blocks::Memory& memory = blocks_->memory(block);
    step_[block.index() + 1] = step_[block.index()] + memory.step;
    to_end_[block.index() + 1] = to_end_[block.index()] + memory.to_end;
    running_.emplace_back();
    for (const Phase phase : kEveryMicroBatch)
      running_.back() = std::max(running_.back(), memory.running[index(phase)]);
  }
  for (std::size_t c = 0; c < costs.num_classes(); ++c) {
    std::vector<Time> work(size_ + 1), per_step(size_ + 1);
    std::vector<std::uint32_t> cannot(size_ + 1, 0);
    for (const BlockId block : blocks_->ids()) {
      work[block.index() + 1] = work[block.index()];
      per_step[block.index() + 1] = per_step[block.index()];
      cannot[block.index() + 1] = cannot[block.index()];
      for (const Phase phase :
           {Phase::kBefore, Phase::kForward, Phase::kInput, Phase::kWeight, Phase::kAfter}) {
        const std::optional<Time> time = blocks_->time(block, phase, DeviceClassId(c));
        if (!time.has_value()) ++cannot[block.index() + 1];
        const bool once = phase == Phase::kBefore || phase == Phase::kAfter;
        (once ? per_step : work)[block.index() + 1] += time.value_or(Time(0));
      }
    }
    work_.push_back(std::move(work));
    per_step_.push_back(std::move(per_step));
    cannot_.push_back(std::move(cannot));
  }
}

std::optional<Time> RunCosts::work(std::size_t first, std::size_t last,
                                   DeviceClassId device_class) const {
  if (cannot_[device_class][first] != cannot_[device_class][last]) return std::nullopt;
  return work_[device_class][last] - work_[device_class][first];
}

bool RunCosts::may_run(std::size_t first, std::size_t last, DeviceId device) const {
  if (!blocks_->costs().has_pins()) return true;
  for (std::size_t block = first; block < last; ++block)
    if (!blocks_->may_run(BlockId(block), device)) return false;
  return true;
}

// A tensor is kept by the runs that hold a block whose backward pass reads it: by those whose first
// such block is q there are, for q after the previous one, first in (previous, q] and last > q.
void RunCosts::sum_kept() {
  const std::size_t side = size_ + 2;
  std::vector<std::int64_t> corner(side * side, 0);
  for (const Wire& wire : blocks_->wires()) {
    if (wire.control || wire.to_end || wire.from.phase != Phase::kForward) continue;
    std::size_t after_previous = 0;
    for (const BlockPart& reader : wire.to) {
      const std::size_t q = reader.block.index();
      if (reader.phase == Phase::kForward || q < after_previous) continue;
      corner[after_previous * side + q + 1] += wire.bytes.count();
      corner[(q + 1) * side + q + 1] -= wire.bytes.count();
      after_previous = q + 1;
    }
  }
  kept_.assign((size_ + 1) * (size_ + 1), 0);
  std::vector<std::int64_t> above(side, 0);
  for (std::size_t first = 0; first <= size_; ++first) {
    std::int64_t left = 0;
    for (std::size_t last = 0; last <= size_; ++last) {
      above[last] += corner[first * side + last];
      left += above[last];
      kept_[at(first, last)] = left;
    }
  }
}

void RunCosts::sum_borders() {
  std::vector<Bytes> forward(size_ + 1), backward(size_ + 1);
  for (const Wire& wire : blocks_->wires()) {
    if (wire.control) continue;
    const std::size_t from = wire.from.block.index();
    std::size_t low = from, high = from;
    for (const BlockPart& reader : wire.to) {
      // What the backward pass of a block keeps of another's forward pass goes along with it.
      low = std::min(low, reader.block.index());
      high = std::max(high, reader.block.index());
    }
    if (from < high) {
      forward[from + 1] += wire.bytes;
      if (high < size_) forward[high + 1] -= wire.bytes;
    }
    if (low < from) {
      backward[low + 1] += wire.bytes;
      backward[from + 1] -= wire.bytes;
    }
  }
  for (std::size_t i = 1; i <= size_; ++i) {
    forward[i] += forward[i - 1];
    backward[i] += backward[i - 1];
  }
  forward_border_ = std::move(forward);
  backward_border_ = std::move(backward);
}

}  // namespace baechi::pipeline
