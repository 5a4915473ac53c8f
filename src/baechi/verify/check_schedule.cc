// SPDX-License-Identifier: Apache-2.0
#include "baechi/verify/check_schedule.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <tuple>

#include "baechi/base/assert.h"
#include "baechi/verify/check_host.h"
#include "baechi/verify/check_order.h"
#include "baechi/verify/check_variables.h"
#include "baechi/verify/recounted_memory.h"
#include "baechi/verify/sentences.h"

namespace baechi {
namespace {

class Checker {
 public:
  Checker(const OpGraph& graph, const Cluster& cluster, const Schedule& schedule,
          std::size_t max_violations)
      : graph_(graph),
        cluster_(cluster),
        schedule_(schedule),
        say_(graph, cluster),
        max_violations_(max_violations) {}

  void check(ExecutionOrder order, bool capacities) {
    if (!well_formed()) return;
    if (cluster_.message_time().has_value()) count_messages();
    check_devices_and_durations();
    check_variables(graph_, schedule_, say_, [this](const std::string& fault) { report(fault); });
    check_groups();
    check_transfers();
    check_asking();
    check_starts();
    check_queues();
    check_makespan();
    if (violations_.empty())
      check_order(graph_, schedule_, order, order_, ready_, say_,
                  [this](const std::string& sentence) { report(sentence); });
    if (violations_.empty() && order == ExecutionOrder::kProgram)
      check_asked_in_program_order(graph_, cluster_, schedule_, say_,
                                   [this](const std::string& sentence) { report(sentence); });
    // With broken timing, an account of memory over time would be about nothing.
    if (capacities && violations_.empty()) check_capacities();
  }

  IdVector<DeviceId, HeldMost> memory_peaks() {
    sort_operators();
    return peaks(graph_, schedule_, order_);
  }

  std::vector<std::string> take_violations() { return std::move(violations_); }

 private:
  void report(const std::string& sentence) {
    if (violations_.size() < max_violations_) violations_.push_back(sentence);
  }
  std::string named_slot(OpId op) const {
    return say_.op(op) + " on " + say_.device(schedule_.slots[op].device);
  }

  // Ids within range and the order of the transfers: what all the rest relies on.
  bool well_formed() {
    if (schedule_.slots.size() != graph_.num_ops()) {
      report("the plan has slots for " + std::to_string(schedule_.slots.size()) +
             " operators, the graph has " + std::to_string(graph_.num_ops()));
      return false;
    }
    for (const OpId op : graph_.ops())
      if (schedule_.slots[op].device.index() >= cluster_.num_devices())
        report(say_.op(op) + " is on device number " +
               std::to_string(schedule_.slots[op].device.value()) + ", the cluster has " +
               std::to_string(cluster_.num_devices()));
    const Transfer* previous = nullptr;
    for (const Transfer& transfer : schedule_.transfers) {
      const bool known = transfer.tensor.index() < graph_.num_tensors() &&
                         transfer.from.index() < cluster_.num_devices() &&
                         transfer.to.index() < cluster_.num_devices();
      if (!known)
        report("a transfer names tensor " + std::to_string(transfer.tensor.value()) +
               " and devices " + std::to_string(transfer.from.value()) + " and " +
               std::to_string(transfer.to.value()) + ", which are not all there");
      else if (previous != nullptr &&
               std::tie(transfer.tensor, transfer.to) < std::tie(previous->tensor, previous->to))
        report("the transfers are not sorted by tensor and destination: " +
               say_.transfer(transfer) + " comes too late");
      if (known) previous = &transfer;
    }
    return violations_.empty();
  }

