// SPDX-License-Identifier: Apache-2.0
// chain: cuts one topological sequence into segments, one per device, by dynamic programming.
// Beyond the paper: list scheduling places operator by operator and pays for every edge it cuts;
// where communication dominates or memory is tight, few cuts in the right places win.
//
// Exact for its sequence, blocks and stated cost, over all ways to cut and all ways to hand the
// segments to devices (each device at most one segment, idle devices allowed), subject to memory by
// lifetime: the cost of a segment is its compute time on its device and the time to receive what it
// reads, over the mean link. Three ways to add segments up, since nobody knows beforehand how much
// of the work overlaps: their sum (nothing does), their maximum (everything does), and the maximum
// of compute or communication. Every candidate is simulated, and the best one that fits is kept.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "baechi/place/allowed_devices.h"
#include "baechi/place/chain/chain_costs.h"
#include "baechi/place/placer.h"
#include "baechi/place/topological_sequences.h"
#include "baechi/simulate/execution_simulator.h"

namespace baechi {
namespace {

enum class Objective : std::uint8_t { kSum, kMaximum, kOverlappedMaximum };
constexpr std::array kChainObjectives{Objective::kSum, Objective::kMaximum,
                                      Objective::kOverlappedMaximum};

// Devices that the program need not tell apart.
struct DeviceType {
  std::vector<DeviceId> devices;
  DeviceClassId device_class;
  Bytes capacity;
  std::size_t stride = 1;  // of its count in the number of a state
};

// Usually by class and capacity, no more of each than there can be segments. With pins, or with so
// many types that their counts make too many states, every device is a type of its own, and
// `in_order` makes devices be used in id order only.
struct DeviceTypes {
  std::vector<DeviceType> types;
  std::size_t states = 1;
  bool in_order = false;
};

DeviceTypes device_types(const CostModel& costs) {
  constexpr std::size_t kMostStates = 512, kMostSegments = 96;
  const Cluster& cluster = costs.cluster();
  DeviceTypes result;
  for (const DeviceId device : cluster.devices()) {
    const auto alike = [&](const DeviceType& type) {
      return !costs.has_pins() && type.device_class == costs.class_of(device) &&
             type.capacity == cluster[device].capacity;
    };
    auto type = std::find_if(result.types.begin(), result.types.end(), alike);
    if (type == result.types.end())
      type = result.types.insert(type, {{}, costs.class_of(device), cluster[device].capacity});
    if (type->devices.size() < kMostSegments) type->devices.push_back(device);
  }
  for (DeviceType& type : result.types) {
    type.stride = result.states;
    result.states *= type.devices.size() + 1;
    if (result.states > kMostStates) result.in_order = true;
    if (result.in_order) break;
  }
  if (!result.in_order) return result;
  result.types.clear();
  for (const DeviceId device : cluster.devices())
    result.types.push_back({{device}, costs.class_of(device), cluster[device].capacity, 1});
  result.states = cluster.num_devices() + 1;
  return result;
}

struct Segment {
  std::size_t first, last;  // blocks first .. last-1
  std::size_t type;
};

class Program {
 public:
  Program(const SegmentCosts& segments, const DeviceTypes& devices, std::int64_t capacity_percent,
          const CancelFlag* cancel)
      : segments_(segments),
        devices_(devices),
        capacity_percent_(capacity_percent),
        cancel_(cancel) {}

  // The best cut, in block order; nothing when no cut keeps within memory.
  std::optional<std::vector<Segment>> solve(Objective objective);

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  struct Cell {  // the blocks before this one are done with the devices that the state counts
    std::int64_t value = kNever;
    std::size_t first = 0, from_state = 0, type = 0;
  };

  std::size_t at(std::size_t state, std::size_t block) const {
    return state * (segments_.num_blocks() + 1) + block;
  }
  std::int64_t cost(Objective objective, const Segment& segment) const;
  void extend(Objective objective, std::size_t state, std::size_t type);

