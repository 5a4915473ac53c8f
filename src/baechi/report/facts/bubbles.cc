// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/facts/bubbles.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "baechi/simulate/held_memory.h"

namespace baechi {
namespace {

// A device's memory curve for questions about any stretch of it.
class CurveMaxima {
 public:
  explicit CurveMaxima(const MemoryCurve& curve) : curve_(curve), tree_(2 * curve.size()) {
    for (std::size_t i = 0; i < curve.size(); ++i) tree_[curve.size() + i] = curve[i].bytes;
    for (std::size_t i = curve.size(); i-- > 1;)
      tree_[i] = std::max(tree_[2 * i], tree_[2 * i + 1]);
  }

  // The most that is held within [start, end).
  Bytes most(Time start, Time end) const {
    std::size_t low = first_from(start + Time(1));
    if (low > 0) --low;  // what it holds when the stretch begins
    Bytes most = curve_[low].bytes;
    low += curve_.size();
    for (std::size_t high = first_from(end) + curve_.size(); low < high; low /= 2, high /= 2) {
      if (low % 2 == 1) most = std::max(most, tree_[low++]);
      if (high % 2 == 1) most = std::max(most, tree_[--high]);
    }
    return most;
  }

 private:
  std::size_t first_from(Time at) const {
    const auto behind =
        std::lower_bound(curve_.begin(), curve_.end(), at,
                         [](const MemoryPoint& point, Time wanted) { return point.at < wanted; });
    return static_cast<std::size_t>(behind - curve_.begin());
  }
  const MemoryCurve& curve_;
  std::vector<Bytes> tree_;  // of maxima; the leaves are the curve's points
};

class Pipeline {
 public:
  Pipeline(const StepGraph& step, const Cluster& cluster, const Schedule& schedule)
      : step_(step),
        graph_(step.graph()),
        cluster_(cluster),
        schedule_(schedule),
        sequence_(sequence_of(schedule, graph_)) {
    find_latest();
  }

  bool sends_block() const { return cluster_.sends_block(); }
  bool runs(OpId op) const { return duration(op) > Time(0) && step_.micro_batch(op).has_value(); }
  bool backward(OpId op) const { return graph_[op].backward; }
  const OpSlot& slot(OpId op) const { return schedule_.slots[op]; }
  std::uint32_t micro_batch(OpId op) const { return *step_.micro_batch(op); }
  bool one_pass(OpId a, OpId b) const {
    return step_.micro_batch(a) == step_.micro_batch(b) && backward(a) == backward(b);
  }
  // So much later could it start without a longer step, in the order in which all devices run.
  Time slack(OpId op) const { return latest_[op] - slot(op).start; }

  Bytes taken_by(OpId op) const { return graph_[op].temporary + graph_.output_bytes(op); }
  // What of its outputs its device holds beyond `end` for itself.
  Bytes left_by(OpId op, Time end) const {
    Bytes left;
    for (const TensorId tensor : graph_.outputs(op)) {
      const bool kept = graph_.consumers(tensor).empty() || graph_.retains_outputs(op);
      const auto last = last_local_use(graph_, schedule_, tensor, slot(op).device);
      if (kept || last.value_or(Time(0)) > end) left += graph_.home_size(tensor);
    }
    return left;
  }

  struct Return {  // of a micro-batch from other devices
    OpId op;
    Time trip;  // how long it takes at least since it left
  };
  std::vector<Return> returns(DeviceId device, std::uint32_t micro_batch) {
    std::vector<OpId>& ops = ops_of_[micro_batch];
    if (ops.empty())
      for (const OpId op : sequence_)
        if (step_.micro_batch(op) == micro_batch) ops.push_back(op);
    std::vector<Return> found;
    std::map<OpId, Time> away;  // until an operator elsewhere can start
    for (const OpId op : ops) {
      std::optional<Time> longest;
      for (const Edge& edge : graph_.in_edges(op)) {
        if (step_.micro_batch(edge.from) != micro_batch) continue;
        const bool left_here = slot(edge.from).device == device;
        const auto before = away.find(edge.from);
        if (left_here ? slot(op).device == device : before == away.end()) continue;
        const Time since = left_here ? Time(0) : before->second + duration(edge.from);
        longest = std::max(longest.value_or(Time(0)), since + sending(edge));
      }
      if (!longest.has_value()) continue;
      if (slot(op).device == device)
        found.push_back({op, *longest});
      else
        away.emplace(op, *longest);
    }
    return found;
  }

 private:
  Time duration(OpId op) const { return slot(op).end - slot(op).start; }
  Time sending(const Edge& edge) const {
    const DeviceId from = slot(edge.from).device, to = slot(edge.to).device;
    if (!edge.tensor.has_value() || from == to) return Time(0);
    return cluster_.link(from, to).transfer_time(graph_.size(*edge.tensor));
  }

  void find_latest() {
    latest_.resize(graph_.num_ops());
    IdVector<DeviceId, Time> next(cluster_.num_devices(), schedule_.makespan);
    for (std::size_t i = sequence_.size(); i-- > 0;) {
      const OpId op = sequence_[i];
      Time& end = next[slot(op).device];
      for (const Edge& edge : graph_.out_edges(op))
        end = std::min(end, latest_[edge.to] - sending(edge));
      end = latest_[op] = end - duration(op);
    }
  }

