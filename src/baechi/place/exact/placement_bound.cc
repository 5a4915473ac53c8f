// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/exact/placement_bound.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace baechi::exact {
namespace {

constexpr int kMostRounds = 4;  // of narrowing domains: it converges, with less and less to gain

bool decided(DeviceSet domain) { return std::has_single_bit(domain); }
std::size_t first_device(DeviceSet domain) {
  return static_cast<std::size_t>(std::countr_zero(domain));
}

// Calls `visit(device)` for the devices of a set, in order.
template <class Visit>
void for_each(DeviceSet set, const Visit& visit) {
  for (; set != 0; set &= set - 1) visit(first_device(set));
}

// When the last of them can be over, one after the other, none before its head. Sorts them.
Ns in_sequence(std::vector<std::pair<Ns, Ns>>& jobs) {
  std::sort(jobs.begin(), jobs.end());
  Ns end = 0;
  for (const auto& [head, time] : jobs) end = std::max(end, head) + time;
  return end;
}

}  // namespace

PlacementBound::PlacementBound(const Instance& instance)
    : in_(instance),
      alike_(instance.num_devices),
      head_(instance.num_ops * instance.num_devices, kNever),
      tail_(instance.num_ops * instance.num_devices, kNever),
      queue_jobs_(instance.num_queues) {}

Ns PlacementBound::tighten(std::vector<DeviceSet>& domain, Ns limit) {
  domain_ = &domain;
  find_alike(domain);
  Ns bound = 0;
  for (int round = 0; round < kMostRounds; ++round) {
    if (!fit_memory(domain)) return kNever;
    find_heads();
    find_tails();
    bound = 0;
    const bool narrower = filter(domain, limit, bound);
    if (bound >= limit) return kNever;
    if (!narrower) break;
  }
  for (const auto part : {&PlacementBound::device_bound, &PlacementBound::shared_load,
                          &PlacementBound::queue_bound}) {
    bound = std::max(bound, (this->*part)());
    if (bound >= limit) return kNever;
  }
  return bound;
}

// Narrowing keeps them alike.
void PlacementBound::find_alike(const std::vector<DeviceSet>& domain) {
  std::ranges::fill(alike_, DeviceSet{0});
  first_ = first_two_ = 0;
  DeviceSet seen = 0;
  for (std::size_t device = 0; device < in_.num_devices; ++device) {
    if ((seen & only(device)) != 0) continue;
    DeviceSet twins = in_.twins[device] & ~seen & ~(only(device) - 1);
    for (const DeviceSet set : domain) {
      if (twins == 0) break;
      twins &= (set & only(device)) != 0 ? set : ~set;
    }
    alike_[device] = twins | only(device);
    seen |= alike_[device];
    first_ |= only(device);
    first_two_ |= only(device) | (twins & ~(twins - 1));
  }
}

// Keeps the undecided off devices that what is decided leaves too little room on.
bool PlacementBound::fit_memory(std::vector<DeviceSet>& domain) {
  for (std::size_t device = 0; device < in_.num_devices; ++device) {
    std::int64_t permanent = 0, held = 0, running = 0;
    for (std::size_t u = 0; u < in_.units.size(); ++u) {
      if (domain[u] != only(device)) continue;
      permanent += in_.units[u].permanent;
      held += in_.units[u].held;
      running = std::max(running, in_.units[u].running);
    }
    const std::int64_t capacity = in_.capacity[device];
    if (permanent + running > capacity || held > capacity) return false;
    for (std::size_t u = 0; u < in_.units.size(); ++u) {
      const Instance::Unit& unit = in_.units[u];
      if ((domain[u] & only(device)) == 0 || decided(domain[u])) continue;
      if (permanent + unit.permanent + std::max(running, unit.running) > capacity ||
          held + unit.held > capacity)
        domain[u] &= ~only(device);
    }
  }
  return std::ranges::none_of(domain, [](DeviceSet set) { return set == 0; });
}

Ns PlacementBound::least_end(std::size_t op) const {
  Ns least = kNever;
  for_each(domain_of(op) & first_, [&](std::size_t d) {
    least = std::min(least, head_[op * in_.num_devices + d] + in_.time_on(op, d));
  });
  return least;
}

void PlacementBound::find_heads() {
  for (const Index op : in_.order)
    for_each(domain_of(op) & first_, [&](std::size_t d) {
      const Ns head = earliest(op, d);
      for_each(alike_[d], [&](std::size_t twin) { head_[op * in_.num_devices + twin] = head; });
    });
}

void PlacementBound::find_tails() {
  for (auto op = in_.order.rbegin(); op != in_.order.rend(); ++op)
    for_each(domain_of(*op) & first_, [&](std::size_t d) {
      const Ns tail = remaining(*op, d);
      for_each(alike_[d], [&](std::size_t twin) { tail_[*op * in_.num_devices + twin] = tail; });
    });
}