  // What each operator that takes time spends on messages: on those that leave from it, and on
  // those that it is the first on its device to read. What takes no time spends none.
  void count_messages() {
    const MessageTime takes = *cluster_.message_time();
    on_messages_.assign(graph_.num_ops(), Time(0));
    for (const Transfer& transfer : schedule_.transfers) {
      on_messages_[graph_.producer(transfer.tensor)] += takes.send;
      std::optional<OpId> first;
      for (const Edge& edge : graph_.consumers(transfer.tensor)) {
        const OpSlot& slot = schedule_.slots[edge.to];
        if (slot.device != transfer.to || slot.start == slot.end) continue;
        if (!first.has_value() || slot.start < schedule_.slots[*first].start) first = edge.to;
      }
      if (first.has_value()) on_messages_[*first] += takes.receive;
    }
  }

  void check_devices_and_durations() {
    struct KindTimes {
      const IdVector<OpId, std::optional<Time>>* own = nullptr;
      const IdVector<OpId, std::optional<Time>>* any = nullptr;
    };
    IdVector<DeviceId, KindTimes> times(cluster_.num_devices());
    for (const DeviceId device : cluster_.devices()) {
      if (const auto kind = graph_.find_kind(cluster_[device].kind))
        times[device].own = &graph_.times(*kind);
      if (const auto any = graph_.find_kind(kAnyKind)) times[device].any = &graph_.times(*any);
    }
    for (const OpId op : graph_.ops()) {
      const OpSlot& slot = schedule_.slots[op];
      const Device& device = cluster_[slot.device];
      if (slot.start < Time(0)) report(named_slot(op) + " starts before the step does");
      if (graph_[op].pin.has_value() && *graph_[op].pin != device.name)
        report(say_.op(op) + " is pinned to '" + std::string(*graph_[op].pin) + "' but runs on " +
               say_.device(slot.device));
      std::optional<Time> time;
      if (times[slot.device].own != nullptr) time = (*times[slot.device].own)[op];
      if (!time.has_value() && times[slot.device].any != nullptr)
        time = (*times[slot.device].any)[op];
      if (!time.has_value()) {
        report(say_.op(op) + " has no compute time for kind '" + device.kind + "' but runs on " +
               say_.device(slot.device));
        continue;
      }
      if (device.speed != kFullSpeed)
        time = Time(scale_up(time->count(), kFullSpeed.count(), device.speed.count(), "time"));
      if (cluster_.message_time().has_value() && *time > Time(0)) *time += on_messages_[op];
      if (slot.end - slot.start != *time)
        report(named_slot(op) + " takes " + Sentences::time(*time) + ", not " +
               Sentences::time(slot.end - slot.start));
    }
  }

  void check_groups() {
    for (const GroupId group : graph_.groups()) {
      const OpId first = graph_.members(group).front();
      for (const OpId op : graph_.members(group))
        if (schedule_.slots[op].device != schedule_.slots[first].device)
          report("operators " + say_.name(first) + " and " + say_.name(op) +
                 " must share a device but run on " + say_.device(schedule_.slots[first].device) +
                 " and " + say_.device(schedule_.slots[op].device));
    }
  }

  // Every tensor is at each device that reads it: once, from its producer, in the time that it
  // takes. Fills ready_, when the inputs of every operator are there.
  void check_transfers() {
    ready_.assign(graph_.num_ops(), Time(0));
    arrival_.resize(cluster_.num_devices());
    auto next = schedule_.transfers.begin();
    for (const TensorId tensor : graph_.tensors()) {
      const auto first = next;
      for (; next != schedule_.transfers.end() && next->tensor == tensor; ++next) {
        if (arrival_[next->to].has_value())
          report(say_.tensor(tensor) + " is sent to " + say_.device(next->to) + " twice");
        else
          arrival_[next->to] = next->end;
        check_transfer(*next);
      }
      check_destinations(tensor, {first, next});
    }
    for (const OpId op : graph_.ops())
      for (const Edge& edge : graph_.in_edges(op))
        if (!edge.tensor.has_value())
          ready_[op] = std::max(ready_[op], schedule_.slots[edge.from].end);
  }

