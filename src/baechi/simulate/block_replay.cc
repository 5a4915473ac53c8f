// SPDX-License-Identifier: Apache-2.0
#include "baechi/simulate/block_replay.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "baechi/base/assert.h"
#include "baechi/base/overflow.h"
#include "baechi/simulate/check_placed.h"

namespace baechi::simulation {

BlockReplay::BlockReplay(const CostModel& costs)
    : costs_(&costs),
      graph_(&costs.graph()),
      edges_(*graph_),
      clocks_(costs.cluster()),
      queues_(costs.cluster()),
      events_(costs.cluster().num_devices()),
      keeps_(graph_->num_ops()),
      placed_(graph_->num_ops()),
      block_of_(graph_->num_ops()),
      workers_(costs.cluster().num_devices()),
      stale_(costs.cluster().num_devices()),
      sends_(graph_->num_edges()),
      readers_(graph_->num_edges(), OpId(0)) {
  std::uint32_t out = 0;
  for (const OpId op : graph_->ops()) {
    outboxes_.push_back({.begin = out});
    out += static_cast<std::uint32_t>(graph_->out_edges(op).size());
    keeps_[op] = (*graph_)[op].permanent.count();
    if ((*graph_)[op].variable) variables_.push_back(op);
    for (const TensorId tensor : graph_->outputs(op))
      keeps_[op] += graph_->home_size(tensor).count();
    largest_temporary_ = std::max(largest_temporary_, (*graph_)[op].temporary);
  }
}

void BlockReplay::start(const PlacedGraph& placed) {
  check_sizes(*costs_, placed);
  device_ = placed.device;
  placed_.assign(graph_->num_ops(), {});
  for (Worker& worker : workers_) worker.taken = 0;
  for (const OpId op : graph_->ops()) put(op, device_[op]);
  for (const OpId op : graph_->ops())
    for (const Edge& edge : graph_->in_edges(op)) {
      if (device_[edge.from] == device_[op]) continue;
      ++placed_[op].remote_in;
      ++placed_[edge.from].remote_out;
    }
  stale_.assign(workers_.size(), true);
  for (Outbox& outbox : outboxes_) outbox.stale = true;
}

void BlockReplay::put(OpId op, DeviceId device) {
  const std::optional<Time> duration = costs_->compute_time(op, device);
  if (!duration.has_value()) throw_cannot_run(*costs_, op, device);
  placed_[op].duration = *duration;
  workers_[device].taken += keeps_[op];
  if (*duration == Time(0)) workers_[device].taken += (*graph_)[op].temporary.count();
  device_[op] = device;
}

void BlockReplay::take_away(OpId op) {
  Worker& worker = workers_[device_[op]];
  worker.taken -= keeps_[op];
  if (placed_[op].duration == Time(0)) worker.taken -= (*graph_)[op].temporary.count();
}

void BlockReplay::move(OpId op, DeviceId device) {
  const DeviceId old = device_[op];
  if (old == device) return;
  take_away(op);
  put(op, device);
  stale_[old] = stale_[device] = true;

  // What was beside it no longer is, and what is beside it now was not: edges to a third device
  // stay what they are.
  const auto count = [&](DeviceId other, std::uint32_t& here, std::uint32_t& there) {
    if (other == old) {
      ++here;
      ++there;
    } else if (other == device) {
      --here;
      --there;
    }
  };
  Placed& here = placed_[op];
  outboxes_[op].stale = true;
  for (const Edge& edge : graph_->in_edges(op)) {
    Placed& there = placed_[edge.from];
    outboxes_[edge.from].stale = true;
    count(device_[edge.from], here.remote_in, there.remote_out);
  }
  for (const Edge& edge : graph_->out_edges(op))
    count(device_[edge.to], here.remote_out, placed_[edge.to].remote_in);
}

void BlockReplay::find_blocks(DeviceId device, const std::vector<OpId>& order) {
  std::vector<Block>& blocks = workers_[device].blocks;
  blocks.clear();
  workers_[device].load = {};
  bool open = false;  // nobody elsewhere waits for the operator before
  for (const OpId op : order) {
    if (!variables_.empty() && (*graph_)[op].variable) continue;
    const Placed& placed = placed_[op];
    if (!open || placed.remote_in > 0) {
      block_of_[op] = static_cast<std::uint32_t>(blocks.size());
      blocks.push_back({.head = op, .tail = op, .remote_in = placed.remote_in});
    }
    Block& block = blocks.back();
    block.tail = op;
    workers_[device].load += placed.duration;
    block.duration += placed.duration;
    block.ending = placed.duration > Time(0) ? 0 : block.ending + 1;
    open = placed.remote_out == 0;
    if (!open) {
      block.sends = true;
      block.outbox = outboxes_[op].begin;
    }
  }
  stale_[device] = false;
}

Time BlockReplay::makespan(const DeviceOrder& orders) {
  limit_ = nullptr;
  return replay(orders);
}

Time BlockReplay::makespan(const DeviceOrder& orders, const Limit& limit) {
  limit_ = &limit;
  return replay(orders);
}

Time BlockReplay::replay(const DeviceOrder& orders) {
  for (const DeviceId device : workers_.keys())
    if (stale_[device]) find_blocks(device, orders[device]);
  if (limit_ != nullptr)
    for (const Worker& worker : workers_)
      if (worker.load > limit_->most) return worker.load;
  queues_.clear();
  events_.clear();
  copies_.clear();
  finished_.clear();
  const std::size_t arrivals = std::exchange(arrivals_, 0);
  over_ = false;
  for (Worker& worker : workers_) {
    for (Block& block : worker.blocks) {
      block.waits_for = block.remote_in;
      block.ready = {};
    }
    worker.next = 0;
    worker.free = {};
    worker.left = worker.load;
    worker.busy = false;
  }
  provide_variables();
  for (const DeviceId device : workers_.keys())
    if (!workers_[device].busy) begin(device);

  Time makespan;
  while (!over_ && !events_.empty()) {
    const Event event = events_.top();
    makespan = event.when().at;
    finish(device_[event.op()], event.when());
  }
  if (over_) {
    arrivals_ = arrivals;
    return limit_->most + Time(1);
  }
  BAECHI_ASSERT(finished_.size() == num_blocks(),
                "the orders of all devices together are topological");
  return makespan;
}

// Backwards from block to block: the way through what runs next on its device, and through all that
// waits for what it sends. Where there are queues a device sends one after the other.
void BlockReplay::keep() {
  ahead_.assign(graph_->num_ops(), {});
  const bool in_turn = queues_.size() > 0;
  const auto through = [&](const Block& block) { return block.duration + ahead_[block.tail]; };
  for (Worker& worker : workers_) worker.next = worker.blocks.size();
  for (std::size_t i = finished_.size(); i-- > 0;) {
    Worker& worker = workers_[finished_[i]];
    const Block& block = worker.blocks[--worker.next];
    Time ahead;
    if (worker.next + 1 < worker.blocks.size()) ahead = through(worker.blocks[worker.next + 1]);
    if (block.sends) {
      const Outbox& outbox = outboxes_[block.tail];
      const OpId* reader = &readers_[outbox.begin];
      Time sent;
      for (const Send& send : std::span(&sends_[outbox.begin], outbox.sends)) {
        sent = in_turn ? sent + send.takes : send.takes;
        for (std::uint32_t j = 0; j < send.readers; ++j)
          ahead = std::max(ahead, sent + through(workers_[send.to].blocks[block_of_[*reader++]]));
      }
      for (std::uint32_t j = 0; j < outbox.followers; ++j, ++reader)
        ahead = std::max(ahead, through(workers_[device_[*reader]].blocks[block_of_[*reader]]));
    }
    ahead_[block.tail] = ahead;
  }
}

void BlockReplay::provide_variables() {
  for (const OpId variable : variables_)
    if (placed_[variable].remote_out > 0) send(variable, device_[variable], {});
}

std::size_t BlockReplay::num_blocks() const {
  std::size_t sum = 0;
  for (const Worker& worker : workers_) sum += worker.blocks.size();
  return sum;
}

std::int64_t BlockReplay::work() const {
  constexpr std::size_t kInCaches = 4'000;
  const std::size_t far = arrivals_ > kInCaches ? arrivals_ - kInCaches : 0;
  return static_cast<std::int64_t>(num_blocks() + far / 2);
}

// Starts what comes next on an idle device, if all that it waits for is known.
void BlockReplay::begin(DeviceId device) {
  Worker& worker = workers_[device];
  if (worker.next == worker.blocks.size() || worker.blocks[worker.next].waits_for > 0) {
    events_.remove(device);
    return;
  }
  Block& block = worker.blocks[worker.next];
  const Instant at = std::max(worker.free, block.ready);
  block.ready = at;
  worker.busy = true;
  if (limit_ != nullptr && is_over(worker, block, at.at + block.duration)) over_ = true;
  if (block.sends) {  // needed when it ends, some events from now
    prefetch(&outboxes_[block.tail]);
    prefetch(&sends_[block.outbox]);
    prefetch(&readers_[block.outbox]);
  }
  const std::uint32_t rounds = block.duration > Time(0) ? 0 : at.round;
  events_.set(device, Event::finish({at.at + block.duration, rounds + block.ending}, block.tail));
}

// `block`, its next one, ends then, and the step after the limit.
bool BlockReplay::is_over(const Worker& worker, const Block& block, Time end) const {
  if (end - block.duration + worker.left > limit_->most) return true;
  return (*limit_->rank)[block.tail] > limit_->changed && end + ahead_[block.tail] > limit_->most;
}

void BlockReplay::finish(DeviceId device, Instant now) {
  Worker& worker = workers_[device];
  const Block& block = worker.blocks[worker.next++];
  finished_.push_back(device);
  worker.left -= block.duration;
  worker.free = now;
  worker.busy = false;
  if (block.sends) send(block.tail, device, now);
  begin(device);
}

// Every other device that has a consumer of a tensor gets it once.
void BlockReplay::find_sends(OpId op) {
  Outbox& outbox = outboxes_[op];
  const DeviceId from = device_[op];
  const auto first_send = sends_.begin() + outbox.begin;
  const auto first_reader = readers_.begin() + outbox.begin;
  auto send = first_send;
  auto reader = first_reader;
  for (const TensorId tensor : graph_->outputs(op)) {
    reached_.clear();
    for (const OpId consumer : edges_.consumers(tensor))
      if (const DeviceId to = device_[consumer];
          to != from && std::ranges::find(reached_, to) == reached_.end())
        reached_.push_back(to);
    std::ranges::sort(reached_);
    for (const DeviceId to : reached_) {
      const auto before = reader;
      for (const OpId consumer : edges_.consumers(tensor))
        if (device_[consumer] == to) *reader++ = consumer;
      *send++ = {.takes = clocks_.transfer_time(from, to, graph_->size(tensor)),
                 .tensor = tensor,
                 .to = to,
                 .readers = static_cast<std::uint32_t>(reader - before)};
    }
  }
  outbox.sends = static_cast<std::uint32_t>(send - first_send);
  outbox.followers = 0;
  for (const OpId follower : edges_.followers(op)) {
    if (device_[follower] == from) continue;
    *reader++ = follower;
    ++outbox.followers;
  }
  outbox.stale = false;
}

void BlockReplay::send(OpId op, DeviceId from, Instant now) {
  const Outbox& outbox = outboxes_[op];
  if (outbox.stale) find_sends(op);
  const OpId* reader = &readers_[outbox.begin];
  const Send* const first = &sends_[outbox.begin];
  for (const Send& send : std::span(first, outbox.sends)) {
    const auto [start, end] = queues_.serve(from, send.to, now.at, send.takes);
    copies_.push_back({send.tensor, send.to, start, end});
    const Instant arrival = end == now.at ? now : Instant{end, 0};
    arrivals_ += send.readers;
    for (std::uint32_t i = 0; i < send.readers; ++i) arrive(*reader++, send.to, arrival);
  }
  arrivals_ += outbox.followers;
  for (std::uint32_t i = 0; i < outbox.followers; ++i, ++reader)
    arrive(*reader, device_[*reader], now);
}

void BlockReplay::arrive(OpId op, DeviceId device, Instant at) {
  Worker& worker = workers_[device];
  Block& block = worker.blocks[block_of_[op]];
  block.ready = std::max(block.ready, at);
  if (--block.waits_for == 0 && !worker.busy && &block == &worker.blocks[worker.next])
    begin(device);
}

void BlockReplay::tell(const DeviceOrder& orders, IdVector<OpId, OpSlot>& slots) const {
  slots.resize(graph_->num_ops());
  for (const DeviceId device : workers_.keys()) {
    auto block = workers_[device].blocks.begin();
    Time time;
    for (const OpId op : orders[device]) {
      if ((*graph_)[op].variable) {
        slots[op] = {device, Time(0), Time(0)};
        continue;
      }
      if (op == block->head) time = block->ready.at;
      slots[op] = {device, time, time + placed_[op].duration};
      time = slots[op].end;
      if (op == block->tail) ++block;
    }
  }
}

bool BlockReplay::has_room_for_all() const {
  IdVector<DeviceId, WideInt> held(workers_.size());
  for (const Copy& copy : copies_) held[copy.to] += graph_->size(copy.tensor).count();
  return std::ranges::all_of(workers_.keys(), [&](DeviceId device) {
    return workers_[device].taken + held[device] + largest_temporary_.count() <=
           costs_->cluster()[device].capacity.count();
  });
}

}  // namespace baechi::simulation
