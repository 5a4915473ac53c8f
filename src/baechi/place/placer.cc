// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/placer.h"

#include <array>
#include <string>

#include "baechi/base/error.h"

namespace baechi {

std::span<const PlacerEntry> all_placers() {
  static constexpr std::array kPlacers{
      PlacerEntry{"m-topo", place_m_topo, "fill devices in topological order up to an equal share"},
      PlacerEntry{"m-sct", place_m_sct, "m-ETF that keeps favorite children together"},
      PlacerEntry{"m-etf", place_m_etf, "earliest schedulable time first"},
      PlacerEntry{"chain", place_chain, "cut a topological order into device segments, optimally"},
      PlacerEntry{"single", place_single, "everything on the fastest device that holds it"},
      PlacerEntry{"balanced", place_balanced, "equal bytes per device in topological order"},
      PlacerEntry{"random", place_random, "a seeded random device for every operator"},
      PlacerEntry{"expert", place_expert, "a placement that you give"},
  };
  return kPlacers;
}

const PlacerEntry& find_placer(std::string_view name) {
  std::string known;
  for (const PlacerEntry& entry : all_placers()) {
    if (entry.name == name) return entry;
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw InputError("unknown method '" + std::string(name) + "'; there are " + known);
}

}  // namespace baechi
