// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/pipeline/blocks.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "baechi/graph/unroll.h"
#include "baechi/place/pipeline/items.h"

namespace baechi::pipeline {
namespace {

Time any_time(const CostModel& costs, OpId op) {
  for (std::size_t c = 0; c < costs.num_classes(); ++c)
    if (const auto time = costs.class_times(DeviceClassId(c))[op]) return *time;
  return Time(0);
}

// For every place between two items of a row, the bytes that cross it in either direction.
std::vector<std::int64_t> crossing_bytes(const OpGraph& graph, const IdVector<OpId, bool>& once,
                                         const IdVector<OpId, std::uint32_t>& place,
                                         std::size_t items) {
  std::vector<std::int64_t> change(items + 1, 0);
  for (const TensorId tensor : graph.tensors()) {
    const OpId producer = graph.producer(tensor);
    if (once[producer]) continue;
    std::uint32_t low = place[producer], high = low;
    for (const Edge& edge : graph.consumers(tensor)) {
      if (once[edge.to]) continue;
      low = std::min(low, place[edge.to]);
      high = std::max(high, place[edge.to]);
    }
    change[low] += graph.size(tensor).count();
    change[high] -= graph.size(tensor).count();
  }
  for (std::size_t i = 1; i < change.size(); ++i) change[i] += change[i - 1];
  return change;  // [i]: between items i and i + 1
}

// Ends of runs that hold about an equal share of the weight each, where little crosses.
std::vector<std::size_t> run_ends(const std::vector<double>& weight,
                                  const std::vector<std::int64_t>& crossing,
                                  std::size_t most_runs) {
  std::vector<std::size_t> ends;
  if (weight.size() <= most_runs) {
    for (std::size_t i = 1; i <= weight.size(); ++i) ends.push_back(i);
    return ends;
  }
  double total = 0;
  for (const double w : weight) total += w;
  const double share = 1.5 * total / static_cast<double>(most_runs);
  for (std::size_t begin = 0; begin < weight.size();) {
    double held = 0;
    std::size_t best = begin + 1;
    for (std::size_t end = begin + 1; end <= weight.size(); ++end) {
      held += weight[end - 1];
      if (held > share && end > begin + 1) break;
      if (end == weight.size() || held < share / 3 || crossing[end - 1] <= crossing[best - 1])
        best = end;
    }
    ends.push_back(best);
    begin = best;
  }
  return ends;
}

}  // namespace

Blocks::Blocks(const CostModel& costs, const TopologicalSequence& sequence, std::size_t max_blocks)
    : costs_(&costs) {
  cut(sequence, max_blocks);
  find_phases();
  sum_times();
  sum_memory();
  connect();
}

void Blocks::cut(const TopologicalSequence& sequence, std::size_t max_blocks) {
  const OpGraph& graph = costs_->graph();
  const IdVector<OpId, bool> once = once_per_step(graph), backward = backward_ops(graph);
  UnionFind sets = items(*costs_, backward);
  std::vector<std::uint32_t> row = item_order(graph, backward, sets, sequence);

  std::vector<std::uint32_t> place_of(graph.num_ops(), 0);
  for (std::uint32_t i = 0; i < row.size(); ++i) place_of[row[i]] = i;
  IdVector<OpId, std::uint32_t> place(graph.num_ops());
  std::vector<double> weight(row.size(), 0);
  double time = 1, bytes = 1;
  for (const OpId op : graph.ops()) {
    place[op] = place_of[sets.find(op.value())];
    time += static_cast<double>(any_time(*costs_, op).count());
    bytes += static_cast<double>((graph[op].permanent + graph.output_bytes(op)).count());
  }
  for (const OpId op : graph.ops())
    weight[place[op]] +=
        static_cast<double>(any_time(*costs_, op).count()) / time +
        static_cast<double>((graph[op].permanent + graph.output_bytes(op)).count()) / bytes;

  std::size_t begin = 0;
  for (const std::size_t end :
       run_ends(weight, crossing_bytes(graph, once, place, row.size()), max_blocks)) {
    for (std::size_t i = begin + 1; i < end; ++i) sets.unite(row[begin], row[i]);
    begin = end;
  }
  unite_circles(graph, backward, sets);

  row = item_order(graph, backward, sets, sequence);
  for (std::uint32_t i = 0; i < row.size(); ++i) place_of[row[i]] = i;
  block_of_.assign(graph.num_ops(), BlockId(0));
  block_ops_ = IdVector<BlockId, std::vector<OpId>>(row.size());
  for (const OpId op : graph.topological_order()) {
    block_of_[op] = BlockId(place_of[sets.find(op.value())]);
    block_ops_[block_of_[op]].push_back(op);
  }
}

void Blocks::find_phases() {
  const OpGraph& graph = costs_->graph();
  const IdVector<OpId, bool> once = once_per_step(graph), backward = backward_ops(graph);
  phase_of_.assign(graph.num_ops(), Phase::kForward);
  IdVector<OpId, bool> escapes(graph.num_ops(), false);  // another block waits for it
  const auto order = graph.topological_order();
  for (std::size_t i = order.size(); i-- > 0;) {
    const OpId op = order[i];
    bool feeds_micro_batch = false;
    for (const Edge& edge : graph.out_edges(op)) {
      if (once[edge.to] ? phase_of_[edge.to] == Phase::kBefore : true) feeds_micro_batch = true;
      if (!once[edge.to] && (block_of_[edge.to] != block_of_[op] || escapes[edge.to]))
        escapes[op] = true;
    }
    if (once[op])
      phase_of_[op] = feeds_micro_batch ? Phase::kBefore : Phase::kAfter;
    else if (backward[op])
      phase_of_[op] = escapes[op] ? Phase::kInput : Phase::kWeight;
  }
}

void Blocks::sum_times() {
  const OpGraph& graph = costs_->graph();
  has_.resize(size());
  for (const OpId op : graph.ops()) has_[block_of_[op]][index(phase_of_[op])] = true;
  pins_.resize(size());
  for (const OpId op : graph.ops())
    if (const auto pin = costs_->pin(op)) pins_[block_of_[op]].push_back(*pin);
  for (std::size_t c = 0; c < costs_->num_classes(); ++c) {
    std::array<std::optional<Time>, kPhases> nothing;
    nothing.fill(Time(0));
    IdVector<BlockId, std::array<std::optional<Time>, kPhases>> sums(size(), nothing);
    const auto& times = costs_->class_times(DeviceClassId(c));
    for (const OpId op : graph.ops()) {
      std::optional<Time>& sum = sums[block_of_[op]][index(phase_of_[op])];
      if (!times[op].has_value()) sum.reset();
      if (sum.has_value()) *sum += *times[op];
    }
    times_.push_back(std::move(sums));
  }
}

std::optional<Time> Blocks::time(BlockId block, Phase phase, DeviceClassId device_class) const {
  return times_[device_class][block][index(phase)];
}

bool Blocks::may_run(BlockId block, DeviceId device) const {
  for (const DeviceId pin : pins_[block])
    if (pin != device) return false;
  const auto& times = times_[costs_->class_of(device)][block];
  return std::all_of(times.begin(), times.end(), [](const auto& time) { return time.has_value(); });
}

// What lives within one part counts while it runs; what lives longer is a wire's, or the step's.
void Blocks::sum_memory() {
  const OpGraph& graph = costs_->graph();
  memory_.resize(size());
  IdVector<TensorId, std::uint32_t> readers(graph.num_tensors(), 0);  // if all in one part
  for (const TensorId tensor : graph.tensors()) {
    const OpId producer = graph.producer(tensor);
    const auto here = [&](OpId op) {
      return block_of_[op] == block_of_[producer] && phase_of_[op] == phase_of_[producer];
    };
    const auto consumers = graph.consumers(tensor);
    const bool kept = consumers.empty() || graph.retains_outputs(producer);
    Memory& memory = memory_[block_of_[producer]];
    const Phase phase = phase_of_[producer];
    const bool per_step = phase == Phase::kBefore || phase == Phase::kAfter;
    if (kept) {
      (per_step ? memory.step : memory.to_end) += graph.home_size(tensor);
      continue;
    }
    const bool within = std::all_of(consumers.begin(), consumers.end(),
                                    [&](const Edge& edge) { return here(edge.to); });
    const bool gathers = std::any_of(consumers.begin(), consumers.end(), [&](const Edge& edge) {
      return phase_of_[edge.to] == Phase::kAfter;
    });
    if (within && phase != Phase::kBefore)
      readers[tensor] = static_cast<std::uint32_t>(consumers.size());
    else if (per_step || gathers)
      memory.step += graph.home_size(tensor);
  }
  for (const BlockId block : ids()) {
    std::array<Bytes, kPhases> held{};
    for (const OpId op : block_ops_[block]) {
      memory_[block].step += graph[op].permanent;
      Bytes& now = held[index(phase_of_[op])];
      Bytes& most = memory_[block].running[index(phase_of_[op])];
      for (const TensorId output : graph.outputs(op))
        if (readers[output] > 0) now += graph.home_size(output);
      most = std::max(most, now + graph[op].temporary);
      for (const Edge& edge : graph.in_edges(op)) {
        if (!edge.tensor.has_value() || readers[*edge.tensor] == 0) continue;
        readers[*edge.tensor] -= 1;
        if (readers[*edge.tensor] == 0) now -= graph.home_size(*edge.tensor);
      }
    }
  }
}

void Blocks::connect() {
  const OpGraph& graph = costs_->graph();
  const auto part = [&](OpId op) { return BlockPart{block_of_[op], phase_of_[op]}; };
  const auto per_micro_batch = [&](OpId op) {
    return phase_of_[op] != Phase::kBefore && phase_of_[op] != Phase::kAfter;
  };
  using Key = std::tuple<BlockPart, std::vector<BlockPart>, bool, bool>;
  std::map<Key, std::pair<Bytes, Bytes>> found;
  std::vector<BlockPart> to;
  const auto add = [&](OpId op, bool control, Bytes bytes) {
    const BlockPart from = part(op);
    std::sort(to.begin(), to.end());
    to.erase(std::unique(to.begin(), to.end()), to.end());
    if (to.empty() || (to.size() == 1 && to.front() == from)) return;
    auto& [sum, largest] = found[{from, to, control, !control && graph.retains_outputs(op)}];
    sum += bytes;
    largest = std::max(largest, bytes);
  };
  for (const OpId op : graph.ops()) {
    if (!per_micro_batch(op)) continue;
    for (const TensorId tensor : graph.outputs(op)) {
      to.clear();
      for (const Edge& edge : graph.consumers(tensor))
        if (per_micro_batch(edge.to)) to.push_back(part(edge.to));
      add(op, false, graph.size(tensor));
    }
    for (const Edge& edge : graph.out_edges(op)) {
      if (edge.tensor.has_value() || !per_micro_batch(edge.to)) continue;
      to.assign(1, part(edge.to));
      add(op, true, Bytes(0));
    }
  }
  for (const auto& [key, bytes] : found) {
    const auto& [from, readers, control, to_end] = key;
    wires_.push_back({from, readers, control, to_end, bytes.first, bytes.second});
  }
}

}  // namespace baechi::pipeline