  void check_destinations(TensorId tensor, std::span<const Transfer> transfers) {
    const OpSlot& producer = schedule_.slots[graph_.producer(tensor)];
    std::vector<DeviceId>& readers = destinations_;
    readers.clear();
    for (const Edge& edge : graph_.consumers(tensor)) {
      const DeviceId here = schedule_.slots[edge.to].device;
      const bool local = here == producer.device;
      // Of an input that never comes no more is said than that.
      const Time never = schedule_.slots[edge.to].start;
      ready_[edge.to] =
          std::max(ready_[edge.to], local ? producer.end : arrival_[here].value_or(never));
      if (local || std::find(readers.begin(), readers.end(), here) != readers.end()) continue;
      readers.push_back(here);
      if (!arrival_[here].has_value())
        report(say_.tensor(tensor) + " is never sent to " + say_.device(here) + ", where " +
               say_.op(edge.to) + " reads it");
    }
    for (const Transfer& transfer : transfers) {
      arrival_[transfer.to].reset();
      if (transfer.to != producer.device &&
          std::find(readers.begin(), readers.end(), transfer.to) == readers.end())
        report(say_.tensor(tensor) + " is sent to " + say_.device(transfer.to) +
               ", where nobody reads it");
    }
  }

  void check_transfer(const Transfer& transfer) {
    const OpId producer = graph_.producer(transfer.tensor);
    const OpSlot& slot = schedule_.slots[producer];
    if (transfer.from != slot.device)
      report(say_.transfer(transfer) + " does not start at " + say_.device(slot.device) +
             ", where " + say_.op(producer) + " runs");
    if (transfer.to == slot.device)
      report(say_.tensor(transfer.tensor) + " is sent to " + say_.device(transfer.to) +
             ", where it already is");
    if (transfer.from == transfer.to) return;
    if (transfer.requested != slot.end)
      report(say_.transfer(transfer) + " is requested at " + Sentences::time(transfer.requested) +
             ", but " + say_.op(producer) + " finishes at " + Sentences::time(slot.end));
    const Time takes =
        cluster_.link(transfer.from, transfer.to).transfer_time(graph_.size(transfer.tensor));
    if (transfer.end - transfer.start != takes)
      report(say_.transfer(transfer) + " takes " + Sentences::time(takes) + ", not " +
             Sentences::time(transfer.end - transfer.start));
  }

  // Whoever is asked for late is ready late.
  void check_asking() {
    const bool asks = cluster_.host_time().has_value();
    check_host(graph_, cluster_, schedule_, say_, [this](const std::string& f) { report(f); });
    if (!asks || schedule_.asked.size() != graph_.num_ops()) return;
    for (const OpId op : graph_.ops()) {
      const OpSlot& slot = schedule_.slots[op];
      if (slot.start == slot.end) continue;
      if (slot.start < schedule_.asked[op])
        report(named_slot(op) + " starts at " + Sentences::time(slot.start) +
               ", before its host has asked for it at " + Sentences::time(schedule_.asked[op]));
      ready_[op] = std::max(ready_[op], schedule_.asked[op]);
    }
    asked_ = asked_transfers(cluster_, graph_, schedule_);
  }

  // When a transfer has been requested and asked for.
  Time may_start(const Transfer& transfer) const {
    if (asked_.empty()) return transfer.requested;
    return std::max(transfer.requested,
                    asked_[static_cast<std::size_t>(&transfer - schedule_.transfers.data())]);
  }

  // When the device of every operator has finished it and, where sends block, has sent its outputs;
  // and when it has sent its variables.
  void find_releases() {
    released_.clear();
    begun_.assign(cluster_.num_devices(), Time(0));
    for (const OpSlot& slot : schedule_.slots) released_.push_back(slot.end);
    if (!cluster_.sends_block()) return;
    for (const Transfer& transfer : schedule_.transfers) {
      const OpId producer = graph_.producer(transfer.tensor);
      Time& until = graph_[producer].variable ? begun_[schedule_.slots[producer].device]
                                              : released_[producer];
      until = std::max(until, transfer.end);
    }
  }