  const SegmentCosts& segments_;
  const DeviceTypes& devices_;
  std::int64_t capacity_percent_;
  const CancelFlag* cancel_;
  std::vector<Cell> cells_;
};

std::int64_t Program::cost(Objective objective, const Segment& segment) const {
  const DeviceType& type = devices_.types[segment.type];
  const std::optional<Time> compute =
      segments_.compute(segment.first, segment.last, type.device_class);
  if (!compute.has_value()) return kNever;
  const Time incoming = segments_.incoming(segment.first, segment.last);
  if (objective == Objective::kOverlappedMaximum) return std::max(*compute, incoming).count();
  return (*compute + incoming).count();
}

// All ways to give the next segment to a device of `type`.
void Program::extend(Objective objective, std::size_t state, std::size_t type) {
  const DeviceType& of = devices_.types[type];
  const std::size_t next = state + of.stride;
  const Bytes capacity = Bytes(scale_up(of.capacity.count(), capacity_percent_, 100, "memory"));
  for (std::size_t first = 0; first < segments_.num_blocks(); ++first) {
    const std::int64_t before = cells_[at(state, first)].value;
    if (before == kNever) continue;
    for (std::size_t last = first + 1; last <= segments_.num_blocks(); ++last) {
      if (segments_.memory(first, last) > capacity) break;  // it only grows
      if (!segments_.may_run(first, last, of.devices.front())) break;
      const std::int64_t own = cost(objective, {first, last, type});
      const std::int64_t value =
          objective == Objective::kSum ? (Time(before) + Time(own)).count() : std::max(before, own);
      Cell& cell = cells_[at(next, last)];
      if (value < cell.value) cell = {value, first, state, type};
    }
  }
}

std::optional<std::vector<Segment>> Program::solve(Objective objective) {
  const std::size_t end = segments_.num_blocks();
  cells_.assign(devices_.states * (end + 1), Cell{});
  cells_[at(0, 0)].value = 0;
  for (std::size_t state = 0; state < devices_.states; ++state) {
    throw_if_cancelled(cancel_);
    if (devices_.in_order) {
      if (state == devices_.types.size()) break;
      for (std::size_t block = 0; block <= end; ++block)  // this device may stay idle
        cells_[at(state + 1, block)] = cells_[at(state, block)];
      extend(objective, state, state);
      continue;
    }
    for (std::size_t type = 0; type < devices_.types.size(); ++type) {
      const DeviceType& of = devices_.types[type];
      if ((state / of.stride) % (of.devices.size() + 1) < of.devices.size())
        extend(objective, state, type);
    }
  }

  std::size_t state = 0;
  for (std::size_t other = 1; other < devices_.states; ++other)
    if (cells_[at(other, end)].value < cells_[at(state, end)].value) state = other;
  if (cells_[at(state, end)].value == kNever) return std::nullopt;
  std::vector<Segment> cut;
  for (std::size_t block = end; block > 0;) {
    const Cell& cell = cells_[at(state, block)];
    cut.push_back({cell.first, block, cell.type});
    block = cell.first;
    state = cell.from_state;
  }
  std::reverse(cut.begin(), cut.end());
  return cut;
}

Placement placement_by(const std::vector<Segment>& cut, const BlockRow& row,
                       const DeviceTypes& devices) {
  IdVector<BlockId, DeviceId> device_of(row.num_blocks, DeviceId(0));
  std::vector<std::size_t> used(devices.types.size(), 0);
  for (const Segment& segment : cut) {
    const DeviceId device = devices.types[segment.type].devices[used[segment.type]++];
    for (std::size_t block = segment.first; block < segment.last; ++block)
      device_of[BlockId(block)] = device;
  }
  Placement placement;
  placement.reserve(row.block_of.size());
  for (const BlockId block : row.block_of) placement.push_back(device_of[block]);
  return placement;
}

PlacedGraph with_order(const Placement& placement, const TopologicalSequence& sequence,
                       std::size_t num_devices) {
  PlacedGraph placed{placement, DeviceOrder(num_devices)};
  for (const OpId op : sequence) (*placed.order)[placement[op]].push_back(op);
  return placed;
}

// Keeps the candidate that fits and is fastest; while none fits, the one that runs over least.
class Best {
 public:
  Best(const CostModel& costs, const PlaceOptions& options) : costs_(costs), options_(options) {}

