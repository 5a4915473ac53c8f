// SPDX-License-Identifier: Apache-2.0
// Critical paths of random schedules: without a gap, and every link with a reason that can be read
// off the graph, the cluster and the schedule.
#include "baechi/simulate/critical_path.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>

#include "baechi/base/random.h"
#include "baechi/simulate/execution_simulator.h"
#include "unit/graphs.h"
#include "unit/simulate/random_placement.h"

namespace baechi {
namespace {

using enum CriticalReason;

struct Instance {
  const OpGraph& graph;
  const Cluster& cluster;
  const Schedule& schedule;

  DeviceId device(OpId op) const { return schedule.slots[op].device; }
  const Transfer& transfer(const CriticalLink& link) const {
    return schedule.transfers[*link.transfer];
  }
};

bool has_edge(const OpGraph& graph, OpId from, OpId to, bool data) {
  return std::any_of(graph.out_edges(from).begin(), graph.out_edges(from).end(),
                     [&](const Edge& e) { return e.to == to && e.tensor.has_value() == data; });
}

bool uses_channel(const Instance& on, const Transfer& transfer, ChannelId channel) {
  const auto& channels = on.cluster.link(transfer.from, transfer.to).channels;
  return std::find(channels.begin(), channels.end(), channel) != channels.end();
}

bool same_queue(const Instance& on, const Transfer& a, const Transfer& b, DeviceId device) {
  if (on.cluster.communication() == CommunicationMode::kDuplex)
    return (a.from == device && b.from == device) || (a.to == device && b.to == device);
  return on.cluster.communication() == CommunicationMode::kSequential &&
         (a.from == device || a.to == device) && (b.from == device || b.to == device);
}

bool has_reason(const Instance& on, const CriticalLink& before, const CriticalLink& link) {
  const bool waited = link.ready < link.start || before.start == before.end;
  switch (link.reason) {
    case kStepStart:
      return false;  // only of the first link
    case kInput:
      return !before.transfer && !link.transfer && has_edge(on.graph, before.op, link.op, true) &&
             on.device(before.op) == on.device(link.op);
    case kControl:
      return !before.transfer && !link.transfer && has_edge(on.graph, before.op, link.op, false);
    case kArrival:
      return before.transfer && !link.transfer && has_edge(on.graph, before.op, link.op, true) &&
             on.transfer(before).to == on.device(link.op);
    case kProduced:
      return !before.transfer && link.transfer &&
             on.graph.producer(on.transfer(link).tensor) == before.op && link.ready == link.start;
    case kBusyDevice:
      return !before.transfer && !link.transfer && waited &&
             on.device(before.op) == on.device(link.op);
    case kBusyQueue:
      return before.transfer && link.transfer && waited && link.queue &&
             same_queue(on, on.transfer(before), on.transfer(link), *link.queue);
    case kBusyChannel:
      return before.transfer && link.transfer && waited && link.channel &&
             on.cluster.communication() != CommunicationMode::kParallel &&
             uses_channel(on, on.transfer(before), *link.channel) &&
             uses_channel(on, on.transfer(link), *link.channel);
  }
  return false;
}

// The link is in the schedule as it says.
bool is_true(const Instance& on, const CriticalLink& link) {
  if (!link.transfer) {
    const OpSlot& slot = on.schedule.slots[link.op];
    return slot.start == link.start && slot.end == link.end && link.ready <= link.start;
  }
  const Transfer& transfer = on.transfer(link);
  return transfer.start == link.start && transfer.end == link.end &&
         transfer.requested == link.ready && on.graph.producer(transfer.tensor) == link.op;
}

testing::RandomDag limits_of(Random& random) {
  testing::RandomDag limits;
  limits.max_ops = 3 + random.below(25);
  limits.edge_chance = random.unit() * 0.5;
  limits.cpu_chance = 0.9;
  limits.max_time = random.chance(0.5) ? 2 : 20;  // short ones end together
  limits.max_tensor_bytes = random.chance(0.3) ? 0 : 8;
  return limits;
}

TEST_CASE("critical path: it has no gap, and every link of it has its reason") {
  std::size_t reasons[8] = {};
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    CAPTURE(seed);
    Random random(seed ^ 0x9a7);
    const OpGraph graph = testing::random_dag(seed, limits_of(random));
    const Cluster cluster = testing::random_cluster(seed);
    const CostModel costs(graph, cluster);
    const std::optional<Placement> placement = testing::random_placement(costs, random);
    if (!placement.has_value()) continue;
    PlacedGraph placed{*placement, std::nullopt};
    if (random.chance(0.6)) placed.order = testing::random_order(costs, *placement, random);
    const Schedule schedule = simulate(costs, placed).schedule;
    const Instance on{graph, cluster, schedule};

    const CriticalPath path = critical_path(graph, cluster, schedule);
    REQUIRE_FALSE(path.links.empty());
    REQUIRE(path.links.front().start == Time(0));
    REQUIRE(path.links.front().reason == kStepStart);
    REQUIRE(path.links.back().end == schedule.makespan);
    for (std::size_t i = 0; i < path.links.size(); ++i) {
      CAPTURE(i);
      REQUIRE(is_true(on, path.links[i]));
      ++reasons[static_cast<std::size_t>(path.links[i].reason)];
      if (i == 0) continue;
      REQUIRE(path.links[i].start == path.links[i - 1].end);
      REQUIRE(has_reason(on, path.links[i - 1], path.links[i]));
    }
    Time total;
    for (const CriticalUse use : {CriticalUse::kCompute, CriticalUse::kTransfer,
                                  CriticalUse::kDeviceWait, CriticalUse::kQueueWait})
      total += path.total(use);
    REQUIRE(total == schedule.makespan);
    Time at, waiting;
    for (const CriticalSegment& segment : path.segments(schedule)) {
      REQUIRE(segment.start == at);
      REQUIRE(segment.start == path.links[segment.first].start);
      at = segment.end;
      waiting += segment.waiting;
    }
    REQUIRE(at == schedule.makespan);
    REQUIRE(waiting == path.total(CriticalUse::kDeviceWait) + path.total(CriticalUse::kQueueWait));
  }
  for (const std::size_t count : reasons) CHECK(count > 50);
}

}  // namespace
}  // namespace baechi
