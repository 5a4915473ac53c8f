// SPDX-License-Identifier: Apache-2.0
#include "baechi/simulate/critical_path.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "baechi/base/error.h"

namespace baechi {
namespace {

// An operator, or a transfer by its place in the schedule.
struct Node {
  bool is_transfer;
  std::size_t index;
};

// What a node may have waited for, and why.
struct Cause {
  Node node;
  CriticalReason reason;
  std::optional<DeviceId> queue = {};
  std::optional<ChannelId> channel = {};
};

// Goes back from the end of the step, from effect to cause. Every cause that takes time lies
// earlier, so only what takes no time can lead in a circle: where the order within one moment
// cannot be read off the schedule, a wrong turn is taken back (each node is tried once).
class WalkBack {
 public:
  WalkBack(const OpGraph& graph, const Cluster& cluster, const Schedule& schedule)
      : graph_(graph),
        cluster_(cluster),
        schedule_(schedule),
        ops_by_end_(cluster.num_devices()),
        moments_(cluster.num_devices()),
        op_seen_(graph.num_ops()),
        transfer_seen_(schedule.transfers.size()) {
    for (const OpId op : graph.ops()) ops_by_end_[schedule.slots[op].device].push_back(op);
    for (std::vector<OpId>& ops : ops_by_end_)
      std::sort(ops.begin(), ops.end(), [&](OpId a, OpId b) {
        const OpSlot &x = schedule.slots[a], &y = schedule.slots[b];
        return std::tie(x.end, x.start, a) < std::tie(y.end, y.start, b);
      });
    for (std::size_t i = 0; i < schedule.transfers.size(); ++i) transfers_by_end_.push_back(i);
    std::sort(transfers_by_end_.begin(), transfers_by_end_.end(),
              [&](std::size_t a, std::size_t b) {
                const Transfer &x = schedule.transfers[a], &y = schedule.transfers[b];
                return std::tie(x.end, x.start, a) < std::tie(y.end, y.start, b);
              });
  }

  std::vector<CriticalLink> path() {
    if (graph_.num_ops() == 0) return {};
    std::vector<Visit> visits;
    enter(visits, last_op());
    while (!is_step_start(visits.back().node)) {
      Visit& visit = visits.back();
      while (visit.next < visit.causes.size() && seen(visit.causes[visit.next].node)) ++visit.next;
      if (visit.next < visit.causes.size() || add_instant_mate(visit)) {
        enter(visits, Node(visit.causes[visit.next].node));
      } else if (starts_when_asked(visit.node)) {
        break;
      } else {
        if (visits.size() == 1 || start_of(visit.node) < end_of(visit.node)) throw_no_cause(visit);
        visits.pop_back();
        ++visits.back().next;
      }
    }
    std::vector<CriticalLink> links;
    for (auto visit = visits.rbegin(); visit != visits.rend(); ++visit)
      links.push_back(link_of(*visit));
    links.front().reason = CriticalReason::kStepStart;
    return links;
  }

 private:
  struct Visit {
    Node node;
    std::vector<Cause> causes;
    std::size_t next = 0;  // of the causes: the one that the walk took
  };

  struct Moment {  // on one device: what is left of the operators that ended then
    Time at = Time(-1);
    std::vector<OpId>::const_iterator next = {};
  };

  const OpSlot& slot(Node node) const { return schedule_.slots[OpId(node.index)]; }
  const Transfer& transfer(Node node) const { return schedule_.transfers[node.index]; }
  Time start_of(Node node) const {
    return node.is_transfer ? transfer(node).start : slot(node).start;
  }
  Time end_of(Node node) const { return node.is_transfer ? transfer(node).end : slot(node).end; }
  bool seen(Node node) const {
    return node.is_transfer ? transfer_seen_[node.index] : op_seen_[OpId(node.index)];
  }
  bool is_step_start(Node node) const { return !node.is_transfer && start_of(node) == Time(0); }

  // Its host had not asked for it before.
  bool starts_when_asked(Node node) const {
    if (schedule_.asked.empty()) return false;
    if (!node.is_transfer) return slot(node).start == schedule_.asked[OpId(node.index)];
    const OpId producer = graph_.producer(transfer(node).tensor);
    std::int64_t nth = 1;
    for (std::size_t i = node.index; i-- > 0; ++nth)
      if (graph_.producer(schedule_.transfers[i].tensor) != producer) break;
    return transfer(node).start == schedule_.asked[producer] + cluster_.host_time()->send * nth;
  }

  void enter(std::vector<Visit>& visits, Node node) {
    if (node.is_transfer)
      transfer_seen_[node.index] = true;
    else
      op_seen_[OpId(node.index)] = true;
    visits.push_back({node, {}});
    if (is_step_start(node)) return;
    visits.back().causes =
        node.is_transfer ? causes_of(transfer(node)) : causes_of(OpId(node.index));
  }

