// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/facts/plan_facts.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/verify/check_schedule.h"

namespace baechi {
namespace {

constexpr std::size_t kFewestPoints = 64;  // of a device's curve, however many devices there are

IdVector<DeviceId, PeakFacts> peaks_of(const OpGraph& graph, const Schedule& schedule,
                                       const IdVector<DeviceId, MemoryCurve>& curves,
                                       std::size_t max_holders) {
  IdVector<DeviceId, Time> moments;
  for (const MemoryCurve& curve : curves) moments.push_back(highest(curve).at);
  const auto held = held_memory(graph, schedule, moments);
  IdVector<DeviceId, PeakFacts> peaks;
  for (const DeviceId device : curves.keys()) {
    PeakFacts peak{highest(curves[device]).bytes, moments[device], {}, held[device], 0};
    for (const HeldMemory& h : peak.holders) peak.parts[static_cast<std::size_t>(h.use)] += h.bytes;
    std::stable_sort(peak.holders.begin(), peak.holders.end(),
                     [](const HeldMemory& a, const HeldMemory& b) {
                       return std::tie(b.bytes, a.op, a.use) < std::tie(a.bytes, b.op, b.use);
                     });
    if (peak.holders.size() > max_holders) {
      peak.more_holders = peak.holders.size() - max_holders;
      peak.holders.erase(peak.holders.begin() + static_cast<std::ptrdiff_t>(max_holders),
                         peak.holders.end());
    }
    peaks.push_back(std::move(peak));
  }
  return peaks;
}

// Links shorter than `grain` share a part as long as it stays within one grain.
std::vector<PathPart> parts_of_grain(const CriticalPath& path, Time grain) {
  std::vector<PathPart> parts;
  bool open = false;  // the last part takes more
  for (std::size_t i = 0; i < path.links.size(); ++i) {
    const CriticalLink& link = path.links[i];
    const bool small = link.end - link.start < grain;
    if (open && small && link.end - parts.back().start < grain) {
      PathPart& part = parts.back();
      const CriticalLink& longest = path.links[part.longest];
      if (link.end - link.start > longest.end - longest.start) part.longest = i;
      part.end = link.end;
    } else {
      parts.push_back({i, link.start, link.end});
    }
    open = small;
  }
  return parts;
}

std::vector<PathPart> path_parts(const CriticalPath& path, Time makespan, std::size_t max_parts) {
  std::vector<PathPart> parts = parts_of_grain(path, Time(0));
  for (std::int64_t share = std::int64_t{1} << 20; parts.size() > max_parts && share >= 16;
       share /= 2)
    parts = parts_of_grain(path, Time(makespan.count() / share + 1));
  return parts;
}

void thin_curves(PlanFacts& facts, Time makespan, std::size_t max_points) {
  const std::size_t points = std::max(kFewestPoints, max_points / facts.curves.size());
  for (auto& curve : facts.curves) {
    const std::size_t all = curve.size();
    curve = thinned(curve, makespan, points);
    facts.curves_thinned |= curve.size() != all;
  }
}

// Sums stay those of all.
void keep_longest(IdVector<DeviceId, DeviceBubbles>& bubbles, Time makespan, std::size_t most) {
  const auto count = [&] {
    std::size_t all = 0;
    for (const DeviceBubbles& device : bubbles) all += device.bubbles.size();
    return all;
  };
  for (std::int64_t share = std::int64_t{1} << 20; count() > most && share >= 2; share /= 2)
    for (DeviceBubbles& device : bubbles)
      std::erase_if(device.bubbles, [&](const Bubble& bubble) {
        return (bubble.end - bubble.start) * share < makespan;
      });
}

}  // namespace

PlanFacts plan_facts(const StepGraph& step, const Plan& plan, const PlanFactsLimits& limits) {
  const OpGraph& graph = step.graph();
  const Cluster cluster(plan.cluster);
  const Schedule& schedule = plan.schedule;
  const DeviceOrder order = order_of(schedule, graph, cluster.num_devices());
  PlanFacts facts;
  facts.bars = timeline_bars(schedule, order, limits.bars);
  facts.transfers = longest_transfers(schedule, limits.transfers);
  facts.waits = find_waits(graph, schedule, order);
  facts.curves = memory_curves(graph, schedule, cluster.num_devices());
  if (step.micro_batches() > 1) {
    facts.bubbles = find_bubbles(step, cluster, schedule, order, facts.waits, facts.curves);
    keep_longest(facts.bubbles, schedule.makespan, limits.bubbles);
  }
  facts.peaks = peaks_of(graph, schedule, facts.curves, limits.holders);
  thin_curves(facts, schedule.makespan, limits.curve_points);
  facts.broken =
      check_schedule(graph, cluster, schedule, {.order = plan.order, .max_violations = 10});
  try {
    facts.path = critical_path(graph, cluster, schedule);
  } catch (const InputError&) {  // something starts for no reason, as in a plan made elsewhere
    facts.path = {};
  }
  facts.path_parts = path_parts(facts.path, schedule.makespan, limits.path_parts);
  return facts;
}

}  // namespace baechi
