// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/placer.h"

#include <array>
#include <string>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/base/near_name.h"

namespace baechi {

std::span<const PlacerEntry> all_placers() {
  static constexpr std::array kPlacers{
      PlacerEntry{.name = "m-topo",
                  .place = place_m_topo,
                  .summary = "fill devices in topological order up to an equal share",
                  .work_of_node = 1,
                  .in_auto = true,
                  .optimizable = true},
      PlacerEntry{.name = "m-etf",
                  .place = place_m_etf,
                  .summary = "earliest schedulable time first",
                  .work_of_node = 3,
                  .work_of_pair = 2,
                  .in_auto = true,
                  .list_scheduler = true,
                  .optimizable = true},
      PlacerEntry{.name = "m-sct",
                  .place = place_m_sct,
                  .summary = "m-ETF that keeps favorite children together",
                  .work_of_node = 8,
                  .work_of_pair = 2,
                  .in_auto = true,
                  .list_scheduler = true,
                  .optimizable = true,
                  .favorite_children = true},
      PlacerEntry{
          .name = "heft",
          .place = place_heft,
          .summary =
              "by upward rank, on the device that finishes first; in auto for unequal devices",
          .work_of_node = 3,
          .work_of_pair = 2,
          .in_auto = true,
          .for_unequal = true,
          .list_scheduler = true},
      PlacerEntry{.name = "chain",
                  .place = place_chain,
                  .summary = "cut a topological order into device segments, optimally",
                  .work_of_node = 12,
                  .in_auto = true},
      PlacerEntry{.name = "partition",
                  .place = place_partition,
                  .summary = "cut the graph where little flows, balancing work and queues",
                  .work_of_node = 2,
                  .work_of_pair = 8,
                  .in_auto = true},
      PlacerEntry{.name = "exact",
                  .place = place_exact,
                  .summary = "branch and bound: the optimum of a small graph, with its proof",
                  .proves = true},
      PlacerEntry{.name = "single",
                  .place = place_single,
                  .summary = "everything on the fastest device that holds it",
                  .in_auto = true,
                  .baseline = true},
      PlacerEntry{.name = "balanced",
                  .place = place_balanced,
                  .summary = "equal bytes per device in topological order",
                  .in_auto = true,
                  .baseline = true},
      PlacerEntry{.name = "random",
                  .place = place_random,
                  .summary = "a seeded random device for every operator",
                  .baseline = true},
      PlacerEntry{.name = "expert",
                  .place = place_expert,
                  .summary = "a placement that you give",
                  .baseline = true,
                  .needs_expert = true},
  };
  return kPlacers;
}

const PlacerEntry& find_placer(std::string_view name) {
  std::vector<std::string> known;
  for (const PlacerEntry& entry : all_placers()) {
    if (entry.name == name) return entry;
    known.emplace_back(entry.name);
  }
  throw InputError("unknown method " + in_quotes(name) + meant_by(std::string(name), known));
}

}  // namespace baechi