  // Each device's operators by start. Operators that take no time come before the one that starts
  // at the same moment; among them whoever became ready last, since it may have held up the rest
  // (which of them came first cannot be read off a schedule, so the kindest order is taken).
  void sort_operators() {
    find_releases();
    struct Key {
      Time start, end, ready;
      OpId op;
    };
    IdVector<DeviceId, std::vector<Key>> keys(cluster_.num_devices());
    for (const OpId op : graph_.ops()) {
      const OpSlot& slot = schedule_.slots[op];
      keys[slot.device].push_back(
          {slot.start, released_[op], ready_.empty() ? Time(0) : ready_[op], op});
    }
    order_ = DeviceOrder(cluster_.num_devices());
    for (const DeviceId device : cluster_.devices()) {
      std::sort(keys[device].begin(), keys[device].end(), [](const Key& a, const Key& b) {
        return std::tie(a.start, a.end, b.ready, a.op) < std::tie(b.start, b.end, a.ready, b.op);
      });
      order_[device].reserve(keys[device].size());
      for (const Key& key : keys[device]) order_[device].push_back(key.op);
    }
  }

  // Every operator starts once its inputs are there and its device is free, and no later.
  void check_starts() {
    sort_operators();
    for (const DeviceId device : order_.keys()) {
      std::optional<OpId> previous;
      for (const OpId op : order_[device]) {
        const OpSlot& slot = schedule_.slots[op];
        if (graph_[op].variable) continue;  // it has no turn
        const Time free = previous.has_value() ? released_[*previous] : begun_[device];
        if (slot.start < ready_[op]) report_early(op);
        if (slot.start < free && free > Time(0))
          report(named_slot(op) + " starts at " + Sentences::time(slot.start) + ", while " +
                 (previous.has_value() && slot.start < schedule_.slots[*previous].end
                      ? say_.op(*previous) + " runs there until " +
                            Sentences::time(schedule_.slots[*previous].end)
                      : "its device sends until " + Sentences::time(free)));
        if (slot.start > std::max(free, ready_[op]))
          report(named_slot(op) + " starts at " + Sentences::time(slot.start) +
                 " although it could start at " + Sentences::time(std::max(free, ready_[op])));
        if (!previous.has_value() || released_[op] >= free) previous = op;
      }
    }
  }

  // Names one input that is not there when `op` starts.
  void report_early(OpId op) {
    if (violations_.size() >= max_violations_) return;  // the search below is not for millions
    const OpSlot& slot = schedule_.slots[op];
    const std::string what = named_slot(op) + " starts at " + Sentences::time(slot.start) + ", ";
    for (const Edge& edge : graph_.in_edges(op)) {
      const OpSlot& parent = schedule_.slots[edge.from];
      if (parent.end > slot.start)
        return report(what + "before " + say_.op(edge.from) + ", which it waits for, finishes at " +
                      Sentences::time(parent.end));
      if (!edge.tensor.has_value() || parent.device == slot.device) continue;
      for (const Transfer& transfer : schedule_.transfers)
        if (transfer.tensor == *edge.tensor && transfer.to == slot.device &&
            transfer.end > slot.start)
          return report(what + "before " + say_.tensor(*edge.tensor) + " arrives at " +
                        Sentences::time(transfer.end));
    }
  }

