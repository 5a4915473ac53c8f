// SPDX-License-Identifier: Apache-2.0
#include "unit/simulate/naive_simulator.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace baechi::testing {
namespace {

using Round = std::pair<std::int64_t, std::size_t>;  // (moment, round)

struct OpState {
  std::optional<Round> able, started, finished;
};

class NaiveStep {
 public:
  // `asked` has when the host asks for each operator; nullptr: asking takes no time.
  NaiveStep(const CostModel& costs, const PlacedGraph& placed,
            const IdVector<OpId, Time>* asked = nullptr)
      : costs_(costs),
        graph_(costs.graph()),
        cluster_(costs.cluster()),
        placed_(placed),
        asked_(asked),
        ops_(graph_.num_ops()),
        slots_(graph_.num_ops()) {
    for (const OpId op : graph_.ops()) {
      if (!graph_[op].variable) continue;
      ops_[op].able = ops_[op].started = Round{0, 0};
      slots_[op] = {placed.device[op], Time(0), Time(0)};
    }
  }

  bool replay() {
    for (std::int64_t moment = 0; !all_finished(); ++moment) {
      for (std::size_t round = 0;; ++round) {
        const std::vector<OpId> finishing = finish({moment, round});
        for (const TensorId tensor : graph_.tensors())
          for (const DeviceId to : cluster_.devices())
            if (contains(finishing, graph_.producer(tensor)) && read_on(tensor, to) &&
                to != home(tensor))
              request(tensor, to, Time(moment));
        if (!start({moment, round})) break;
      }
      if (!all_finished() && !anything_under_way(moment)) return false;
    }
    return true;
  }

  // The operators in the order in which hosts ask for them.
  std::vector<OpId> sequence() const {
    if (placed_.asking.has_value()) return *placed_.asking;
    std::vector<OpId> left(graph_.topological_order().begin(), graph_.topological_order().end());
    const DeviceOrder turns = order();
    std::vector<OpId> sequence;
    IdVector<DeviceId, std::size_t> place(cluster_.num_devices());
    const auto is_next = [&](OpId op) {
      const DeviceId device = placed_.device[op];
      return place[device] < turns[device].size() && turns[device][place[device]] == op;
    };
    const auto starts_first = [&](OpId a, OpId b) {
      return std::tie(slots_[a].start, slots_[a].end) < std::tie(slots_[b].start, slots_[b].end);
    };
    while (true) {
      std::optional<OpId> best;
      for (const OpId op : left)  // by rank
        if (is_next(op) && (!best || starts_first(op, *best))) best = op;
      if (!best) return sequence;
      sequence.push_back(*best);
      ++place[placed_.device[*best]];
    }
  }

  DeviceOrder order() const {
    if (placed_.order.has_value()) return *placed_.order;
    DeviceOrder turns(cluster_.num_devices());
    for (const OpId op : graph_.topological_order())
      if (!graph_[op].variable) turns[placed_.device[op]].push_back(op);
    for (std::vector<OpId>& ops : turns)
      std::stable_sort(ops.begin(), ops.end(), [&](OpId a, OpId b) {
        return std::tie(slots_[a].start, slots_[a].end) < std::tie(slots_[b].start, slots_[b].end);
      });
    return turns;
  }

  IdVector<OpId, Time> asks() const {
    IdVector<OpId, Time> asked(graph_.num_ops());
    std::map<std::size_t, Time> clocks;  // of the hosts
    const auto ask = [&](OpId op) {
      const std::size_t host = cluster_.host_of(placed_.device[op]);
      Time& clock = clocks.try_emplace(host, cluster_.host_time()->step).first->second;
      const bool runs = slots_[op].start < slots_[op].end;
      if (runs) clock += cluster_.host_time()->call;
      asked[op] = clock;
      for (const TensorId tensor : graph_.tensors())
        for (const DeviceId to : cluster_.devices())
          if (graph_.producer(tensor) == op && to != home(tensor) && read_on(tensor, to))
            clock += cluster_.host_time()->send;
    };
    for (const OpId op : graph_.ops())
      if (graph_[op].variable) ask(op);
    for (const OpId op : sequence())
      if (!graph_[op].variable) ask(op);
    return asked;
  }

  Trace trace() const {
    Trace trace;
    trace.schedule.slots = slots_;
    if (asked_ != nullptr) trace.schedule.asked = *asked_;
    trace.schedule.transfers = transfers_;
    std::sort(trace.schedule.transfers.begin(), trace.schedule.transfers.end(),
              [](const Transfer& a, const Transfer& b) {
                return std::tie(a.tensor, a.to) < std::tie(b.tensor, b.to);
              });
    trace.schedule.makespan = makespan();
    for (const DeviceId device : cluster_.devices()) trace.devices.push_back(device_trace(device));
    return trace;
  }

