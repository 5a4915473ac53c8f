// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/held_memory.h"

#include <algorithm>
#include <tuple>

namespace baechi {
namespace {

// What a device holds of one tensor lives until the last local consumer has finished.
Time last_use(const OpGraph& graph, const Schedule& schedule, TensorId tensor, DeviceId device) {
  Time last;
  for (const Edge& edge : graph.consumers(tensor))
    if (schedule.slots[edge.to].device == device)
      last = std::max(last, schedule.slots[edge.to].end);
  return last;
}

void add_outputs(const OpGraph& graph, const Schedule& schedule, std::vector<Held>& held) {
  IdVector<TensorId, Time> last_sent(graph.num_tensors());
  for (const Transfer& transfer : schedule.transfers)
    last_sent[transfer.tensor] = std::max(last_sent[transfer.tensor], transfer.end);
  for (const TensorId tensor : graph.tensors()) {
    const OpId op = graph.producer(tensor);
    const OpSlot& slot = schedule.slots[op];
    const bool to_the_end = graph.consumers(tensor).empty() || graph.retains_outputs(op);
    const Time end =
        to_the_end ? schedule.makespan
                   : std::max(last_use(graph, schedule, tensor, slot.device), last_sent[tensor]);
    held.push_back({slot.device, MemoryPart::kOutput, op, tensor, graph.size(tensor), slot.start,
                    std::max(end, slot.start)});
  }
}

void add_copies(const OpGraph& graph, const Schedule& schedule, std::vector<Held>& held) {
  for (const Transfer& transfer : schedule.transfers) {
    const OpId op = graph.producer(transfer.tensor);
    const Time end = graph.retains_outputs(op)
                         ? schedule.makespan
                         : last_use(graph, schedule, transfer.tensor, transfer.to);
    held.push_back({transfer.to, MemoryPart::kCopy, op, transfer.tensor,
                    graph.size(transfer.tensor), transfer.start, std::max(end, transfer.start)});
  }
}

struct Change {
  Time at;
  Bytes taken, freed, momentary;
};

// What changes at each moment of one device, moments in order and each once.
std::vector<Change> changes_of(const Held* begin, const Held* end) {
  std::vector<Change> changes;
  for (const Held* held = begin; held != end; ++held) {
    if (held->part == MemoryPart::kPermanent) continue;
    if (held->start == held->end) {
      changes.push_back({held->start, {}, {}, held->bytes});
    } else {
      changes.push_back({held->start, held->bytes, {}, {}});
      changes.push_back({held->end, {}, held->bytes, {}});
    }
  }
  std::stable_sort(changes.begin(), changes.end(),
                   [](const Change& a, const Change& b) { return a.at < b.at; });
  std::vector<Change> merged;
  for (const Change& change : changes) {
    if (merged.empty() || merged.back().at != change.at) merged.push_back({change.at, {}, {}, {}});
    merged.back().taken += change.taken;
    merged.back().freed += change.freed;
    merged.back().momentary += change.momentary;
  }
  return merged;
}

std::vector<MemoryPoint> curve_of(const Held* begin, const Held* end) {
  Bytes amount;
  for (const Held* held = begin; held != end; ++held)
    if (held->part == MemoryPart::kPermanent) amount += held->bytes;
  std::vector<MemoryPoint> curve{{Time(0), amount}};
  const auto add = [&](Time at, Bytes bytes) {
    if (curve.back().bytes == bytes) return;
    if (at == Time(0) && curve.size() == 1)
      curve.back().bytes = bytes;
    else
      curve.push_back({at, bytes});
  };
  for (const Change& change : changes_of(begin, end)) {
    amount = amount - change.freed + change.taken;
    add(change.at, amount + change.momentary);
    if (change.momentary > Bytes(0)) curve.push_back({change.at, amount});
  }
  return curve;
}

}  // namespace

std::vector<Held> held_memory(const OpGraph& graph, const Schedule& schedule) {
  std::vector<Held> held;
  for (const OpId op : graph.ops()) {
    const OpSlot& slot = schedule.slots[op];
    held.push_back({slot.device, MemoryPart::kPermanent, op, std::nullopt, graph[op].permanent,
                    Time(0), schedule.makespan});
    held.push_back({slot.device, MemoryPart::kTemporary, op, std::nullopt, graph[op].temporary,
                    slot.start, slot.end});
  }
  add_outputs(graph, schedule, held);
  add_copies(graph, schedule, held);
  std::erase_if(held, [](const Held& h) { return h.bytes == Bytes(0); });
  std::sort(held.begin(), held.end(), [](const Held& a, const Held& b) {
    return std::tie(a.device, a.start, a.part, a.op, a.tensor) <
           std::tie(b.device, b.start, b.part, b.op, b.tensor);
  });
  return held;
}

IdVector<DeviceId, std::vector<MemoryPoint>> memory_curves(const std::vector<Held>& held,
                                                           std::size_t num_devices) {
  IdVector<DeviceId, std::vector<MemoryPoint>> curves(num_devices);
  const Held* begin = held.data();
  const Held* const last = held.data() + held.size();
  for (const DeviceId device : curves.keys()) {
    const Held* end = begin;
    while (end != last && end->device == device) ++end;
    curves[device] = curve_of(begin, end);
    begin = end;
  }
  return curves;
}

std::vector<MemoryPoint> thinned(const std::vector<MemoryPoint>& curve, Time makespan,
                                 std::size_t points) {
  if (curve.size() <= points || makespan <= Time(0)) return curve;
  std::vector<MemoryPoint> result;
  const std::int64_t width = makespan.count() / static_cast<std::int64_t>(points) + 1;
  std::size_t next = 0;
  for (std::int64_t begin = 0; begin <= makespan.count(); begin += width) {
    // What it holds when the part begins counts for the part as well.
    Bytes highest = next == 0 ? curve.front().bytes : curve[next - 1].bytes;
    while (next < curve.size() && curve[next].at.count() < begin + width)
      highest = std::max(highest, curve[next++].bytes);
    if (result.empty() || result.back().bytes != highest) result.push_back({Time(begin), highest});
  }
  return result;
}

}  // namespace baechi