  // First come, first served: by request time, then variables and operators that took time before
  // those that took none, then (tensor, destination). Those of operators that took no time are served in an
  // order that a schedule does not show, so it is taken from when they started.
  std::vector<const Transfer*> by_service() const {
    struct Key {
      Time requested;
      bool no_time;
      std::uint32_t place;
    };
    std::vector<Key> keys;
    keys.reserve(schedule_.transfers.size());
    for (std::size_t i = 0; i < schedule_.transfers.size(); ++i) {
      const Transfer& transfer = schedule_.transfers[i];
      const OpSlot& producer = schedule_.slots[graph_.producer(transfer.tensor)];
      const bool again = i > 0 && schedule_.transfers[i - 1].tensor == transfer.tensor &&
                         schedule_.transfers[i - 1].to == transfer.to;
      if (again || transfer.to == producer.device) continue;  // reported already
      keys.push_back({transfer.requested, takes_no_time(transfer), static_cast<std::uint32_t>(i)});
    }
    std::sort(keys.begin(), keys.end(), [&](const Key& a, const Key& b) {
      if (a.requested != b.requested) return a.requested < b.requested;
      if (a.no_time != b.no_time) return b.no_time;
      if (!a.no_time) return a.place < b.place;
      const Transfer &x = schedule_.transfers[a.place], &y = schedule_.transfers[b.place];
      return std::tie(x.start, x.end, a.place) < std::tie(y.start, y.end, b.place);
    });
    std::vector<const Transfer*> served;
    served.reserve(keys.size());
    for (const Key& key : keys) served.push_back(&schedule_.transfers[key.place]);
    return served;
  }

  void check_queues() {
    const bool queues_up = cluster_.communication() != CommunicationMode::kParallel;
    if (!queues_up && !cluster_.sends_block()) {
      for (const Transfer& transfer : schedule_.transfers)
        if (transfer.start != may_start(transfer))
          report(say_.transfer(transfer) + " starts at " + Sentences::time(transfer.start) +
                 " although it could start at " + Sentences::time(may_start(transfer)));
      return;
    }
    // Queues are numbered: one or two per device, then the channels.
    const bool duplex = cluster_.communication() == CommunicationMode::kDuplex;
    const std::size_t incoming = duplex ? cluster_.num_devices() : 0;
    const std::size_t channels = incoming + cluster_.num_devices();
    std::vector<const Transfer*> last(channels + cluster_.num_channels(), nullptr);
    std::vector<std::size_t> queues;
    const auto queues_of = [&](const Transfer& transfer) {
      queues.assign({transfer.from.index()});  // a device whose sends block has this one anyway
      if (!queues_up) return;
      queues.push_back(incoming + transfer.to.index());
      for (const ChannelId channel : cluster_.link(transfer.from, transfer.to).channels)
        queues.push_back(channels + channel.index());
    };
    const auto before = [&](const Transfer& transfer) {
      queues_of(transfer);
      const Transfer* found = nullptr;
      for (const std::size_t queue : queues)
        if (last[queue] != nullptr && (found == nullptr || last[queue]->end > found->end))
          found = last[queue];
      return found;
    };
    std::vector<const Transfer*> served = by_service();
    std::erase_if(served, [](const Transfer* t) { return t->from == t->to; });  // reported already
    for (auto next = served.begin(); next != served.end(); ++next) {
      // Of those that end as they start, the first that starts in its turn.
      const auto others = std::find_if_not(
          next, served.end(), [&](const Transfer* t) { return at_one_moment(**next, *t); });
      const auto first = std::find_if(
          next, others, [&](const Transfer* t) { return t->start == turn_of(*t, before(*t)); });
      if (first != others) std::rotate(next, first, first + 1);
      check_turn(**next, before(**next));
      for (const std::size_t queue : queues)
        if (last[queue] == nullptr || last[queue]->end <= (*next)->end) last[queue] = *next;
    }
  }

  // Whether no schedule shows which of them was served first.
  bool at_one_moment(const Transfer& a, const Transfer& b) const {
    return a.start == a.end &&
           std::tie(a.requested, a.start, a.end) == std::tie(b.requested, b.start, b.end) &&
           takes_no_time(a) && takes_no_time(b);
  }

  // What makes it, which is no variable.
  bool takes_no_time(const Transfer& transfer) const {
    const OpId producer = graph_.producer(transfer.tensor);
    return schedule_.slots[producer].start == schedule_.slots[producer].end &&
           !graph_[producer].variable;
  }

  Time turn_of(const Transfer& transfer, const Transfer* before) const {
    return before == nullptr ? may_start(transfer) : std::max(may_start(transfer), before->end);
  }