 private:
  template <class T>
  static bool contains(const std::vector<T>& values, T value) {
    return std::find(values.begin(), values.end(), value) != values.end();
  }
  DeviceId home(TensorId tensor) const { return placed_.device[graph_.producer(tensor)]; }
  bool read_on(TensorId tensor, DeviceId device) const {
    for (const Edge& edge : graph_.consumers(tensor))
      if (placed_.device[edge.to] == device) return true;
    return false;
  }
  bool all_finished() const {
    return std::all_of(ops_.begin(), ops_.end(), [](const OpState& o) { return o.finished; });
  }
  bool anything_under_way(std::int64_t moment) const {
    for (const OpState& o : ops_)
      if (o.started && !o.finished) return true;
    for (const Transfer& transfer : transfers_)
      if (transfer.end > Time(moment)) return true;
    for (const OpId op : graph_.ops())
      if (!ops_[op].started && !is_asked(op, moment)) return true;
    return false;
  }
  bool is_asked(OpId op, std::int64_t moment) const {
    const bool runs = costs_.compute_time(op, placed_.device[op]).value_or(Time(0)) > Time(0);
    return asked_ == nullptr || !runs || (*asked_)[op] <= Time(moment);
  }

  std::vector<OpId> finish(Round now) {
    std::vector<OpId> finishing;
    for (const OpId op : graph_.ops()) {
      if (!ops_[op].started || ops_[op].finished || slots_[op].end != Time(now.first)) continue;
      const bool took_time = slots_[op].start < slots_[op].end || graph_[op].variable;
      if (took_time ? now.second != 0 : now.second != ops_[op].started->second + 1) continue;
      ops_[op].finished = now;
      finishing.push_back(op);
    }
    return finishing;
  }

  bool share_a_queue(const Transfer& a, DeviceId from, DeviceId to) const {
    switch (cluster_.communication()) {
      case CommunicationMode::kParallel:
        return false;
      case CommunicationMode::kSequential:
        if (a.from == from || a.from == to || a.to == from || a.to == to) return true;
        break;
      case CommunicationMode::kDuplex:
        if (a.from == from || a.to == to) return true;
        break;
    }
    for (const ChannelId channel : cluster_.link(a.from, a.to).channels)
      if (contains(cluster_.link(from, to).channels, channel)) return true;
    return false;
  }

  void request(TensorId tensor, DeviceId to, Time now) {
    const DeviceId from = home(tensor);
    Time start = std::max(now, asked_for(tensor, to));
    for (const Transfer& earlier : transfers_)
      if (share_a_queue(earlier, from, to) || (cluster_.sends_block() && earlier.from == from))
        start = std::max(start, earlier.end);
    const Time duration = cluster_.link(from, to).transfer_time(graph_.size(tensor));
    transfers_.push_back({tensor, from, to, now, start, start + duration});
  }

  // When the host asks for a transfer, behind its producer and the transfers before it.
  Time asked_for(TensorId tensor, DeviceId to) const {
    if (asked_ == nullptr) return Time(0);
    const OpId producer = graph_.producer(tensor);
    Time clock = (*asked_)[producer];
    for (const TensorId other : graph_.tensors())
      for (const DeviceId device : cluster_.devices())
        if (graph_.producer(other) == producer && device != home(other) && read_on(other, device) &&
            std::tie(other, device) <= std::tie(tensor, to))
          clock += cluster_.host_time()->send;
    return clock;
  }

  bool may_start(OpId op, std::int64_t moment) const {
    if (!is_asked(op, moment)) return false;
    for (const Edge& edge : graph_.in_edges(op)) {
      if (!ops_[edge.from].finished) return false;
      if (!edge.tensor || home(*edge.tensor) == placed_.device[op]) continue;
      for (const Transfer& transfer : transfers_)
        if (transfer.tensor == *edge.tensor && transfer.to == placed_.device[op] &&
            transfer.end > Time(moment))
          return false;
    }
    return true;
  }

  std::optional<OpId> turn(DeviceId device) const {
    if (placed_.order.has_value()) {
      for (const OpId op : (*placed_.order)[device])
        if (!ops_[op].started) return ops_[op].able ? std::optional(op) : std::nullopt;
      return std::nullopt;
    }
    std::optional<OpId> best;
    for (const OpId op : graph_.ops())
      if (placed_.device[op] == device && ops_[op].able && !ops_[op].started)
        if (!best || *ops_[op].able < *ops_[*best].able) best = op;
    return best;
  }

  bool start(Round now) {
    for (const OpId op : graph_.ops())
      if (!ops_[op].able && may_start(op, now.first)) ops_[op].able = now;
    bool started = false;
    for (const DeviceId device : cluster_.devices()) {
      bool free = true;
      for (const OpId op : graph_.ops())
        if (placed_.device[op] == device && ops_[op].started && !ops_[op].finished) free = false;
      if (cluster_.sends_block())
        for (const Transfer& transfer : transfers_)
          if (transfer.from == device && transfer.end > Time(now.first)) free = false;
      const std::optional<OpId> op = turn(device);
      if (!free || !op.has_value()) continue;
      const Time at(now.first);
      slots_[*op] = {device, at, at + *costs_.compute_time(*op, device)};
      if (cluster_.message_time().has_value() && at < slots_[*op].end)
        slots_[*op].end += spent_on_messages(*op, device);
      ops_[*op].started = now;
      started = true;
    }
    return started;
  }

