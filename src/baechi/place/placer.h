// SPDX-License-Identifier: Apache-2.0
// The placement algorithms behind one interface (Paper 2.2 - 2.4, 4.4).
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/schedule/execution_order.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// A placer found no device with room. An answer, not an error.
struct DoesNotFit {
  OpId op;         // the operator, or the first of the colocation group, that found no room
  Bytes short_by;  // what the device with the most room lacked; 0: no device may run it at all
};

// How m-SCT finds favorite children (Paper 2.4, 4.4).
enum class FavoriteMethod : std::uint8_t { kMatching, kLpApprox, kLpExact };

// How carefully a list scheduler sets memory aside. kLive trusts the frees that its own schedule
// foresees; kReserve keeps every output until the step ends: a plan it finds always fits.
enum class MemoryPolicy : std::uint8_t { kLive, kReserve };

struct PlaceOptions {
  FavoriteMethod favorites = FavoriteMethod::kMatching;
  double lp_threshold = 0.5;      // x below it makes a favorite child; the paper's was 0.1
  bool complete_matching = true;  // after rounding, while a pair of free ends is left
  MemoryPolicy memory = MemoryPolicy::kLive;
  double headroom = 0;         // m-ETF, m-SCT, kLive: share of each device kept for operators
                               // that have no other device left
  bool call_suppliers = true;  // m-ETF, m-SCT; off: the paper to the letter
  std::uint64_t seed = 1;      // for `random`
  const Placement* expert = nullptr;  // for `expert`, and as the stages of named schedules
  // For `expert`, of a step of micro-batches: what each device runs, in words of in_words() in
  // place/pipeline/named.h.
  const IdVector<DeviceId, std::vector<std::string>>* expert_order = nullptr;
  // m-ETF, m-SCT: where operators go while there is room, equal within a colocation group; the rest
  // is as ever: when they start, and where they go when there is none.
  const Placement* home = nullptr;
  // In which the plan will run: chain and partition choose by it.
  ExecutionOrder order = ExecutionOrder::kPlanned;
  std::int64_t exact_work = 1'000'000;  // for `exact`: operators that its search looks at
  // For `partition`, in simulated operators: then it tries no more devices, and says so.
  std::int64_t partition_work = std::numeric_limits<std::int64_t>::max();
  bool* cut_short = nullptr;
  const CancelFlag* cancel = nullptr;
};

// Placement and order; with memory kLive the peak is the placer's belief until simulated.
using PlaceResult = std::variant<PlacedGraph, DoesNotFit>;

// A placement algorithm is a pure function: same inputs, same plan, no hidden state.
using Placer = PlaceResult (*)(const CostModel&, const PlaceOptions&);

PlaceResult place_m_topo(const CostModel&, const PlaceOptions&);     // Paper 2.2
PlaceResult place_m_etf(const CostModel&, const PlaceOptions&);      // Paper 2.3
PlaceResult place_m_sct(const CostModel&, const PlaceOptions&);      // Paper 2.4
PlaceResult place_heft(const CostModel&, const PlaceOptions&);       // beyond the paper: heft.cc
PlaceResult place_single(const CostModel&, const PlaceOptions&);     // all on the best one device
PlaceResult place_random(const CostModel&, const PlaceOptions&);     // seeded
PlaceResult place_balanced(const CostModel&, const PlaceOptions&);   // bytes, in topological order
PlaceResult place_expert(const CostModel&, const PlaceOptions&);     // as the user says
PlaceResult place_chain(const CostModel&, const PlaceOptions&);      // beyond the paper: chain.cc
PlaceResult place_partition(const CostModel&, const PlaceOptions&);  // beyond: partition.cc
PlaceResult place_exact(const CostModel&, const PlaceOptions&);      // beyond: exact.h

struct PlacerEntry {
  std::string_view name;  // on the command line, in Python and in test names: "m-etf"
  Placer place;
  std::string_view summary;  // one line for --help
  // What it takes, about, in operators that the simulator replays: for every operator and tensor
  // of the graph, and for every pair of an operator and a device.
  std::int64_t work_of_node = 1, work_of_pair = 0;
  bool in_auto = false;         // may win, or at least hold what the others cannot
  bool for_unequal = false;     // among others only where devices differ in speed or kind
  bool baseline = false;        // a yardstick: shown as it is, never helped to fit
  bool list_scheduler = false;  // knows PlaceOptions::headroom and home
  bool optimizable = false;  // gains from the Graph Optimizer; the others want the graph as it is
  bool favorite_children = false;  // finds them by PlaceOptions::favorites
  bool needs_expert = false;       // follows PlaceOptions::expert
  bool proves = false;             // its plan is optimal if it says so: others' plans go before it
};
std::span<const PlacerEntry> all_placers();  // the CLI, the bindings and the tests iterate this
const PlacerEntry& find_placer(std::string_view name);  // InputError lists the known names

}  // namespace baechi
