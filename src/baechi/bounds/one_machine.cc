// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/one_machine.h"

#include <algorithm>

namespace baechi::bounds {

Ns preemptive_one_machine(std::vector<HeadTailJob> jobs) {
  std::sort(jobs.begin(), jobs.end(),
            [](const HeadTailJob& a, const HeadTailJob& b) { return a.b < b.b; });
  const auto shorter_tail = [](const HeadTailJob& a, const HeadTailJob& b) { return a.q < b.q; };
  std::vector<HeadTailJob> open;  // a heap, longest tail on top; k is what is left to do
  Ns now = 0, end = 0;
  for (std::size_t next = 0; next < jobs.size() || !open.empty();) {
    if (open.empty()) now = std::max(now, jobs[next].b);
    for (; next < jobs.size() && jobs[next].b <= now; ++next) {
      open.push_back(jobs[next]);
      std::push_heap(open.begin(), open.end(), shorter_tail);
    }
    HeadTailJob& head = open.front();
    const Ns until = next < jobs.size() ? std::min(now + head.k, jobs[next].b) : now + head.k;
    head.k -= until - now;
    now = until;
    if (head.k > 0) continue;
    end = std::max(end, now + head.q);
    std::pop_heap(open.begin(), open.end(), shorter_tail);
    open.pop_back();
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
      if (possible) least = std::min(least, preemptive_one_machine(jobs));
    }
    longest = std::max(longest, least);
  }
  return longest;
}

}  // namespace baechi::bounds