  Node last_op() const {
    OpId last(0);
    for (const OpId op : graph_.ops())
      if (schedule_.slots[op].end > schedule_.slots[last].end) last = op;
    return {false, last.index()};
  }

  const Transfer* arrival(TensorId tensor, DeviceId to) const {
    const auto at = std::lower_bound(
        schedule_.transfers.begin(), schedule_.transfers.end(), std::pair(tensor, to),
        [](const Transfer& t, const std::pair<TensorId, DeviceId>& key) {
          return std::pair(t.tensor, t.to) < key;
        });
    if (at == schedule_.transfers.end() || at->tensor != tensor || at->to != to) return nullptr;
    return &*at;
  }

  Node node_of(const Transfer& transfer) const {
    return {true, static_cast<std::size_t>(&transfer - schedule_.transfers.data())};
  }

  std::vector<Cause> causes_of(OpId op) const {
    const OpSlot& slot = schedule_.slots[op];
    std::vector<Cause> causes;
    for (const Edge& edge : graph_.in_edges(op)) {
      const OpSlot& from = schedule_.slots[edge.from];
      const Transfer* sent = edge.tensor.has_value() && from.device != slot.device
                                 ? arrival(*edge.tensor, slot.device)
                                 : nullptr;
      if (sent != nullptr) {
        if (sent->end == slot.start) causes.push_back({node_of(*sent), CriticalReason::kArrival});
      } else if (from.end == slot.start) {
        causes.push_back(
            {{false, edge.from.index()},
             edge.tensor.has_value() ? CriticalReason::kInput : CriticalReason::kControl});
      }
    }
    add_busy_device(slot, causes);
    if (cluster_.sends_block()) add_sends(slot, causes);
    return causes;
  }

  std::vector<OpId>::const_iterator first_ending(DeviceId device, Time moment) const {
    return std::lower_bound(ops_by_end_[device].begin(), ops_by_end_[device].end(), moment,
                            [&](OpId op, Time until) { return schedule_.slots[op].end < until; });
  }

  // At most one operator that took time ended there and then.
  void add_busy_device(const OpSlot& slot, std::vector<Cause>& causes) const {
    const auto at = first_ending(slot.device, slot.start);
    if (at == ops_by_end_[slot.device].end()) return;
    const OpSlot& before = schedule_.slots[*at];
    if (before.end == slot.start && before.start < before.end)
      causes.push_back({{false, at->index()}, CriticalReason::kBusyDevice});
  }

  void add_sends(const OpSlot& slot, std::vector<Cause>& causes) const {
    for (auto at = first_ending_transfer(slot.start); at != transfers_by_end_.end(); ++at) {
      const Transfer& sent = schedule_.transfers[*at];
      if (sent.end != slot.start) break;
      if (sent.from == slot.device) causes.push_back({{true, *at}, CriticalReason::kBusyDevice});
    }
  }

  // When nothing else explains the moment, the device's order does: something that took no time ran
  // first. The walk only goes back, so that per device one moment is in question at a time.
  bool add_instant_mate(Visit& visit) {
    if (visit.node.is_transfer) return false;
    const OpSlot& slot = this->slot(visit.node);
    Moment& moment = moments_[slot.device];
    const auto end = ops_by_end_[slot.device].cend();
    if (moment.at != slot.start) moment = {slot.start, first_ending(slot.device, slot.start)};
    while (moment.next != end && op_seen_[*moment.next]) ++moment.next;
    if (moment.next == end || schedule_.slots[*moment.next].end != slot.start) return false;
    visit.causes.push_back({{false, moment.next->index()}, CriticalReason::kBusyDevice});
    return true;
  }

  std::vector<Cause> causes_of(const Transfer& waiting) const {
    const OpId producer = graph_.producer(waiting.tensor);
    if (waiting.start == schedule_.slots[producer].end)
      return {{{false, producer.index()}, CriticalReason::kProduced}};
    std::vector<Cause> causes;
    for (auto at = first_ending_transfer(waiting.start); at != transfers_by_end_.end(); ++at) {
      const Transfer& ahead = schedule_.transfers[*at];
      if (ahead.end != waiting.start || (ahead.start == ahead.end && !causes.empty())) break;
      if (ahead.requested > waiting.requested || transfer_seen_[*at]) continue;
      Cause cause{{true, *at}, CriticalReason::kBusyQueue};
      if (find_shared(ahead, waiting, cause)) causes.push_back(cause);
    }
    return causes;
  }

  std::vector<std::size_t>::const_iterator first_ending_transfer(Time moment) const {
    return std::lower_bound(
        transfers_by_end_.begin(), transfers_by_end_.end(), moment,
        [&](std::size_t other, Time until) { return schedule_.transfers[other].end < until; });
  }