  const StepGraph& step_;
  const OpGraph& graph_;
  const Cluster& cluster_;
  const Schedule& schedule_;
  std::vector<OpId> sequence_;
  IdVector<OpId, Time> latest_;
  std::map<std::uint32_t, std::vector<OpId>> ops_of_;
};

// One device.
class Idle {
 public:
  Idle(Pipeline& pipeline, const Schedule& schedule, const Waits& waits, DeviceId device,
       const std::vector<OpId>& order, const MemoryCurve& curve, Bytes capacity)
      : pipeline_(pipeline),
        schedule_(schedule),
        waits_(waits),
        order_(order),
        curve_(curve),
        capacity_(capacity) {
    if (pipeline.sends_block()) find_sends(device);
    find_phases(device);
    find_ready();
  }

  DeviceBubbles take() {
    Time free;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const OpSlot& slot = pipeline_.slot(order_[i]);
      if (slot.start > free) split({free, slot.start}, i);
      free = std::max(free, slot.end);
    }
    if (schedule_.makespan > free) split({free, schedule_.makespan}, std::nullopt);
    return std::move(told_);
  }

 private:
  struct Span {
    Time start, end;
  };

  void find_sends(DeviceId device) {
    for (const Transfer& transfer : schedule_.transfers)
      if (transfer.from == device) sends_.push_back({transfer.requested, transfer.end});
    std::ranges::sort(sends_, {}, &Span::end);
  }

  void find_phases(DeviceId device) {
    std::optional<OpId> first, last;
    Time last_forward;
    for (const OpId op : order_) {
      if (!pipeline_.runs(op)) continue;
      const OpSlot& slot = pipeline_.slot(op);
      if (!first.has_value()) first = op;
      last = op;
      drained_ = slot.end;
      if (!pipeline_.backward(op)) last_forward = slot.end;
    }
    if (!first.has_value()) return;
    fills_.push_back({Time(0), pipeline_.slot(*first).start});
    IdVector<OpId, bool> is_back(waits_.last_input.size(), false);
    for (const auto& [op, trip] : pipeline_.returns(device, pipeline_.micro_batch(*first)))
      is_back[op] = true;
    Time free;
    for (const OpId op : order_) {
      const OpSlot& slot = pipeline_.slot(op);
      if (is_back[op] && slot.start > free) fills_.push_back({free, slot.start});
      free = std::max(free, slot.end);
    }
    for (const auto& [op, trip] : pipeline_.returns(device, pipeline_.micro_batch(*last))) {
      const Time back = pipeline_.slot(op).start;
      Time from = std::max(last_forward, back - trip);
      if (back <= from) continue;
      for (; !drains_.empty() && from <= drains_.back().end; drains_.pop_back())
        from = std::min(from, drains_.back().start);
      drains_.push_back({from, back});
    }
    drains_.push_back({*drained_, schedule_.makespan});
  }

  // Of what comes behind a place in the order, that which is ready the earliest; and where passes
  // end.
  void find_ready() {
    ready_behind_.resize(order_.size() + 1);
    pass_end_.resize(order_.size());
    for (std::size_t i = order_.size(); i-- > 0;) {
      const OpId op = order_[i];
      const bool goes_on = i + 1 < order_.size() && pipeline_.one_pass(op, order_[i + 1]);
      pass_end_[i] = goes_on ? pass_end_[i + 1] : pipeline_.slot(op).end;
      ready_behind_[i] = ready_behind_[i + 1];
      if (pipeline_.runs(op) &&
          (!ready_behind_[i].has_value() || ready(i) <= ready(*ready_behind_[i])))
        ready_behind_[i] = i;
    }
  }
  Time ready(std::size_t place) const { return waits_.last_input[order_[place]].ready; }

  // A gap before the operator at `next`, or behind all of them.
  void split(const Span& gap, std::optional<std::size_t> next) {
    std::vector<Bubble> sending;
    const std::vector<Span> rest = without(gap, sends_, BubbleCause::kTransfers, sending);
    for (const Bubble& part : sending) add({part.start, part.end}, part.cause);
    for (const Span& other : rest) idle(other, next);
  }

  // What it does not send in.
  void idle(Span gap, std::optional<std::size_t> next) {
    if (!drained_.has_value()) return add(gap, BubbleCause::kImbalance);
    std::vector<Bubble> parts;
    if (next.has_value()) {
      const Time no_room =
          std::min(gap.end, std::max(fills_.front().end, no_room_from(gap, *next)));
      parts.push_back({no_room, gap.end, BubbleCause::kMemory});
      gap.end = no_room;
    }
    for (const Span& rest : without(gap, fills_, BubbleCause::kFill, parts))
      for (const Span& inner : without(rest, drains_, BubbleCause::kDrain, parts))
        steady(inner, next, parts);
    std::ranges::sort(parts, {}, &Bubble::start);
    for (const Bubble& part : parts) add({part.start, part.end}, part.cause);
  }

