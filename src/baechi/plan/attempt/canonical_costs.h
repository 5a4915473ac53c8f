// SPDX-License-Identifier: Apache-2.0
// The same planning problem with its operators numbered in an order that depends on the graph
// alone, so that a search does not depend on how a file lists them, and without those that take
// nothing and that nobody waits for. Beyond the paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// Graphs up to this size are planned so by methods that run others. Larger ones keep the order of
// their file, which mostly tells of layers and steps of time.
inline constexpr std::size_t kMostCanonicalOps = 1'000;

// Simultaneous requests of transfers are served in the order of operators, so a plan may take
// another time, or another peak, in one numbering than in the other: simulate it anew.
class CanonicalCosts {
 public:
  enum class Numbering : std::uint8_t {
    kCanonical,
    kGiven,  // the order of the file: only the idle ones are left out, which changes no time
  };
  explicit CanonicalCosts(const CostModel& given, Numbering numbering = Numbering::kCanonical);
  CanonicalCosts(const CanonicalCosts&) = delete;  // `costs` refers to the graph
  CanonicalCosts& operator=(const CanonicalCosts&) = delete;

  const CostModel& costs() const { return costs_; }

  OpId to_given(OpId op) const { return order_[op.index()]; }
  std::optional<OpId> from_given(OpId op) const { return canonical_[op]; }  // idle ones: nothing
  PlacedGraph to_given(const PlacedGraph& placed) const;
  PlacedGraph from_given(const PlacedGraph& placed) const;
  Placement from_given(const Placement& placement) const;

 private:
  std::vector<std::pair<OpId, DeviceId>> idle_;  // given numbers; where they take no time
  std::vector<OpId> order_;                      // the given number of each
  IdVector<OpId, std::optional<OpId>> canonical_;
  OpGraph graph_;
  CostModel costs_;
};

}  // namespace baechi