DeviceSet PlacementBound::places_of(std::size_t other, std::size_t op, std::size_t device) const {
  return in_.unit_of[other] == in_.unit_of[op] ? only(device) : domain_of(other);
}

// `ends` are heads, or tails where outputs are read backwards; `transfer(place)` is how long the
// tensors take between a place and the device.
template <class Transfer>
PlacementBound::Neighbor PlacementBound::neighbor_of(std::size_t device, std::size_t other,
                                                     DeviceSet places, const std::vector<Ns>& ends,
                                                     const Transfer& transfer) const {
  Neighbor neighbor{kNever, kNever, 0};
  for_each(places & (first_two_ | only(device)), [&](std::size_t place) {
    const Ns end = ends[other * in_.num_devices + place], time = in_.time_on(other, place);
    if (place == device)
      neighbor = {neighbor.remote, end, time};
    else
      neighbor.remote = std::min(neighbor.remote, end + time + transfer(place));
  });
  return neighbor;
}

// Inputs are made here, one after the other, or come from elsewhere: best_split().
Ns PlacementBound::earliest(std::size_t op, std::size_t device) {
  neighbors_.clear();
  queued_.clear();
  Ns least = 0;
  for (const Index f : in_.flows_in[op]) {
    const Instance::Flow& flow = in_.flows[f];
    const DeviceSet from = places_of(flow.from, op, device);
    const Neighbor neighbor = neighbor_of(device, flow.from, from, head_, [&](std::size_t place) {
      return in_.flow_time_on(f, place, device);
    });
    if ((from & only(device)) != 0) {
      neighbors_.push_back(neighbor);
      continue;
    }
    least = std::max(least, neighbor.remote);
    if (in_.num_queues == 0) continue;
    for (const Index tensor : flow.tensors) {
      Ns time = kNever;
      for_each(from & first_,  // `device` is not among them
               [&](std::size_t s) { time = std::min(time, in_.transfer_time(tensor, s, device)); });
      queued_.emplace_back(least_end(flow.from), time);
    }
  }
  if (queued_.size() > 1) least = std::max(least, in_sequence(queued_));
  return best_split(least);
}

// earliest(), read backwards.
Ns PlacementBound::remaining(std::size_t op, std::size_t device) {
  neighbors_.clear();
  Ns least = 0;
  for (const Index f : in_.flows_out[op]) {
    const Index reader = in_.flows[f].to;
    const DeviceSet to = places_of(reader, op, device);
    const Neighbor neighbor = neighbor_of(device, reader, to, tail_, [&](std::size_t place) {
      return in_.flow_time_on(f, device, place);
    });
    if ((to & only(device)) != 0)
      neighbors_.push_back(neighbor);
    else
      least = std::max(least, neighbor.remote);
  }
  return best_split(least);
}

// The neighbors that would come last from elsewhere are the ones to have here: keeping another one
// here costs work and gains nothing. The best of all such splits.
Ns PlacementBound::best_split(Ns least) {
  std::sort(neighbors_.begin(), neighbors_.end(),
            [](const Neighbor& a, const Neighbor& b) { return a.remote > b.remote; });
  local_.clear();
  Ns best = kNever;
  for (std::size_t here = 0;; ++here) {
    const Ns local = in_sequence(local_);
    const Ns remote = here < neighbors_.size() ? neighbors_[here].remote : 0;
    best = std::min(best, std::max({least, local, remote}));
    if (here == neighbors_.size() || local >= remote) return best;
    local_.emplace_back(neighbors_[here].head, neighbors_[here].time);
  }
}

// `bound`: the longest way through an operator at its best device. True if a domain shrank; a
// domain that would become empty leaves a bound of kNever.
bool PlacementBound::filter(std::vector<DeviceSet>& domain, Ns limit, Ns& bound) {
  bool narrower = false;
  for (std::size_t op = 0; op < in_.num_ops; ++op) {
    DeviceSet& set = domain[in_.unit_of[op]];
    Ns least = kNever;
    for_each(set, [&](std::size_t d) {
      const std::size_t at = op * in_.num_devices + d;
      const Ns through = head_[at] + in_.time_on(op, d) + tail_[at];
      least = std::min(least, through);
      if (through < limit) return;
      set &= ~only(d);
      narrower = true;
    });
    bound = std::max(bound, least);
    if (set == 0) {
      bound = kNever;
      return false;
    }
  }
  return narrower;
}

// What is decided for one device runs there one after the other.
Ns PlacementBound::device_bound() {
  Ns bound = 0;
  for (std::size_t device = 0; device < in_.num_devices; ++device) {
    jobs_.clear();
    for (std::size_t op = 0; op < in_.num_ops; ++op) {
      const std::size_t at = op * in_.num_devices + device;
      if (domain_of(op) == only(device))
        jobs_.push_back({head_[at], in_.time_on(op, device), tail_[at]});
    }
    bound = std::max(bound, machine_.makespan(jobs_));
  }
  return bound;
}

