// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/plan_facts.h"

#include <algorithm>
#include <tuple>

#include "baechi/base/error.h"
#include "baechi/verify/check_schedule.h"

namespace baechi {
namespace {

constexpr std::size_t kFewestPoints = 64;  // of a device's curve, however many devices there are

// The highest point of a curve, the first of equals.
MemoryPoint highest(const std::vector<MemoryPoint>& curve) {
  MemoryPoint peak = curve.front();
  for (const MemoryPoint& point : curve)
    if (point.bytes > peak.bytes) peak = point;
  return peak;
}

bool holds_at(const Held& held, Time at) {
  if (held.part == MemoryPart::kPermanent) return true;
  return held.start <= at && (at < held.end || (held.start == at && held.end == at));
}

IdVector<DeviceId, DevicePeak> peaks_of(const std::vector<Held>& held, const PlanFacts& facts,
                                        std::size_t max_holders) {
  IdVector<DeviceId, DevicePeak> peaks(facts.curves.size());
  for (const DeviceId device : peaks.keys()) {
    const MemoryPoint peak = highest(facts.curves[device]);
    peaks[device] = {peak.bytes, peak.at, std::vector<Bytes>(kNumMemoryParts), {}, 0};
  }
  for (const Held& h : held) {
    DevicePeak& peak = peaks[h.device];
    if (!holds_at(h, peak.at)) continue;
    peak.parts[static_cast<std::size_t>(h.part)] += h.bytes;
    peak.holders.push_back({h.part, h.op, h.bytes});
  }
  for (DevicePeak& peak : peaks) {
    std::stable_sort(peak.holders.begin(), peak.holders.end(),
                     [](const PeakHolder& a, const PeakHolder& b) {
                       return std::tie(b.bytes, a.op, a.part) < std::tie(a.bytes, b.op, b.part);
                     });
    if (peak.holders.size() <= max_holders) continue;
    peak.more_holders = peak.holders.size() - max_holders;
    peak.holders.resize(max_holders);
  }
  return peaks;
}

void thin_curves(PlanFacts& facts, Time makespan, std::size_t max_points) {
  const std::size_t points = std::max(kFewestPoints, max_points / facts.curves.size());
  for (auto& curve : facts.curves) {
    const std::size_t all = curve.size();
    curve = thinned(curve, makespan, points);
    facts.curves_thinned |= curve.size() != all;
  }
}

}  // namespace

PlanFacts plan_facts(const OpGraph& graph, const Plan& plan, const PlanFactsLimits& limits) {
  const Cluster cluster(plan.cluster);
  const Schedule& schedule = plan.schedule;
  const DeviceOrder order = order_of(schedule, graph, cluster.num_devices());
  const std::vector<Held> held = held_memory(graph, schedule);
  PlanFacts facts;
  facts.bars = timeline_bars(schedule, order, limits.bars);
  facts.transfers = longest_transfers(schedule, limits.transfers);
  facts.waits = find_waits(graph, schedule, order);
  facts.curves = memory_curves(held, cluster.num_devices());
  facts.peaks = peaks_of(held, facts, limits.holders);
  thin_curves(facts, schedule.makespan, limits.curve_points);
  facts.broken = check_schedule(graph, cluster, schedule, {.max_violations = 10});
  try {
    facts.path = critical_path(graph, cluster, schedule);
  } catch (const InputError&) {  // something starts for no reason, as in a plan made elsewhere
    facts.path = {};
  }
  return facts;
}

}  // namespace baechi
