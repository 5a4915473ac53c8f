// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/exact/order_search.h"

#include <algorithm>
#include <bit>

#include "baechi/base/assert.h"

namespace baechi::exact {
namespace {

constexpr int kRoundBits = 7;

constexpr std::int64_t stamp(Ns at) { return at << kRoundBits; }
constexpr Ns moment_of(std::int64_t stamp) { return stamp >> kRoundBits; }

// Calls `visit(op)` for the operators of a set, in order.
template <class Visit>
void for_each(OpSet set, const Visit& visit) {
  for (; set != 0; set &= set - 1) visit(static_cast<std::size_t>(std::countr_zero(set)));
}

}  // namespace

OrderSearch::OrderSearch(const Instance& instance)
    : in_(instance),
      tail_(instance.num_ops),
      moments_(instance.num_ops + 1, Moment(instance.costs->cluster())),
      head_(instance.num_ops),
      queue_jobs_(instance.num_queues) {}

bool OrderSearch::run(const std::vector<Index>& device, const std::vector<Ns>& tails, Ns limit,
                      const Offer& offer, const Stop& stop) {
  device_ = &device;
  offer_ = &offer;
  stop_ = &stop;
  stopped_ = false;
  limit_ = limit;
  sequence_.clear();
  prepare(device, tails);
  search(0);
  return !stopped_;
}

void OrderSearch::prepare(const std::vector<Index>& device, const std::vector<Ns>& tails) {
  const std::size_t m = in_.num_devices;
  on_.assign(m, 0);
  permanent_.assign(m, 0);
  for (std::size_t op = 0; op < in_.num_ops; ++op) {
    on_[device[op]] |= op_bit(op);
    tail_[op] = tails[op * m + device[op]];
  }
  for (const Instance::Unit& unit : in_.units)
    permanent_[device[unit.ops.front()]] += unit.permanent;
  copies_.clear();
  copies_of_.clear();
  for (std::size_t tensor = 0; tensor < in_.tensors.size(); ++tensor) add_copies(tensor);

  queues_of_.assign(in_.num_ops, {});
  if (in_.num_queues > 0)
    for (const Copy& copy : copies_) {
      const std::size_t producer = in_.tensors[copy.tensor].producer;
      for (const Index queue : in_.queues[device[producer] * m + copy.to])
        if (!std::ranges::count(queues_of_[producer], queue)) queues_of_[producer].push_back(queue);
    }
  ample_ = memory_is_ample();
  searched_.clear();
  sets_tell_all_ = std::ranges::count(on_, OpSet{0}) + 1 == static_cast<std::ptrdiff_t>(m);
  OpSet variables = 0;
  for (const Index op : in_.variables) variables |= op_bit(op);
  for (std::size_t op = 0; op < in_.num_ops; ++op)
    sets_tell_all_ &= time(op) > 0 || (variables & op_bit(op)) != 0;

  Moment& start = moments_[0];
  start = Moment(in_.costs->cluster());
  start.current.assign(m, std::nullopt);
  start.free.assign(m, 0);
  start.ready.assign(in_.num_ops, 0);
  start.waits.clear();
  for (std::size_t op = 0; op < in_.num_ops; ++op)
    start.waits.push_back(static_cast<Index>(in_.flows_in[op].size()));
  start.start.assign(in_.num_ops, 0);
  start.finish.assign(in_.num_ops, 0);
  start.senders.assign(in_.num_queues, 0);
  for (const std::vector<Index>& queues : queues_of_)
    for (const Index queue : queues) ++start.senders[queue];
  start.copy_start.assign(copies_.size(), kNever);
  start.copy_end.assign(copies_.size(), kNever);
  start.committed = start.begun = variables;
  for (const Index op : in_.variables) finish(start, op);
}

// Once to every device with a reader, by device id: the order in which they are requested.
void OrderSearch::add_copies(std::size_t tensor) {
  const Instance::Tensor& row = in_.tensors[tensor];
  const auto begin = static_cast<Index>(copies_.size());
  const std::size_t from = device_of(row.producer);
  for (std::size_t to = 0; to < in_.num_devices; ++to) {
    if (to == from) continue;
    Copy copy{static_cast<Index>(tensor),
              static_cast<Index>(to),
              in_.transfer_time(tensor, from, to),
              0,
              {}};
    for (const Index reader : row.readers) {
      if (device_of(reader) != to) continue;
      copy.readers.push_back(reader);
      copy.tail = std::max(copy.tail, time(reader) + tail_[reader]);
    }
    if (!copy.readers.empty()) copies_.push_back(std::move(copy));
  }
  copies_of_.emplace_back(begin, static_cast<Index>(copies_.size()));
}

// Every device could hold all that it ever sees at once.
bool OrderSearch::memory_is_ample() const {
  std::vector<std::int64_t> most = permanent_;
  for (std::size_t op = 0; op < in_.num_ops; ++op) {
    std::int64_t& bytes = most[device_of(op)];
    bytes += in_.temporary[op];
    for (const Index tensor : in_.outputs[op]) bytes += in_.tensors[tensor].at_home;
  }
  for (const Copy& copy : copies_) most[copy.to] += in_.tensors[copy.tensor].bytes;
  for (std::size_t device = 0; device < in_.num_devices; ++device)
    if (most[device] > in_.capacity[device]) return false;
  return true;
}

void OrderSearch::search(std::size_t depth) {
  if (stopped_ || (*stop_)()) {
    stopped_ = true;
    return;
  }
  Moment& at = moments_[depth];
  const std::optional<std::size_t> device = advance(at);
  if (at.now < 0 || begins_too_much(at)) return;  // out of memory
  if (!device.has_value()) {
    if (std::popcount(at.finished) == static_cast<int>(in_.num_ops)) complete(depth);
    return;  // else its choices wait for each other
  }
  constexpr std::size_t kMostSets = 1'000'000;
  if (sets_tell_all_ && searched_.size() < kMostSets && !searched_.insert(at.committed).second)
    return;
  if (bound(at) < limit_) branch(depth, *device);
}

void OrderSearch::branch(std::size_t depth, std::size_t device) {
  const Moment& at = moments_[depth];
  struct Choice {
    Ns start, tail;
    Index rank;
  };
  std::vector<Choice> ranked;
  for_each(worth_trying(at, device, choices(at, device)),
           [&](std::size_t op) { ranked.push_back({head_[op], tail_[op], in_.rank[op]}); });
  std::sort(ranked.begin(), ranked.end(), [](const Choice& a, const Choice& b) {
    if (a.start != b.start) return a.start < b.start;
    return a.tail != b.tail ? a.tail > b.tail : a.rank < b.rank;
  });
  for (const Choice& choice : ranked) {
    if (stopped_) return;
    moments_[depth + 1] = at;
    const Index op = in_.order[choice.rank];
    commit(moments_[depth + 1], op);
    sequence_.push_back(op);
    search(depth + 1);
    sequence_.pop_back();
  }
}

// Lets time pass until a device has to choose: everything that finishes in a round finishes first.
// Sets `now` to -1 when a device runs out of memory on the way.
std::optional<std::size_t> OrderSearch::advance(Moment& at) const {
  while (true) {
    std::optional<Index> next;
    std::optional<std::size_t> idle;
    for (std::size_t device = 0; device < in_.num_devices; ++device) {
      const std::optional<Index> op = at.current[device];
      if (!op.has_value()) {
        if (!idle.has_value() && (on_[device] & ~at.finished) != 0) idle = device;
      } else if ((at.begun & op_bit(*op)) != 0) {
        if (!next.has_value() || at.finish[*op] < at.finish[*next] ||
            (at.finish[*op] == at.finish[*next] && *op < *next))
          next = op;
      }
    }
    if (idle.has_value() && (!next.has_value() || at.finish[*next] > at.now)) return idle;
    if (!next.has_value()) return std::nullopt;
    const Ns before = moment_of(at.now), after = moment_of(at.finish[*next]);
    if (!ample_ && after > before && runs_over(at, before, after)) {
      at.now = -1;
      return std::nullopt;
    }
    finish(at, *next);
  }
}

void OrderSearch::commit(Moment& at, std::size_t op) const {
  at.current[device_of(op)] = static_cast<Index>(op);
  at.committed |= op_bit(op);
  if (at.waits[op] == 0) begin_if_ready(at, op);
}

void OrderSearch::begin_if_ready(Moment& at, std::size_t op) const {
  if ((at.committed & op_bit(op)) == 0) return;
  at.begun |= op_bit(op);
  at.start[op] = std::max(at.free[device_of(op)], at.ready[op]);
  at.finish[op] = time(op) > 0 ? stamp(moment_of(at.start[op]) + time(op)) : at.start[op] + 1;
}

void OrderSearch::finish(Moment& at, std::size_t op) const {
  at.now = at.finish[op];
  at.finished |= op_bit(op);
  at.current[device_of(op)].reset();
  at.free[device_of(op)] = at.now;
  for (const Index queue : queues_of_[op]) --at.senders[queue];
  for (const Index tensor : in_.outputs[op]) request(at, tensor);
  for (const Index flow : in_.flows_out[op]) arrive(at, in_.flows[flow].to, at.now);
}

void OrderSearch::request(Moment& at, std::size_t tensor) const {
  const std::size_t from = device_of(in_.tensors[tensor].producer);
  const Ns now = moment_of(at.now);
  for (Index c = copies_of_[tensor].first; c < copies_of_[tensor].second; ++c) {
    const Copy& copy = copies_[c];
    const auto [start, end] =
        at.queues.serve(DeviceId(from), DeviceId(copy.to), Time(now), Time(copy.time));
    at.copy_start[c] = start.count();
    at.copy_end[c] = end.count();
    const Stamp arrival = at.copy_end[c] == now ? at.now : stamp(at.copy_end[c]);
    for (const Index reader : copy.readers) at.ready[reader] = std::max(at.ready[reader], arrival);
  }
}

void OrderSearch::arrive(Moment& at, std::size_t op, Stamp when) const {
  at.ready[op] = std::max(at.ready[op], when);
  if (--at.waits[op] == 0) begin_if_ready(at, op);
}

// What the device may run next without waiting for itself.
OpSet OrderSearch::choices(const Moment& at, std::size_t device) const {
  const OpSet left = on_[device] & ~at.committed;
  OpSet first = 0;
  for_each(left, [&](std::size_t op) {
    if ((in_.ancestors[op] & left) == 0) first |= op_bit(op);
  });
  return first;
}

// Operators that finish earlier never make a transfer later.
bool OrderSearch::monotone(const Moment& at) const {
  return std::ranges::all_of(at.senders, [](Index senders) { return senders < 2; });
}

// Where earlier is never worse, a device need not wait for an operator if it can run another one
// in the meantime.
OpSet OrderSearch::worth_trying(const Moment& at, std::size_t device, OpSet choices) {
  if (!ample_ || !monotone(at)) return choices;
  OpSet left = choices;
  for_each(choices, [&](std::size_t late) {
    for_each(choices & ~op_bit(late), [&](std::size_t early) {
      if (at.waits[early] != 0) return;
      const Ns end = moment_of(std::max(at.free[device], at.ready[early])) + time(early);
      if (end > head_[late]) return;
      if (end < head_[late] || time(early) > 0 || time(late) > 0 ||
          in_.rank[early] < in_.rank[late])
        left &= ~op_bit(late);
    });
  });
  return left;
}

// No plan that goes on from here has a shorter step. Leaves the heads in head_.
Ns OrderSearch::bound(const Moment& at) {
  find_heads(at);
  Ns longest = device_bound(at);
  if (in_.num_queues > 0 && longest < limit_) longest = std::max(longest, queue_bound(at));
  return longest;
}

void OrderSearch::find_heads(const Moment& at) {
  // What a device has chosen comes first, which is known only once its own head is: twice, then.
  std::vector<Ns>& head = head_;
  const auto pass = [&](bool again) {
    for (const Index op : in_.order) {
      if ((at.finished & op_bit(op)) != 0) continue;
      const std::size_t device = device_of(op);
      if ((at.begun & op_bit(op)) != 0) {
        head[op] = moment_of(at.start[op]);
        continue;
      }
      Ns least = std::max(moment_of(at.ready[op]), moment_of(at.free[device]));
      least = std::max(least, moment_of(at.now));
      if (const auto current = at.current[device]; current.has_value() && *current != op) {
        if ((at.begun & op_bit(*current)) != 0)
          least = std::max(least, moment_of(at.finish[*current]));
        else if (again)
          least = std::max(least, head[*current] + time(*current));
      }
      for (const Index f : in_.flows_in[op]) {
        const std::size_t from = in_.flows[f].from;
        if ((at.finished & op_bit(from)) != 0) continue;
        least =
            std::max(least, head[from] + time(from) + in_.flow_time_on(f, device_of(from), device));
      }
      head[op] = least;
    }
  };
  pass(false);
  if (at.committed != at.begun) pass(true);
}

Ns OrderSearch::device_bound(const Moment& at) {
  Ns longest = moment_of(at.now);
  for (std::size_t device = 0; device < in_.num_devices; ++device) {
    jobs_.clear();
    for_each(on_[device] & ~at.finished,
             [&](std::size_t op) { jobs_.push_back({head_[op], time(op), tail_[op]}); });
    longest = std::max(longest, machine_.makespan(jobs_));
    if (longest >= limit_) break;
  }
  return longest;
}

Ns OrderSearch::queue_bound(const Moment& at) {
  for (std::vector<bounds::HeadTailJob>& jobs : queue_jobs_) jobs.clear();
  for (const Copy& copy : copies_) {
    const std::size_t producer = in_.tensors[copy.tensor].producer;
    if ((at.finished & op_bit(producer)) != 0) continue;
    const Ns ready = head_[producer] + time(producer);
    for (const Index queue : in_.queues[device_of(producer) * in_.num_devices + copy.to])
      queue_jobs_[queue].push_back(
          {std::max(ready, at.queues.free(queue).count()), copy.time, copy.tail});
  }
  Ns longest = 0;
  for (std::vector<bounds::HeadTailJob>& jobs : queue_jobs_) {
    longest = std::max(longest, machine_.makespan(jobs));
    if (longest >= limit_) break;
  }
  return longest;
}

// Whether a device holds too much at a moment in [from, to) at which something begins. All that
// begins or ends in there is known.
bool OrderSearch::runs_over(const Moment& at, Ns from, Ns to) const {
  const auto within = [&](Ns moment) { return from <= moment && moment < to; };
  bool over = false;
  for_each(at.begun, [&](std::size_t op) {
    const Ns moment = moment_of(at.start[op]);
    if (!over && within(moment)) over = holds_too_much(at, device_of(op), moment);
  });
  for (std::size_t c = 0; c < copies_.size() && !over; ++c)
    if (within(at.copy_start[c])) over = holds_too_much(at, copies_[c].to, at.copy_start[c]);
  return over;
}

// What a running operator finds on its device stays at least until it ends: whoever frees it has
// not begun. So its start can be judged before its end; only copies may still join it.
bool OrderSearch::begins_too_much(const Moment& at) const {
  if (ample_) return false;
  for (std::size_t device = 0; device < in_.num_devices; ++device)
    if (const auto op = at.current[device]; op.has_value() && (at.begun & op_bit(*op)) != 0 &&
                                            time(*op) > 0 &&
                                            holds_too_much(at, device, moment_of(at.start[*op])))
      return true;
  return false;
}

bool OrderSearch::holds_too_much(const Moment& at, std::size_t device, Ns moment) const {
  std::int64_t bytes = permanent_[device];
  const auto lives = [&](Ns begin, Ns end) {
    return begin <= moment && (end > moment || (begin == end && end == moment));
  };
  const auto last_use = [&](Ns end, std::size_t reader) {
    return (at.finished & op_bit(reader)) != 0 ? std::max(end, moment_of(at.finish[reader]))
                                               : kNever;
  };
  for_each(at.begun & on_[device], [&](std::size_t op) {
    const Ns start = moment_of(at.start[op]);
    if (lives(start, moment_of(at.finish[op]))) bytes += in_.temporary[op];
    for (const Index tensor : in_.outputs[op]) {
      const Instance::Tensor& row = in_.tensors[tensor];
      Ns end = row.lasts ? kNever : moment_of(at.finish[op]);
      for (const Index reader : row.readers)
        if (device_of(reader) == device) end = last_use(end, reader);
      for (Index c = copies_of_[tensor].first; c < copies_of_[tensor].second; ++c)
        end = std::max(end, at.copy_end[c]);
      if (lives(start, end)) bytes += row.at_home;
    }
  });
  for (std::size_t c = 0; c < copies_.size(); ++c) {
    const Copy& copy = copies_[c];
    if (copy.to != device || at.copy_start[c] >= kNever) continue;
    Ns end = in_.tensors[copy.tensor].kept ? kNever : at.copy_start[c];
    for (const Index reader : copy.readers) end = last_use(end, reader);
    if (lives(at.copy_start[c], end)) bytes += in_.tensors[copy.tensor].bytes;
  }
  return bytes > in_.capacity[device];
}

void OrderSearch::complete(std::size_t depth) {
  const Ns makespan = moment_of(moments_[depth].now);
  if (makespan >= limit_) return;
  PlacedGraph placed;
  placed.order.emplace(in_.num_devices);
  for (const Index device : *device_) placed.device.push_back(DeviceId(device));
  for (const Index op : in_.variables) (*placed.order)[DeviceId(device_of(op))].push_back(OpId(op));
  for (const Index op : sequence_) (*placed.order)[DeviceId(device_of(op))].push_back(OpId(op));
  if ((*offer_)(placed, makespan)) limit_ = makespan;
}

}  // namespace baechi::exact
