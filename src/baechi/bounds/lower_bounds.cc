// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/lower_bounds.h"

#include <algorithm>

#include "baechi/bounds/asking.h"
#include "baechi/bounds/components.h"
#include "baechi/bounds/cut.h"
#include "baechi/bounds/fill_drain.h"
#include "baechi/bounds/heads_tails.h"
#include "baechi/bounds/hub.h"
#include "baechi/bounds/load.h"
#include "baechi/bounds/memory_path.h"
#include "baechi/bounds/memory_runs.h"
#include "baechi/bounds/one_machine.h"
#include "baechi/bounds/relaxation.h"
#include "baechi/bounds/sections.h"
#include "baechi/bounds/window.h"
#include "baechi/cost/needed_devices.h"

namespace baechi {

std::vector<NamedBound> lower_bounds(const CostModel& costs, const CancelFlag* cancel) {
  throw_if_cancelled(cancel);
  const auto needed = NeededDevices::of(costs);
  const std::optional<bounds::Relaxation> relaxed =
      bounds::relax(needed != nullptr ? needed->costs() : costs);
  if (!relaxed.has_value()) return {};
  throw_if_cancelled(cancel);
  UnionFind forced = bounds::forced_together(*relaxed);
  const bounds::Components together = bounds::number(*relaxed, forced);
  const bounds::Lumps lumps = bounds::lumps(*relaxed, together.of, together.count);
  if (!bounds::may_pack(*relaxed, lumps, bounds::kNever)) return {};
  const bounds::LoadWeights weights = bounds::balance(*relaxed, lumps);
  const bounds::HeadsTails ends = bounds::star(*relaxed, together.of);

  std::vector<NamedBound> found;
  const auto add = [&](const char* name, bounds::Ns value) {
    throw_if_cancelled(cancel);
    found.push_back({name, Time(value)});
  };
  add("longest path", bounds::longest_path(*relaxed));
  add("load", bounds::load(*relaxed, lumps, weights));
  add("star", bounds::longest(*relaxed, ends));
  add("window", bounds::window(*relaxed, ends, weights));
  add("one device", bounds::one_device_each(*relaxed, ends, together.of, together.count));
  add("memory path", bounds::memory_path(*relaxed));
  Time strongest;
  for (const NamedBound& bound : found) strongest = std::max(strongest, bound.value);
  if (strongest.count() >= bounds::kNever) return {};
  const bounds::Ns waits = bounds::fill_drain(*relaxed, ends, together, lumps, weights);
  if (waits >= bounds::kNever) return {};
  if (waits > strongest.count()) {
    add("fill and drain", waits);
    strongest = Time(waits);
  }
  // These start from what is known and are told only where they get further.
  const std::vector<bounds::Distance> distances = bounds::sections(*relaxed, together, weights);
  const bounds::HeadsTails sharper = bounds::star(*relaxed, together.of, distances);
  const bounds::Ns sections =
      std::max({bounds::longest(*relaxed, sharper), bounds::window(*relaxed, sharper, weights),
                bounds::one_device_each(*relaxed, sharper, together.of, together.count)});
  if (sections >= bounds::kNever) return {};
  if (sections > strongest.count()) {
    add("sections", sections);
    strongest = Time(sections);
  }
  const bounds::Ns runs = bounds::memory_runs(*relaxed, together, sharper);
  if (runs >= bounds::kNever) return {};
  if (runs > strongest.count()) {
    add("memory runs", runs);
    strongest = Time(runs);
  }
  const bounds::Ns hub = bounds::hub(*relaxed, sharper, together, strongest.count());
  if (hub >= bounds::kNever) return {};
  if (hub > strongest.count()) {
    add("hub", hub);
    strongest = Time(hub);
  }
  const bounds::Ns cut = bounds::cut(*relaxed, sharper, strongest.count(), distances);
  if (cut >= bounds::kNever) return {};
  if (cut > strongest.count()) {
    add("cut", cut);
    strongest = Time(cut);
  }
  if (const Time asked = bounds::asking(costs); asked > strongest) add("asking", asked.count());
  // All of a schedule that takes time lies behind the start of its step, which no bound above knows.
  if (const auto& host = costs.cluster().host_time(); host.has_value())
    for (NamedBound& bound : found)
      if (bound.value > Time(0)) bound.value += host->step;

  std::ranges::sort(found, [](const NamedBound& a, const NamedBound& b) {
    return a.value != b.value ? a.value > b.value : a.name < b.name;
  });
  return found;
}

}  // namespace baechi