  void offer(PlacedGraph candidate) {
    candidate = as_executed(std::move(candidate), options_.order, costs_.graph(),
                            costs_.cluster().num_devices());
    const Trace trace = simulate(costs_, candidate, {.cancel = options_.cancel});
    const std::pair key(total_excess(trace, costs_.cluster()), trace.schedule.makespan);
    if (placed_.has_value() && key >= key_) return;
    key_ = key;
    placed_ = std::move(candidate);
  }
  std::optional<PlacedGraph> take() { return std::move(placed_); }

 private:
  const CostModel& costs_;
  const PlaceOptions& options_;
  std::pair<Bytes, Time> key_;
  std::optional<PlacedGraph> placed_;
};

// What the largest device lacks for the first block that is too large for it, or for what is left
// when all devices are full.
DoesNotFit misfit(const CostModel& costs, const TopologicalSequence& sequence, const BlockRow& row,
                  const SegmentCosts& segments) {
  std::vector<Bytes> capacities;
  for (const DeviceId device : costs.cluster().devices())
    capacities.push_back(costs.cluster()[device].capacity);
  std::sort(capacities.rbegin(), capacities.rend());
  std::size_t first = 0, last = 1;
  for (std::size_t device = 0;;) {
    while (last < row.num_blocks && segments.memory(first, last) <= capacities[device]) ++last;
    if (segments.memory(first, last) <= capacities[device]) break;
    if (device + 1 == capacities.size() || last == first + 1) break;
    first = last - 1;
    ++device;
  }
  const auto op = std::find_if(sequence.begin(), sequence.end(), [&](OpId candidate) {
    return row.block_of[candidate].index() + 1 == last;
  });
  const Bytes need = segments.memory(last - 1, last);
  return {*op, std::max(Bytes(1), need - capacities.front())};
}

}  // namespace

PlaceResult place_chain(const CostModel& costs, const PlaceOptions& options) {
  const OpGraph& graph = costs.graph();
  if (const auto op = AllowedDevices(costs).first_impossible()) return DoesNotFit{*op, Bytes(0)};
  const DeviceTypes devices = device_types(costs);
  const std::size_t max_blocks = devices.states * devices.types.size() <= 64 ? 192 : 96;
  const std::int64_t capacity_percent = options.memory == MemoryPolicy::kReserve ? 85 : 100;
  const TopologicalSequence critical = critical_path_first_sequence(costs);
  const std::array sequences{
      TopologicalSequence(graph.topological_order().begin(), graph.topological_order().end()),
      depth_first_sequence(graph), critical, memory_frugal_sequence(graph)};

  Best best(costs, options);
  std::vector<Placement> seen;
  std::optional<DoesNotFit> reason;
  for (const TopologicalSequence& sequence : sequences) {
    throw_if_cancelled(options.cancel);
    const BlockRow row = make_blocks(costs, sequence, max_blocks);
    if (row.num_blocks > 4 * max_blocks) {  // pins change so often that segments mean nothing
      if (!reason.has_value()) reason = DoesNotFit{sequence.front(), Bytes(0)};
      continue;
    }
    const SegmentCosts segments(costs, sequence, row);
    Program program(segments, devices, capacity_percent, options.cancel);
    for (const Objective objective : kChainObjectives) {
      const auto cut = program.solve(objective);
      if (!cut.has_value()) {
        if (!reason.has_value()) reason = misfit(costs, sequence, row, segments);
        break;  // no objective will find one
      }
      Placement placement = placement_by(*cut, row, devices);
      if (std::find(seen.begin(), seen.end(), placement) != seen.end()) continue;
      const std::size_t num_devices = costs.cluster().num_devices();
      best.offer(with_order(placement, sequence, num_devices));
      if (options.order == ExecutionOrder::kPlanned)
        best.offer(with_order(placement, critical, num_devices));
      seen.push_back(std::move(placement));
    }
  }
  if (std::optional<PlacedGraph> placed = best.take()) return *std::move(placed);
  return *reason;
}

}  // namespace baechi
