// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/chain/chain_costs.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "baechi/base/assert.h"
#include "baechi/optimize/mean_link.h"
#include "baechi/place/kept_together.h"

namespace baechi {
namespace {

// What stays together, by its first operator in the sequence.
IdVector<OpId, std::uint32_t> items(const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  UnionFind sets = kept_together(costs);
  IdVector<OpId, std::uint32_t> item(graph.num_ops());
  for (const OpId op : graph.ops()) item[op] = sets.find(op.value());
  return item;
}

Time any_time(const CostModel& costs, OpId op) {
  for (const DeviceId device : costs.cluster().devices())
    if (const auto time = costs.compute_time(op, device)) return *time;
  return Time(0);
}

bool kept_to_the_end(const OpGraph& graph, TensorId tensor) {
  return graph.consumers(tensor).empty() || graph.retains_outputs(graph.producer(tensor));
}

}  // namespace

BlockRow make_blocks(const CostModel& costs, const TopologicalSequence& sequence,
                     std::size_t max_blocks) {
  const OpGraph& graph = costs.graph();
  const IdVector<OpId, std::uint32_t> item = items(costs);
  const auto weight = [&](OpId op) {
    return std::pair(static_cast<double>(any_time(costs, op).count()),
                     static_cast<double>((graph[op].permanent + graph.output_bytes(op)).count()));
  };
  std::vector<double> item_time(graph.num_ops(), 0), item_bytes(graph.num_ops(), 0);
  std::vector<std::optional<DeviceId>> item_pin(graph.num_ops());
  double time = 1, bytes = 1;
  for (const OpId op : graph.ops()) {
    const auto [op_time, op_bytes] = weight(op);
    item_time[item[op]] += op_time;
    item_bytes[item[op]] += op_bytes;
    time += op_time;
    bytes += op_bytes;
    if (costs.pin(op).has_value()) item_pin[item[op]] = costs.pin(op);
  }

  // A block closes when it holds its share of time or memory, or when the pin changes.
  BlockRow row{IdVector<OpId, BlockId>(graph.num_ops(), BlockId(0)), 0};
  std::vector<std::optional<BlockId>> block_of_item(graph.num_ops());
  const double share = 2.0 / static_cast<double>(max_blocks);
  double filled = 0;
  std::optional<DeviceId> pin;
  for (const OpId op : sequence) {
    std::optional<BlockId>& block = block_of_item[item[op]];
    if (!block.has_value()) {
      if (row.num_blocks == 0 || filled >= share || pin != item_pin[item[op]]) {
        ++row.num_blocks;
        filled = 0;
      }
      pin = item_pin[item[op]];
      filled += item_time[item[op]] / time + item_bytes[item[op]] / bytes;
      block = BlockId(row.num_blocks - 1);
    }
    row.block_of[op] = *block;
  }
  return row;
}

SegmentCosts::SegmentCosts(const CostModel& costs, const TopologicalSequence& sequence,
                           const BlockRow& row)
    : costs_(costs),
      num_blocks_(row.num_blocks),
      incoming_((num_blocks_ + 1) * (num_blocks_ + 1), 0),
      memory_((num_blocks_ + 1) * (num_blocks_ + 1), 0) {
  sum_times(costs, row);
  sum_incoming(costs, row);
  sum_memory(costs, sequence, row);
}

void SegmentCosts::sum_times(const CostModel& costs, const BlockRow& row) {
  pin_.resize(num_blocks_);
  for (const OpId op : costs.graph().ops())
    if (costs.pin(op).has_value()) pin_[row.block_of[op].index()] = costs.pin(op);
  for (std::size_t c = 0; c < costs.num_classes(); ++c) {
    std::vector<std::int64_t> time(num_blocks_ + 1, 0);
    std::vector<std::uint32_t> cannot(num_blocks_ + 1, 0);
    const auto& times = costs.class_times(DeviceClassId(c));
    for (const OpId op : costs.graph().ops()) {
      const std::size_t block = row.block_of[op].index() + 1;
      if (times[op].has_value())
        time[block] = (Time(time[block]) + *times[op]).count();
      else
        ++cannot[block];
    }
    for (std::size_t b = 0; b < num_blocks_; ++b) {
      time[b + 1] = (Time(time[b + 1]) + Time(time[b])).count();
      cannot[b + 1] += cannot[b];
    }
    time_before_.push_back(std::move(time));
    cannot_before_.push_back(std::move(cannot));
  }
}

std::optional<Time> SegmentCosts::compute(std::size_t first, std::size_t last,
                                          DeviceClassId device_class) const {
  const auto& cannot = cannot_before_[device_class];
  if (cannot[last] != cannot[first]) return std::nullopt;
  const auto& before = time_before_[device_class];
  return Time(before[last] - before[first]);
}

bool SegmentCosts::may_run(std::size_t first, std::size_t last, DeviceId device) const {
  if (!compute(first, last, costs_.class_of(device)).has_value()) return false;
  if (!costs_.has_pins()) return true;
  return std::all_of(pin_.begin() + static_cast<std::ptrdiff_t>(first),
                     pin_.begin() + static_cast<std::ptrdiff_t>(last),
                     [&](const auto& pin) { return pin.value_or(device) == device; });
}

// A tensor of block p with readers in blocks q1 < q2 < ... enters the segments that hold some q but
// not p. For each pair (b, first): going from segment first .. b-1 to first .. b adds the tensors
// that b reads, comes from outside and was not read before, and takes away those b makes.
void SegmentCosts::sum_incoming(const CostModel& costs, const BlockRow& row) {
  const OpGraph& graph = costs.graph();
  const MeanLink send(costs.cluster());
  struct Wire {  // a tensor that several blocks touch
    std::size_t maker;
    std::int64_t time;
    std::vector<std::size_t> readers;  // ascending, without the maker
  };
  std::vector<Wire> wires;
  for (const TensorId tensor : graph.tensors()) {
    Wire wire{row.block_of[graph.producer(tensor)].index(), 0, {}};
    for (const Edge& edge : graph.consumers(tensor))
      if (row.block_of[edge.to].index() != wire.maker)
        wire.readers.push_back(row.block_of[edge.to].index());
    if (wire.readers.empty()) continue;
    std::sort(wire.readers.begin(), wire.readers.end());
    wire.readers.erase(std::unique(wire.readers.begin(), wire.readers.end()), wire.readers.end());
    wire.time = send.transfer_time(graph.size(tensor)).count();
    wires.push_back(std::move(wire));
  }

  // incoming(first, last) = sum over wires of [some reader in it] - [some reader and the maker].
  // Both are differences over (first, last): a set of blocks is met by the segments that are not
  // wholly within one of its gaps.
  const std::size_t side = num_blocks_ + 1;
  std::vector<std::int64_t> corner((side + 1) * (side + 1), 0);
  // Adds `time` to all segments with low <= first <= high and low2 <= last <= high2.
  const auto add = [&](std::size_t low, std::size_t high, std::size_t low2, std::size_t high2,
                       std::int64_t time) {
    corner[low * (side + 1) + low2] += time;
    corner[(high + 1) * (side + 1) + low2] -= time;
    corner[low * (side + 1) + high2 + 1] -= time;
    corner[(high + 1) * (side + 1) + high2 + 1] += time;
  };
  for (const Wire& wire : wires) {
    // Segments whose first reader is q: first in (previous reader, q], last in [q + 1, end]; of
    // those, the ones that do not hold the maker.
    std::size_t after_previous = 0;
    for (const std::size_t q : wire.readers) {
      const std::size_t p = wire.maker;
      if (p < q) {  // first > p, unless the previous reader says more
        const std::size_t low = std::max(after_previous, p + 1);
        if (low <= q) add(low, q, q + 1, num_blocks_, wire.time);
      } else {  // last <= p
        add(after_previous, q, q + 1, p, wire.time);
      }
      after_previous = q + 1;
    }
  }
  std::vector<std::int64_t> above(side + 1, 0);
  for (std::size_t first = 0; first < side; ++first) {
    std::int64_t left = 0;
    for (std::size_t last = 0; last < side; ++last) {
      above[last] += corner[first * (side + 1) + last];
      left += above[last];
      incoming_[at(first, last)] = left;
    }
  }
}

// For each first block, extends the segment block by block and keeps the memory at every moment of
// the sequence as differences.
void SegmentCosts::sum_memory(const CostModel& costs, const TopologicalSequence& sequence,
                              const BlockRow& row) {
  const OpGraph& graph = costs.graph();
  constexpr std::size_t kMoments = 512;
  const std::size_t steps = std::max<std::size_t>(1, (sequence.size() + kMoments - 1) / kMoments);
  IdVector<OpId, std::uint32_t> moment(sequence.size());
  for (std::size_t i = 0; i < sequence.size(); ++i)
    moment[sequence[i]] = static_cast<std::uint32_t>(i / steps);

  struct Life {  // of a tensor on one block's device, if neighbours do not hold it already
    std::uint32_t begin, end;  // moments, both included
    std::int64_t bytes;
    std::uint32_t tensor;
  };
  std::vector<std::vector<Life>> lives(num_blocks_);
  std::vector<std::int64_t> permanent(num_blocks_, 0), temporary(num_blocks_, 0);
  const std::uint32_t end_of_step = sequence.empty() ? 0 : moment[sequence.back()];
  for (const OpId op : graph.ops()) {
    const std::size_t block = row.block_of[op].index();
    permanent[block] = (Bytes(permanent[block]) + graph[op].permanent).count();
    temporary[block] = std::max(temporary[block], graph[op].temporary.count());
  }
  std::vector<std::size_t> touched;
  for (const TensorId tensor : graph.tensors()) {
    const OpId producer = graph.producer(tensor);
    std::uint32_t last = moment[producer];
    touched.assign(1, row.block_of[producer].index());
    for (const Edge& edge : graph.consumers(tensor)) {
      last = std::max(last, moment[edge.to]);
      touched.push_back(row.block_of[edge.to].index());
    }
    if (kept_to_the_end(graph, tensor)) last = end_of_step;
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    for (const std::size_t block : touched)
      lives[block].push_back(
          {moment[producer], last,
           (block == row.block_of[producer].index() ? graph.home_size(tensor) : graph.size(tensor))
               .count(),
           tensor.value()});
  }

  std::vector<std::uint32_t> held_since(graph.num_tensors(), 0);  // first + 1 of the last row
  std::vector<std::int64_t> change(end_of_step + 2, 0);
  for (std::size_t first = 0; first < num_blocks_; ++first) {
    std::fill(change.begin(), change.end(), 0);
    Bytes fixed, scratch;
    for (std::size_t last = first + 1; last <= num_blocks_; ++last) {
      const std::size_t block = last - 1;
      fixed += Bytes(permanent[block]);
      scratch = std::max(scratch, Bytes(temporary[block]));
      for (const Life& life : lives[block]) {
        if (std::exchange(held_since[life.tensor], static_cast<std::uint32_t>(first + 1)) ==
            first + 1)
          continue;
        change[life.begin] += life.bytes;
        change[life.end + 1] -= life.bytes;
      }
      std::int64_t now = 0, peak = 0;
      for (const std::int64_t step : change) peak = std::max(peak, now += step);
      memory_[at(first, last)] = (fixed + scratch + Bytes(peak)).count();
    }
  }
}

}  // namespace baechi