// Any set of devices shares the work that can go nowhere else, between the least head and the
// least tail of what is counted.
Ns PlacementBound::shared_load() {
  const std::size_t m = in_.num_devices;
  constexpr std::size_t kMostSubsets = 4;  // devices, of which all subsets are tried
  Ns bound = 0;
  const DeviceSet all = (m == kMostDevices ? ~DeviceSet{0} : only(m) - 1);
  const DeviceSet first = m <= kMostSubsets ? 1 : all;
  for (DeviceSet set = first; set <= all && set != 0; ++set) {
    if (decided(set) && m > 1) continue;  // device_bound()
    jobs_.clear();
    for (std::size_t op = 0; op < in_.num_ops; ++op) {
      if ((domain_of(op) & ~set) != 0) continue;
      bounds::HeadTailJob job{kNever, kNever, kNever};
      for_each(domain_of(op) & first_, [&](std::size_t d) {
        job.head = std::min(job.head, head_[op * m + d]);
        job.time = std::min(job.time, in_.time_on(op, d));
        job.tail = std::min(job.tail, tail_[op * m + d]);
      });
      if (job.head >= kNever) return kNever;
      jobs_.push_back(job);
    }
    const auto share = static_cast<Ns>(std::popcount(set));
    std::sort(
        jobs_.begin(), jobs_.end(),
        [](const bounds::HeadTailJob& a, const bounds::HeadTailJob& b) { return a.head > b.head; });
    Ns all_work = 0;
    for (const bounds::HeadTailJob& job : jobs_) all_work += job.time;
    for (const bounds::HeadTailJob& least : jobs_) {
      if (jobs_.front().head + all_work / share + least.tail < bound) continue;
      Ns most = 0, work = 0;  // `share` times as long as shared
      for (const bounds::HeadTailJob& job : jobs_) {
        if (job.tail < least.tail) continue;
        work += job.time;
        most = std::max(most, job.head * share + work);
      }
      bound = std::max(bound, (most + share - 1) / share + least.tail);
    }
    if (set == all) break;
  }
  return bound;
}

// Transfers that no completion avoids pass their queues one after the other.
Ns PlacementBound::queue_bound() {
  if (in_.num_queues == 0) return 0;
  for (std::vector<bounds::HeadTailJob>& jobs : queue_jobs_) jobs.clear();
  for (std::size_t tensor = 0; tensor < in_.tensors.size(); ++tensor) add_transfer(tensor);
  Ns bound = 0;
  for (std::vector<bounds::HeadTailJob>& jobs : queue_jobs_)
    bound = std::max(bound, machine_.makespan(jobs));
  return bound;
}

void PlacementBound::add_transfer(std::size_t tensor) {
  const std::size_t m = in_.num_devices;
  const Instance::Tensor& row = in_.tensors[tensor];
  const DeviceSet home = domain_of(row.producer);
  const Ns head = least_end(row.producer);
  DeviceSet reached = 0;  // by a reader that is decided
  for (const Index reader : row.readers)
    if (decided(domain_of(reader))) reached |= domain_of(reader);
  for_each(reached & ~home, [&](std::size_t to) {
    Ns tail = 0, time = kNever;
    for (const Index reader : row.readers)
      if (domain_of(reader) == only(to))
        tail = std::max(tail, in_.time_on(reader, to) + tail_[reader * m + to]);
    for_each(home,
             [&](std::size_t from) { time = std::min(time, in_.transfer_time(tensor, from, to)); });
    if (decided(home)) {
      for (const Index queue : in_.queues[first_device(home) * m + to])
        queue_jobs_[queue].push_back({head, time, tail});
    } else {  // the receiver's queue, whatever the sender
      queue_jobs_[in_.queues[first_device(home) * m + to][1]].push_back({head, time, tail});
    }
  });
  if (!decided(home)) return;
  // To readers that will be anywhere but here: one transfer at least, the shortest.
  if ((reached & ~home) != 0) return;
  const std::size_t from = first_device(home);
  Ns time = kNever, tail = kNever;
  bool leaves = false;
  for (const Index reader : row.readers) {
    if ((domain_of(reader) & home) != 0) continue;
    leaves = true;
    for_each(domain_of(reader), [&](std::size_t to) {
      time = std::min(time, in_.transfer_time(tensor, from, to));
      tail = std::min(tail, in_.time_on(reader, to) + tail_[reader * m + to]);
    });
  }
  if (leaves) queue_jobs_[from].push_back({head, time, tail});
}

}  // namespace baechi::exact