  // `before` is the last to end of the transfers that were served earlier in a shared queue.
  void check_turn(const Transfer& transfer, const Transfer* before) {
    const Time turn = turn_of(transfer, before);
    if (transfer.start == turn) return;
    const std::string what =
        say_.transfer(transfer) + " starts at " + Sentences::time(transfer.start);
    if (transfer.start < transfer.requested)
      report(what + ", before it is requested at " + Sentences::time(transfer.requested));
    else if (transfer.start < may_start(transfer))
      report(what + ", before its host has asked for it at " +
             Sentences::time(may_start(transfer)));
    else if (transfer.start < turn)
      report(what + ", before its turn: " + say_.transfer(*before) +
             " comes first and takes until " + Sentences::time(turn));
    else
      report(what + " although it could start at " + Sentences::time(turn));
  }

  void check_makespan() {
    Time makespan;
    for (const OpSlot& slot : schedule_.slots) makespan = std::max(makespan, slot.end);
    if (schedule_.makespan != makespan)
      report("the last operator finishes at " + Sentences::time(makespan) +
             ", the plan claims a makespan of " + Sentences::time(schedule_.makespan));
  }

  // Sorting out when what is held is half of a verification; where all of it would fit at once,
  // it need not be known.
  bool everything_fits() const {
    IdVector<DeviceId, Bytes> held(cluster_.num_devices());
    for (const OpId op : graph_.ops())
      held[schedule_.slots[op].device] +=
          graph_[op].permanent + graph_[op].temporary + graph_.output_bytes(op);
    for (const Transfer& transfer : schedule_.transfers)
      held[transfer.to] += graph_.size(transfer.tensor);
    const IdRange<DeviceId> devices = cluster_.devices();
    return std::all_of(devices.begin(), devices.end(),
                       [&](DeviceId device) { return held[device] <= cluster_[device].capacity; });
  }

  void check_capacities() {
    if (everything_fits()) return;
    const IdVector<DeviceId, HeldMost> most = peaks(graph_, schedule_, order_);
    for (const DeviceId device : cluster_.devices())
      if (most[device].bytes > cluster_[device].capacity)
        report("device " + say_.device(device) + " holds " + Sentences::bytes(most[device].bytes) +
               " at " + Sentences::time(most[device].at) + ", " +
               Sentences::bytes(most[device].bytes - cluster_[device].capacity) +
               " more than its capacity");
  }

  const OpGraph& graph_;
  const Cluster& cluster_;
  const Schedule& schedule_;
  const Sentences say_;
  const std::size_t max_violations_;
  std::vector<std::string> violations_;
  IdVector<OpId, Time> ready_;                       // by check_transfers()
  IdVector<DeviceId, std::optional<Time>> arrival_;  // of the tensor in hand; empty in between
  std::vector<DeviceId> destinations_;               // of the tensor in hand
  DeviceOrder order_;                                // by sort_operators()
  IdVector<OpId, Time> released_;                    // by find_releases()
  IdVector<DeviceId, Time> begun_;                   // by find_releases()
  IdVector<OpId, Time> on_messages_;                 // by count_messages()
  std::vector<Time> asked_;                          // of the transfers; by check_asking()
};

}  // namespace

std::vector<std::string> check_schedule(const OpGraph& graph, const Cluster& cluster,
                                        const Schedule& schedule, const CheckOptions& options) {
  Checker checker(graph, cluster, schedule, options.max_violations);
  checker.check(options.order, options.capacities);
  return checker.take_violations();
}

IdVector<DeviceId, HeldMost> checked_peaks(const OpGraph& graph, const Cluster& cluster,
                                           const Schedule& schedule) {
  BAECHI_ASSERT(schedule.slots.size() == graph.num_ops(), "the schedule is of another graph");
  return Checker(graph, cluster, schedule, 1).memory_peaks();
}

}  // namespace baechi
