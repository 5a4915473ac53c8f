// SPDX-License-Identifier: Apache-2.0
// What a partition of the operators into devices sees: units with work and memory, and nets, one
// per tensor, that cost a transfer for each further device they touch. Beyond the paper.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/cost/cost_model.h"
#include "baechi/optimize/contraction.h"

namespace baechi {

using CutUnitId = Id<struct CutUnitTag>;
using NetId = Id<struct NetTag>;

struct CutUnit {
  std::int64_t work = 0;      // nanoseconds on a mean device
  std::int64_t memory = 0;    // bytes at the worst moment of the step on one device
  std::uint64_t devices = 0;  // that may run it, as bits
};

// Rows of ids, one row per id of another sort.
template <class RowId, class ValueId>
struct IdRows {
  std::vector<ValueId> values;
  std::vector<std::uint32_t> begin{0};

  std::span<const ValueId> operator[](RowId row) const {
    return std::span<const ValueId>(values).subspan(begin[row.index()],
                                                    begin[row.index() + 1] - begin[row.index()]);
  }
  std::size_t size() const { return begin.size() - 1; }
};

struct CutGraph {
  IdVector<CutUnitId, CutUnit> units;
  IdVector<NetId, std::int64_t> cost;  // nanoseconds of one transfer
  IdRows<NetId, CutUnitId> pins;       // two or more different units each, ascending
  IdRows<CutUnitId, NetId> nets;

  std::int64_t total_work() const;
};

constexpr std::size_t kMaxCutDevices = 64;  // as many as a unit has bits

// One unit per label of `group`. Requires at most kMaxCutDevices devices.
struct CutGraphOf {
  CutGraph graph;
  IdVector<OpId, CutUnitId> unit;
};
CutGraphOf cut_graph(const CostModel& costs, const OpLabels& group);

struct UnitCaps {  // no merged unit exceeds them
  std::int64_t work;
  std::int64_t memory;
};

// One level coarser: unites pairs of units that many or large tensors join. Absent when hardly
// anything can be united any more. `coarse_of` gets each unit's successor.
std::optional<CutGraph> coarsen(const CutGraph& fine, const UnitCaps& caps,
                                IdVector<CutUnitId, CutUnitId>& coarse_of);

}  // namespace baechi