  Time spent_on_messages(OpId op, DeviceId here) const {
    Time spent;
    for (const TensorId tensor : graph_.tensors()) {
      bool reads = false, known = false;
      for (const Edge& edge : graph_.consumers(tensor)) {
        if (placed_.device[edge.to] != here) continue;
        reads |= edge.to == op;
        known |=
            edge.to != op && ops_[edge.to].started && slots_[edge.to].start < slots_[edge.to].end;
      }
      if (reads && !known && home(tensor) != here) spent += cluster_.message_time()->receive;
      for (const DeviceId to : cluster_.devices())
        if (graph_.producer(tensor) == op && to != here && read_on(tensor, to))
          spent += cluster_.message_time()->send;
    }
    return spent;
  }

  Time makespan() const {
    Time last;
    for (const OpSlot& slot : slots_) last = std::max(last, slot.end);
    return last;
  }

  struct Held {
    Time start, end;
    Bytes bytes;
  };

  std::vector<Held> holdings(DeviceId device) const {
    std::vector<Held> held;
    for (const OpId op : graph_.ops()) {
      if (placed_.device[op] != device) continue;
      held.push_back({slots_[op].start, slots_[op].end, graph_[op].temporary});
    }
    for (const TensorId tensor : graph_.tensors()) {
      const OpId producer = graph_.producer(tensor);
      const bool retained = graph_.memory_mode() == MemoryMode::kRetain &&
                            !graph_[producer].backward && !graph_[producer].variable;
      Time last_read;
      for (const Edge& edge : graph_.consumers(tensor))
        if (placed_.device[edge.to] == device) last_read = std::max(last_read, slots_[edge.to].end);
      if (home(tensor) == device && !graph_[producer].variable) {
        for (const Transfer& transfer : transfers_)
          if (transfer.tensor == tensor) last_read = std::max(last_read, transfer.end);
        const bool to_the_end = retained || graph_.consumers(tensor).empty();
        held.push_back(
            {slots_[producer].start, to_the_end ? makespan() : last_read, graph_.size(tensor)});
      }
      for (const Transfer& transfer : transfers_)
        if (transfer.tensor == tensor && transfer.to == device)
          held.push_back({transfer.start, retained ? makespan() : last_read, graph_.size(tensor)});
    }
    return held;
  }

  DeviceTrace device_trace(DeviceId device) const {
    DeviceTrace trace;
    Bytes permanent;
    for (const OpId op : graph_.ops()) {
      if (placed_.device[op] != device) continue;
      if (graph_[op].variable)
        permanent += graph_.size(*graph_.outputs(op).begin());
      else
        permanent += graph_[op].permanent;
      trace.busy += slots_[op].end - slots_[op].start;
    }
    for (const Transfer& transfer : transfers_) {
      if (transfer.from == device) trace.sent += graph_.size(transfer.tensor);
      if (transfer.to == device) trace.received += graph_.size(transfer.tensor);
    }

    const std::vector<Held> held = holdings(device);
    for (Time t; t <= makespan(); t += Time(1)) {
      Bytes now = permanent, right_after = permanent;
      for (const Held& h : held) {
        if (h.start <= t && t < h.end) right_after += h.bytes;
        if ((h.start <= t && t < h.end) || (h.start == t && h.end == t)) now += h.bytes;
      }
      if (t == Time(0) || now > trace.peak) {
        trace.peak = now;
        trace.peak_at = t;
        trace.peak_op = running(device, t);
      }
      if (now > cluster_[device].capacity && !trace.overflow_at) trace.overflow_at = t;
      for (const Bytes bytes : {now, right_after})
        if (trace.memory.empty() || trace.memory.back().bytes != bytes)
          trace.memory.push_back({t, bytes});
    }
    return trace;
  }

  std::optional<OpId> running(DeviceId device, Time t) const {
    for (const OpId op : graph_.ops())
      if (placed_.device[op] == device && slots_[op].start <= t && t < slots_[op].end) return op;
    for (const OpId op : graph_.ops())
      if (placed_.device[op] == device && slots_[op].start == t && slots_[op].end == t &&
          !graph_[op].variable)
        return op;
    return std::nullopt;
  }

  const CostModel& costs_;
  const OpGraph& graph_;
  const Cluster& cluster_;
  const PlacedGraph& placed_;
  const IdVector<OpId, Time>* asked_;
  IdVector<OpId, OpState> ops_;
  IdVector<OpId, OpSlot> slots_;
  std::vector<Transfer> transfers_;  // in the order in which they are served
};

}  // namespace

std::optional<Trace> naive_simulate(const CostModel& costs, const PlacedGraph& placed) {
  NaiveStep step(costs, placed);
  if (!step.replay()) return std::nullopt;
  if (!costs.cluster().host_time().has_value()) return step.trace();
  const IdVector<OpId, Time> asked = step.asks();
  const PlacedGraph ordered{placed.device, step.order()};
  NaiveStep late(costs, ordered, &asked);
  if (!late.replay()) return std::nullopt;
  return late.trace();
}

}  // namespace baechi::testing