  bool find_shared(const Transfer& a, const Transfer& b, Cause& cause) const {
    switch (cluster_.communication()) {
      case CommunicationMode::kParallel:
        if (!cluster_.sends_block() || a.from != b.from) return false;
        cause.queue = a.from;
        return true;
      case CommunicationMode::kSequential:
        for (const DeviceId end : {a.from, a.to})
          if (end == b.from || end == b.to) cause.queue = end;
        break;
      case CommunicationMode::kDuplex:
        if (a.from == b.from) cause.queue = a.from;
        if (a.to == b.to) cause.queue = a.to;
        break;
    }
    if (cause.queue.has_value()) return true;
    const std::vector<ChannelId>& mine = cluster_.link(a.from, a.to).channels;
    const std::vector<ChannelId>& theirs = cluster_.link(b.from, b.to).channels;
    const auto shared = std::find_first_of(mine.begin(), mine.end(), theirs.begin(), theirs.end());
    if (shared == mine.end()) return false;
    cause.reason = CriticalReason::kBusyChannel;
    cause.channel = *shared;
    return true;
  }

  Time ready_of(OpId op) const {
    const DeviceId device = schedule_.slots[op].device;
    Time ready;
    for (const Edge& edge : graph_.in_edges(op)) {
      const OpSlot& from = schedule_.slots[edge.from];
      const Transfer* sent = edge.tensor.has_value() && from.device != device
                                 ? arrival(*edge.tensor, device)
                                 : nullptr;
      ready = std::max(ready, sent != nullptr ? sent->end : from.end);
    }
    return ready;
  }

  CriticalLink link_of(const Visit& visit) const {
    CriticalLink link;
    link.start = start_of(visit.node);
    link.end = end_of(visit.node);
    if (visit.node.is_transfer) {
      link.transfer = visit.node.index;
      link.op = graph_.producer(transfer(visit.node).tensor);
      link.ready = transfer(visit.node).requested;
    } else {
      link.op = OpId(visit.node.index);
      link.ready = ready_of(link.op);
    }
    if (visit.next < visit.causes.size()) {
      const Cause& cause = visit.causes[visit.next];
      link.reason = cause.reason;
      link.queue = cause.queue;
      link.channel = cause.channel;
    }
    return link;
  }

  [[noreturn]] void throw_no_cause(const Visit& visit) const {
    const OpId op = visit.node.is_transfer ? graph_.producer(transfer(visit.node).tensor)
                                           : OpId(visit.node.index);
    throw InputError(
        "the schedule is not one of the simulator's: " +
        std::string(visit.node.is_transfer ? "a transfer from operator '" : "operator '") +
        std::string(graph_[op].name) + "' starts at " +
        std::to_string(start_of(visit.node).count()) + " ns for no reason");
  }

  const OpGraph& graph_;
  const Cluster& cluster_;
  const Schedule& schedule_;
  IdVector<DeviceId, std::vector<OpId>> ops_by_end_;  // then by start: what took time first
  IdVector<DeviceId, Moment> moments_;
  std::vector<std::size_t> transfers_by_end_;
  IdVector<OpId, bool> op_seen_;
  std::vector<bool> transfer_seen_;
};

}  // namespace

CriticalUse CriticalPath::use(std::size_t link) const {
  const bool is_transfer = links[link].transfer.has_value();
  if (link + 1 < links.size()) {
    const CriticalReason next = links[link + 1].reason;
    if (next == CriticalReason::kBusyDevice && !is_transfer) return CriticalUse::kDeviceWait;
    if (next == CriticalReason::kBusyQueue || next == CriticalReason::kBusyChannel)
      return CriticalUse::kQueueWait;
  }
  return is_transfer ? CriticalUse::kTransfer : CriticalUse::kCompute;
}

Time CriticalPath::total(CriticalUse wanted) const {
  Time total;
  for (std::size_t i = 0; i < links.size(); ++i)
    if (use(i) == wanted) total += links[i].end - links[i].start;
  return total;
}

std::vector<CriticalSegment> CriticalPath::segments(const Schedule& schedule) const {
  std::vector<CriticalSegment> segments;
  for (std::size_t i = 0; i < links.size(); ++i) {
    const CriticalLink& link = links[i];
    std::optional<DeviceId> device;
    if (!link.transfer.has_value()) device = schedule.slots[link.op].device;
    if (segments.empty() || segments.back().device != device)
      segments.push_back({.first = i, .last = i, .device = device, .start = link.start});
    CriticalSegment& segment = segments.back();
    segment.last = i;
    segment.end = link.end;
    if (use(i) == CriticalUse::kDeviceWait || use(i) == CriticalUse::kQueueWait)
      segment.waiting += link.end - link.start;
  }
  return segments;
}

CriticalPath critical_path(const OpGraph& graph, const Cluster& cluster, const Schedule& schedule) {
  return {WalkBack(graph, cluster, schedule).path()};
}

}  // namespace baechi
