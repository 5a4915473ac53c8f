// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/one_machine.h"

#include <algorithm>

namespace baechi::bounds {

Ns PreemptiveMachine::makespan(std::vector<HeadTailJob>& jobs) {
  std::sort(jobs.begin(), jobs.end(),
            [](const HeadTailJob& a, const HeadTailJob& b) { return a.head < b.head; });
  const auto shorter_tail = [](const HeadTailJob& a, const HeadTailJob& b) {
    return a.tail < b.tail;
  };
  open_.clear();
  Ns now = 0, end = 0;
  for (std::size_t next = 0; next < jobs.size() || !open_.empty();) {
    if (open_.empty()) now = std::max(now, jobs[next].head);
    for (; next < jobs.size() && jobs[next].head <= now; ++next) {
      open_.push_back(jobs[next]);
      std::push_heap(open_.begin(), open_.end(), shorter_tail);
    }
    HeadTailJob& first = open_.front();
    Ns until = now + first.time;
    if (next < jobs.size()) until = std::min(until, jobs[next].head);
    first.time -= until - now;
    now = until;
    if (first.time > 0) continue;
    end = std::max(end, now + first.tail);
    std::pop_heap(open_.begin(), open_.end(), shorter_tail);
    open_.pop_back();
  }
  return end;
}

Ns one_device_each(const Relaxation& relaxed, const HeadsTails& ends,
                   const IdVector<OpId, UnitId>& component, std::size_t num_components) {
  const std::size_t num_types = relaxed.num_types();
  std::vector<std::uint32_t> begin(num_components + 1, 0);
  for (const UnitId c : component) ++begin[c.index() + 1];
  for (std::size_t c = 0; c < num_components; ++c) begin[c + 1] += begin[c];
  std::vector<OpId> members(component.size(), OpId(0));
  std::vector<std::uint32_t> next = begin;
  for (const OpId op : component.keys()) members[next[component[op].index()]++] = op;

  Ns longest = 0;
  PreemptiveMachine machine;
  std::vector<HeadTailJob> jobs;
  for (std::size_t c = 0; c < num_components; ++c) {
    if (begin[c + 1] - begin[c] < 2) continue;  // the star bound says it all
    Ns least = kNever;
    for (std::size_t type = 0; type < num_types; ++type) {
      jobs.clear();
      bool possible = true;
      for (std::uint32_t i = begin[c]; i < begin[c + 1]; ++i) {
        const std::size_t at = members[i].index() * num_types + type;
        possible = possible && relaxed.k[at] < kNever && ends.b[at] < kNever && ends.q[at] < kNever;
        jobs.push_back({ends.b[at], relaxed.k[at], ends.q[at]});
      }
      if (possible) least = std::min(least, machine.makespan(jobs));
    }
    longest = std::max(longest, least);
  }
  return longest;
}

}  // namespace baechi::bounds
