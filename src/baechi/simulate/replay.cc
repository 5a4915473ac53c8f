// SPDX-License-Identifier: Apache-2.0
#include "baechi/simulate/replay.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "baechi/base/assert.h"
#include "baechi/simulate/asking.h"
#include "baechi/simulate/check_placed.h"

namespace baechi::simulation {

Replay::Replay(const CostModel& costs)
    : costs_(&costs),
      graph_(&costs.graph()),
      edges_(*graph_),
      held_(costs, edges_, copies_),
      clocks_(costs.cluster()),
      queues_(costs.cluster()),
      events_(costs.cluster().num_devices()),
      sends_block_(costs.cluster().sends_block()),
      nodes_(graph_->num_ops()),
      workers_(costs.cluster().num_devices()),
      destinations_(costs.cluster().num_devices()) {
  for (const OpId op : graph_->ops())
    if ((*graph_)[op].variable) variables_.push_back(op);
}

Time Replay::run(const PlacedGraph& placed, const Options& options) {
  asked_.clear();
  return costs_->cluster().host_time().has_value() ? run_as_asked(placed, options)
                                                   : run_once(placed, options);
}

// Asked for in the order in which everything would start if asking took no time.
Time Replay::run_as_asked(const PlacedGraph& placed, const Options& options) {
  if (placed.order.has_value() && placed.asking.has_value()) {
    check_sizes(*costs_, placed);
    ask(*costs_, placed.device, *placed.asking, asked_);
    return run_once(placed, options);
  }
  if (const HostTime host = *costs_->cluster().host_time();
      host.call == Time(0) && host.send == Time(0)) {  // all is asked for at once
    asked_.assign(graph_->num_ops(), host.step);
    return run_once(placed, options);
  }
  run_once(placed, {.memory = false, .cancel = options.cancel});
  Schedule free;
  tell(free.slots);
  PlacedGraph ordered{placed.device, placed.order};
  if (!ordered.order.has_value()) ordered.order = order_of(free, *graph_, workers_.size());
  ask(*costs_, placed.device, order_of_starts(*graph_, *ordered.order, free.slots), asked_);
  const Time makespan = run_once(ordered, options);
  placed_ = nullptr;
  return makespan;
}

Time Replay::run_once(const PlacedGraph& placed, const Options& options) {
  throw_if_cancelled(options.cancel);
  check_sizes(*costs_, placed);
  placed_ = &placed;
  memory_ = options.memory;
  now_ = {};
  prepare(placed);
  if (memory_) held_.clear(placed.device, options.record_memory);

  const Time makespan = replay(options.cancel);
  if (memory_) held_.end_step(makespan);
  return makespan;
}

Time Replay::replay(const CancelFlag* cancel) {
  const bool all_run = variables_.empty();
  for (const OpId op : graph_->ops())
    if (nodes_[op].waits_for == 0 && (all_run || !(*graph_)[op].variable)) become_startable(op);
  for (const OpId variable : variables_) provide(variable);
  for (const DeviceId device : workers_.keys()) release(device);

  Time makespan;
  std::size_t finished = variables_.size();
  constexpr std::size_t kOpsPerPoll = 4096;
  while (!events_.empty()) {
    const Event event = events_.top();
    if (event.is_choice()) {
      choose(event.device(), event.when());
      continue;
    }
    makespan = event.when().at;
    finish(event.op(), event.when());
    if (++finished % kOpsPerPoll == 0) throw_if_cancelled(cancel);
  }
  if (finished == graph_->num_ops()) return makespan;

  BAECHI_ASSERT(placed_->order.has_value(), "only an order can keep an operator from running");
  IdVector<DeviceId, std::size_t> done(workers_.size());
  for (const DeviceId device : workers_.keys())
    done[device] =
        static_cast<std::size_t>(workers_[device].next - (*placed_->order)[device].data());
  throw_stuck(*costs_, *placed_, done);
}

void Replay::prepare(const PlacedGraph& placed) {
  for (Worker& worker : workers_) {
    worker.free = {};
    worker.busy = true;  // until what is there from the start has been sent
    worker.next = worker.last = nullptr;
    worker.startable.clear();
    worker.startable_later.clear();
    worker.computing = Time(0);
    worker.sent = worker.received = Bytes(0);
  }
  for (const OpId op : graph_->ops()) {
    const DeviceId device = placed.device[op];
    if (!workers_.contains(device)) throw_cannot_run(*costs_, op, device);
    const std::optional<Time> duration = costs_->compute_time(op, device);
    if (!duration.has_value()) throw_cannot_run(*costs_, op, device);
    nodes_[op] = {
        .ready = {}, .duration = *duration, .waits_for = edges_.num_in_edges(op), .device = device};
    if (!asked_.empty() && *duration > Time(0)) nodes_[op].ready.at = asked_[op];
  }
  asks_for_.reset();
  if (costs_->cluster().message_time().has_value())
    taken_.assign(graph_->num_tensors() * workers_.size(), false);
  if (placed.order.has_value()) take_order(*placed.order);
  copies_.clear();
  queues_.clear();
  events_.clear();
}

void Replay::take_order(const DeviceOrder& order) {
  std::size_t listed = 0;
  listed_.assign(nodes_.size(), false);
  for (const DeviceId device : order.keys()) {
    const std::vector<OpId>& ops = order[device];
    for (const OpId op : ops) {
      if (!nodes_.contains(op) || nodes_[op].device != device || listed_[op.index()])
        throw_bad_order(*costs_, *placed_);
      listed_[op.index()] = true;
    }
    listed += ops.size();
    workers_[device].next = ops.data();
    workers_[device].last = ops.data() + ops.size();
    skip_variables(workers_[device]);
  }
  if (listed != nodes_.size()) throw_bad_order(*costs_, *placed_);
}

// No device runs a variable: its place in an order says nothing.
void Replay::skip_variables(Worker& worker) const {
  if (variables_.empty()) return;
  while (worker.next != worker.last && (*graph_)[*worker.next].variable) ++worker.next;
}

// It is there when the step starts, and is sent at once.
void Replay::provide(OpId variable) {
  const OpSlot slot{nodes_[variable].device, Time(0), Time(0)};
  for (const TensorId tensor : graph_->outputs(variable)) send(tensor, slot, {});
  for (const OpId follower : edges_.followers(variable)) arrive(follower, {});
}

void Replay::finish(OpId op, Instant now) {
  const Node& node = nodes_[op];
  const OpSlot slot{node.device, node.ready.at, now.at};
  now_ = now;
  Worker& worker = workers_[slot.device];
  worker.computing += node.duration;
  worker.free = now;
  if (placed_->order.has_value()) {
    ++worker.next;
    skip_variables(worker);
  }
  if (memory_) held_.ran(op, slot);

  for (const TensorId tensor : graph_->outputs(op)) send(tensor, slot, now);
  for (const OpId follower : edges_.followers(op)) arrive(follower, now);
  release(slot.device);
}

// A tensor reaches its local consumers at once, and every other device that has a consumer once.
void Replay::send(TensorId tensor, const OpSlot& producer, Instant now) {
  const std::span<const OpId> consumers = edges_.consumers(tensor);
  if (consumers.empty()) return;
  const DeviceId from = producer.device;
  std::uint32_t local = 0;
  for (const OpId consumer : consumers) {
    const DeviceId to = nodes_[consumer].device;
    if (to == from) {
      ++local;
      arrive(consumer, now);
    } else if (++destinations_[to].readers == 1) {
      reached_.push_back(to);
    }
  }

  const std::size_t first_copy = copies_.size();
  if (!reached_.empty()) {
    transfer(tensor, from, now);
    for (const OpId consumer : consumers)
      if (const DeviceId to = nodes_[consumer].device; to != from)
        arrive(consumer, destinations_[to].arrival);
  }
  if (memory_) held_.sent({tensor, producer, local, first_copy});
}

// Sends it to the devices that it reaches.
void Replay::transfer(TensorId tensor, DeviceId from, Instant now) {
  std::sort(reached_.begin(), reached_.end());
  const Bytes size = graph_->size(tensor);
  const std::uint32_t kept = held_.keeps_outputs(graph_->producer(tensor)) ? 1 : 0;
  for (const DeviceId to : reached_) {
    Destination& destination = destinations_[to];
    const Time asked = next_ask(graph_->producer(tensor));
    const auto [start, end] =
        queues_.serve(from, to, std::max({now.at, asked, workers_[from].free.at}),
                      clocks_.transfer_time(from, to, size));
    destination.arrival = end == now.at ? now : Instant{end, 0};
    if (sends_block_) workers_[from].free = destination.arrival;
    copies_.push_back({tensor, to, start, end, destination.readers + kept});
    workers_[from].sent += size;
    workers_[to].received += size;
    destination.readers = 0;
  }
  reached_.clear();
}

// When its host has asked for the next transfer of what this operator makes.
Time Replay::next_ask(OpId producer) {
  if (asked_.empty()) return Time(0);
  if (asks_for_ != producer) asks_until_ = asked_[producer];
  asks_for_ = producer;
  return asks_until_ += costs_->cluster().host_time()->send;
}

void Replay::arrive(OpId op, Instant at) {
  Node& node = nodes_[op];
  node.ready = std::max(node.ready, at);
  if (--node.waits_for == 0) become_startable(op);
}

void Replay::become_startable(OpId op) {
  const Node& node = nodes_[op];
  Worker& worker = workers_[node.device];
  if (placed_->order.has_value()) {
    if (!worker.busy && *worker.next == op)
      start(op, node.device, std::max(worker.free, node.ready));
    return;
  }
  (node.ready == now_ ? worker.startable : worker.startable_later)
      .push(Event::finish(node.ready, op));
  if (!worker.busy) await_choice(node.device);
}

// Gives a device that has finished, and sent, its next event, or none. Without an order it chooses
// when everything that finishes in that round has finished.
void Replay::release(DeviceId device) {
  Worker& worker = workers_[device];
  worker.busy = false;
  if (!placed_->order.has_value()) {
    await_choice(device);
    return;
  }
  if (worker.next != worker.last && nodes_[*worker.next].waits_for == 0)
    start(*worker.next, device, std::max(worker.free, nodes_[*worker.next].ready));
  else
    events_.remove(device);
}

const Event* Replay::first_startable(const Worker& worker) {
  const Event *now = worker.startable.first(), *later = worker.startable_later.first();
  if (now == nullptr || later == nullptr) return now == nullptr ? later : now;
  return *later < *now ? later : now;
}

void Replay::await_choice(DeviceId device) {
  const Worker& worker = workers_[device];
  if (const Event* first = first_startable(worker))
    events_.set(device, Event::choice(std::max(worker.free, first->when()), device));
  else
    events_.remove(device);
}

void Replay::choose(DeviceId device, Instant now) {
  Worker& worker = workers_[device];
  const Event* first = first_startable(worker);
  const OpId op = first->op();
  (first == worker.startable.first() ? worker.startable : worker.startable_later).pop();
  start(op, device, now);
}

void Replay::start(OpId op, DeviceId device, Instant at) {
  Node& node = nodes_[op];
  if (costs_->cluster().message_time().has_value() && node.duration > Time(0))
    node.duration += takes_in(op, device) + gives_away(op, device);
  const Time end = at.at + node.duration;
  node.ready = at;
  Worker& worker = workers_[device];
  worker.busy = true;
  const Instant finish = node.duration > Time(0) ? Instant{end, 0} : Instant{end, at.round + 1};
  events_.set(device, Event::finish(finish, op));
}

// What its device spends on the messages that nothing there has received before.
Time Replay::takes_in(OpId op, DeviceId device) {
  std::int64_t messages = 0;
  for (const Edge& edge : graph_->in_edges(op)) {
    if (!edge.tensor.has_value() || nodes_[edge.from].device == device) continue;
    auto taken = taken_[edge.tensor->index() * workers_.size() + device.index()];
    if (!taken) ++messages;
    taken = true;
  }
  return costs_->cluster().message_time()->receive * messages;
}

// What it spends on sending the outputs. Not within transfer(), whose lists it uses.
Time Replay::gives_away(OpId op, DeviceId device) {
  std::int64_t messages = 0;
  for (const TensorId tensor : graph_->outputs(op)) {
    for (const OpId consumer : edges_.consumers(tensor)) {
      const DeviceId to = nodes_[consumer].device;
      if (to != device && ++destinations_[to].readers == 1) reached_.push_back(to);
    }
    messages += static_cast<std::int64_t>(reached_.size());
    for (const DeviceId to : reached_) destinations_[to].readers = 0;
    reached_.clear();
  }
  return costs_->cluster().message_time()->send * messages;
}

void Replay::tell(IdVector<OpId, OpSlot>& slots) const {
  slots.resize(nodes_.size());
  for (const OpId op : nodes_.keys()) {
    const Node& node = nodes_[op];
    slots[op] = {node.device, node.ready.at, node.ready.at + node.duration};
  }
}

DeviceTrace Replay::device_trace(DeviceId device) const {
  const Worker& worker = workers_[device];
  DeviceTrace trace;
  trace.busy = worker.computing;
  trace.sent = worker.sent;
  trace.received = worker.received;
  held_.account(device).tell(trace);
  return trace;
}

// A counting sort: the copies of one tensor already are together and in order.
std::vector<Transfer> Replay::transfers() const {
  IdVector<TensorId, std::uint32_t> place(graph_->num_tensors());
  for (const TensorCopy& copy : copies_) ++place[copy.tensor];
  std::uint32_t before = 0;
  for (const TensorId tensor : place.keys())
    place[tensor] = std::exchange(before, before + place[tensor]);

  std::vector<Transfer> transfers(copies_.size());
  for (const TensorCopy& copy : copies_) {
    const Node& producer = nodes_[graph_->producer(copy.tensor)];
    const Time requested = producer.ready.at + producer.duration;
    transfers[place[copy.tensor]++] = {copy.tensor, producer.device, copy.to,
                                       requested,   copy.start,      copy.end};
  }
  return transfers;
}

}  // namespace baechi::simulation
