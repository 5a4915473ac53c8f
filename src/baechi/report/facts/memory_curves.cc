// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/facts/memory_curves.h"

#include <algorithm>
#include <utility>

#include "baechi/simulate/held_memory.h"

namespace baechi {
namespace {

// What changes at a moment. `momentary` is held at that moment only, by intervals of no length.
struct Change {
  Time at;
  Bytes taken, freed, momentary;
};

struct DeviceChanges {
  Bytes always;  // permanent memory
  std::vector<Change> changes;

  void hold(Bytes bytes, Time start, Time end) {
    if (bytes == Bytes(0)) return;
    if (start == end) {
      changes.push_back({start, {}, {}, bytes});
    } else {
      changes.push_back({start, bytes, {}, {}});
      changes.push_back({end, {}, bytes, {}});
    }
  }
};
using Changes = IdVector<DeviceId, DeviceChanges>;

// What a device holds of one tensor lives until the last local consumer has finished.
Time last_use(const OpGraph& graph, const Schedule& schedule, TensorId tensor, DeviceId device) {
  return last_local_use(graph, schedule, tensor, device).value_or(Time(0));
}

void add_outputs(const OpGraph& graph, const Schedule& schedule, Changes& devices) {
  IdVector<TensorId, Time> last_sent(graph.num_tensors());
  for (const Transfer& transfer : schedule.transfers)
    last_sent[transfer.tensor] = std::max(last_sent[transfer.tensor], transfer.end);
  for (const TensorId tensor : graph.tensors()) {
    const OpId op = graph.producer(tensor);
    const OpSlot& slot = schedule.slots[op];
    Time end = schedule.makespan;
    if (!graph.consumers(tensor).empty() && !graph.retains_outputs(op))
      end = std::max(last_use(graph, schedule, tensor, slot.device), last_sent[tensor]);
    devices[slot.device].hold(graph.home_size(tensor), slot.start, std::max(end, slot.start));
  }
}

void add_copies(const OpGraph& graph, const Schedule& schedule, Changes& devices) {
  for (const Transfer& transfer : schedule.transfers) {
    const Time end = graph.retains_outputs(graph.producer(transfer.tensor))
                         ? schedule.makespan
                         : last_use(graph, schedule, transfer.tensor, transfer.to);
    devices[transfer.to].hold(graph.size(transfer.tensor), transfer.start,
                              std::max(end, transfer.start));
  }
}

// Sorted, each moment once.
std::vector<Change> merged(std::vector<Change> changes) {
  std::stable_sort(changes.begin(), changes.end(),
                   [](const Change& a, const Change& b) { return a.at < b.at; });
  std::vector<Change> result;
  for (const Change& change : changes) {
    if (result.empty() || result.back().at != change.at) result.push_back({change.at, {}, {}, {}});
    result.back().taken += change.taken;
    result.back().freed += change.freed;
    result.back().momentary += change.momentary;
  }
  return result;
}

MemoryCurve curve_of(DeviceChanges device) {
  Bytes amount = device.always;
  MemoryCurve curve{{Time(0), amount}};
  const auto add = [&](Time at, Bytes bytes) {
    if (curve.back().bytes == bytes) return;
    if (at == Time(0) && curve.size() == 1)
      curve.back().bytes = bytes;
    else
      curve.push_back({at, bytes});
  };
  for (const Change& change : merged(std::move(device.changes))) {
    amount = amount - change.freed + change.taken;
    add(change.at, amount + change.momentary);
    if (change.momentary > Bytes(0)) curve.push_back({change.at, amount});
  }
  return curve;
}

}  // namespace

IdVector<DeviceId, MemoryCurve> memory_curves(const OpGraph& graph, const Schedule& schedule,
                                              std::size_t num_devices) {
  Changes devices(num_devices);
  for (const OpId op : graph.ops()) {
    const OpSlot& slot = schedule.slots[op];
    devices[slot.device].always += graph[op].permanent;
    devices[slot.device].hold(graph[op].temporary, slot.start, slot.end);
  }
  add_outputs(graph, schedule, devices);
  add_copies(graph, schedule, devices);
  IdVector<DeviceId, MemoryCurve> curves;
  for (DeviceChanges& device : devices) curves.push_back(curve_of(std::move(device)));
  return curves;
}

MemoryPoint highest(const MemoryCurve& curve) {
  MemoryPoint peak = curve.front();
  for (const MemoryPoint& point : curve)
    if (point.bytes > peak.bytes) peak = point;
  return peak;
}

MemoryCurve thinned(const MemoryCurve& curve, Time makespan, std::size_t points) {
  if (curve.size() <= points || makespan <= Time(0)) return curve;
  MemoryCurve result;
  const std::int64_t width = makespan.count() / static_cast<std::int64_t>(points) + 1;
  std::size_t next = 0;
  for (std::int64_t begin = 0; begin <= makespan.count(); begin += width) {
    // What it holds when the part begins counts for the part as well.
    Bytes most = next == 0 ? curve.front().bytes : curve[next - 1].bytes;
    while (next < curve.size() && curve[next].at.count() < begin + width)
      most = std::max(most, curve[next++].bytes);
    if (result.empty() || result.back().bytes != most) result.push_back({Time(begin), most});
  }
  return result;
}

}  // namespace baechi