  // What no phase takes of a gap; the others are parts now. Phases are in the order of time.
  static std::vector<Span> without(Span gap, const std::vector<Span>& phases, BubbleCause cause,
                                   std::vector<Bubble>& parts) {
    std::vector<Span> rest;
    auto phase = std::ranges::partition_point(
        phases, [&](const Span& earlier) { return earlier.end <= gap.start; });
    for (; phase != phases.end() && phase->start < gap.end; ++phase) {
      if (phase->end <= phase->start) continue;
      const Time start = std::max(phase->start, gap.start), end = std::min(phase->end, gap.end);
      if (gap.start < start) rest.push_back({gap.start, start});
      parts.push_back({start, end, cause});
      gap.start = end;
    }
    if (gap.start < gap.end) rest.push_back(gap);
    return rest;
  }

  // Neither fill nor drain nor memory.
  void steady(const Span& gap, std::optional<std::size_t> next, std::vector<Bubble>& parts) const {
    if (!next.has_value()) {
      parts.push_back({gap.start, gap.end, BubbleCause::kDrain});
      return;
    }
    const LastInput& last = waits_.last_input[order_[*next]];
    Time sent = gap.end;
    if (last.transfer.has_value())
      sent = std::clamp(schedule_.transfers[*last.transfer].requested, gap.start, gap.end);
    const Time there = std::clamp(last.ready, sent, gap.end);
    parts.push_back({gap.start, sent, BubbleCause::kImbalance});
    parts.push_back({sent, there, BubbleCause::kTransfers});
    parts.push_back({there, gap.end, BubbleCause::kImbalance});
  }

  struct PassNeeds {
    Bytes running;  // the most that one of its operators makes and has around it
    Bytes left;     // what is still held when it has ended
  };

  // From when on another pass is ready that is late for the step and has no room; the end of the
  // gap if there is none.
  Time no_room_from(const Span& gap, std::size_t next) const {
    const std::optional<std::size_t> place = ready_behind_[next + 1];
    if (!place.has_value() || ready(*place) >= gap.end) return gap.end;
    const OpId op = order_[*place];
    if (pipeline_.slack(op) * 2 >= gap.end - gap.start) return gap.end;
    const Time from = std::max(gap.start, ready(*place));
    const PassNeeds needs = needs_of(*place);
    const bool no_room = curve_.most(from, from + Time(1)) + needs.running > capacity_ ||
                         curve_.most(from, pipeline_.slot(op).start) + needs.left > capacity_;
    return no_room ? from : gap.end;
  }

  // Of the rest of the pass from this place on.
  PassNeeds needs_of(std::size_t place) const {
    PassNeeds needs;
    const OpId first = order_[place];
    for (; place < order_.size() && pipeline_.one_pass(first, order_[place]); ++place) {
      needs.running = std::max(needs.running, pipeline_.taken_by(order_[place]));
      needs.left += pipeline_.left_by(order_[place], pass_end_[place]);
    }
    return needs;
  }

  void add(Span span, BubbleCause cause) {
    if (span.start >= span.end) return;
    told_.total[static_cast<std::size_t>(cause)] += span.end - span.start;
    std::vector<Bubble>& bubbles = told_.bubbles;
    if (!bubbles.empty() && bubbles.back().end == span.start && bubbles.back().cause == cause)
      bubbles.back().end = span.end;
    else
      bubbles.push_back({span.start, span.end, cause});
  }

  Pipeline& pipeline_;
  const Schedule& schedule_;
  const Waits& waits_;
  const std::vector<OpId>& order_;
  const CurveMaxima curve_;
  const Bytes capacity_;

  std::optional<Time> drained_;  // when its last operator of a micro-batch has ended, if it has one
  std::vector<Span> sends_;      // that block
  std::vector<Span> fills_, drains_;  // in the order of time, those of one kind apart
  std::vector<std::optional<std::size_t>> ready_behind_;
  std::vector<Time> pass_end_;
  DeviceBubbles told_;
};

}  // namespace

Time DeviceBubbles::idle() const {
  Time sum;
  for (const Time part : total) sum += part;
  return sum;
}

IdVector<DeviceId, DeviceBubbles> find_bubbles(const StepGraph& step, const Cluster& cluster,
                                               const Schedule& schedule, const DeviceOrder& order,
                                               const Waits& waits,
                                               const IdVector<DeviceId, MemoryCurve>& curves) {
  Pipeline pipeline(step, cluster, schedule);
  IdVector<DeviceId, DeviceBubbles> told;
  for (const DeviceId device : order.keys())
    told.push_back(Idle(pipeline, schedule, waits, device, order[device], curves[device],
                        cluster[device].capacity)
                       .take());
  return told;
}

IdVector<DeviceId, DeviceBubbles> find_bubbles(const StepGraph& step, const Cluster& cluster,
                                               const Schedule& schedule) {
  const DeviceOrder order = order_of(schedule, step.graph(), cluster.num_devices());
  return find_bubbles(step, cluster, schedule, order, find_waits(step.graph(), schedule, order),
                      memory_curves(step.graph(), schedule, cluster.num_devices()));
}

}  // namespace baechi
