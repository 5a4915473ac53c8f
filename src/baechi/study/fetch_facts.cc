// SPDX-License-Identifier: Apache-2.0
#include "baechi/study/fetch_facts.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "baechi/base/assert.h"

namespace baechi {
namespace {

// The last operator of a device that has started by then: the one that runs, mostly.
class Running {
 public:
  explicit Running(const Schedule& schedule, std::size_t devices) : started_(devices) {
    for (const OpId op : schedule.slots.keys())
      if (schedule.slots[op].end > schedule.slots[op].start)
        started_[schedule.slots[op].device].emplace_back(schedule.slots[op].start, op);
    for (auto& ops : started_) std::ranges::sort(ops);
  }

  std::optional<OpId> at(DeviceId device, Time time) const {
    const auto& ops = started_[device];
    const auto behind = std::ranges::partition_point(
        ops, [&](const auto& started) { return started.first <= time; });
    if (behind == ops.begin()) return std::nullopt;
    return std::prev(behind)->second;
  }

 private:
  IdVector<DeviceId, std::vector<std::pair<Time, OpId>>> started_;
};

std::optional<OpId> first_reader(const OpGraph& graph, const Schedule& schedule,
                                 const Transfer& transfer) {
  std::optional<OpId> first;
  for (const Edge& edge : graph.consumers(transfer.tensor)) {
    const OpSlot& slot = schedule.slots[edge.to];
    if (slot.device != transfer.to) continue;
    if (!first.has_value() || slot.start < schedule.slots[*first].start) first = edge.to;
  }
  return first;
}

}  // namespace

HostFacts host_facts(const StepGraph& step, const Cluster& cluster, const Plan& plan) {
  HostFacts facts;
  const std::optional<DeviceId> store = cluster.find(plan.residency.store);
  if (plan.residency.empty() || !store.has_value()) return facts;
  const OpGraph& graph = step.graph();
  const Schedule& schedule = plan.schedule;
  BAECHI_ASSERT(graph.num_ops() == schedule.slots.size(), "the plan is one of this step");
  const Running running(schedule, cluster.num_devices());
  IdVector<DeviceId, LinkFacts> links(cluster.num_devices());
  for (const Transfer& transfer : schedule.transfers) {
    const Bytes bytes = graph.size(transfer.tensor);
    const Time time = transfer.end - transfer.start;
    if (transfer.to == *store) {
      LinkFacts& link = links[transfer.from];
      ++link.puts;
      link.put += bytes;
      link.putting += time;
    }
    if (transfer.from != *store) continue;
    LinkFacts& link = links[transfer.to];
    ++link.fetches;
    link.fetched += bytes;
    link.fetching += time;
    const std::optional<OpId> reader = first_reader(graph, schedule, transfer);
    const auto inputs = graph.in_edges(graph.producer(transfer.tensor));
    if (!reader.has_value() || inputs.empty()) continue;
    const Time use = schedule.slots[*reader].start;
    facts.fetches.push_back({.of = inputs.begin()->from,
                             .reader = *reader,
                             .during = running.at(transfer.to, transfer.start),
                             .device = transfer.to,
                             .bytes = bytes,
                             .start = transfer.start,
                             .end = transfer.end,
                             .early = use - std::min(use, transfer.end)});
  }
  for (const DeviceId device : links.keys()) {
    links[device].device = device;
    if (links[device].fetches + links[device].puts > 0) facts.links.push_back(links[device]);
  }
  std::ranges::stable_sort(facts.fetches, [](const FetchFacts& a, const FetchFacts& b) {
    return std::tuple(a.early, b.bytes) < std::tuple(b.early, a.bytes);
  });
  return facts;
}

}  // namespace baechi
