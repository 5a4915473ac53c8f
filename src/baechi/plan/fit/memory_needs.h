// SPDX-License-Identifier: Apache-2.0
// What memory an operator needs wherever it runs, and proofs that nothing can fit.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/short_text.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/plan/fit/device_sets.h"

namespace baechi {

// What is placed as one: a colocation group, or an operator without one.
using UnitId = Id<struct UnitTag>;

struct Unit {
  std::span<const OpId> ops;  // in id order
  Bytes permanent;            // of all its operators
  Bytes need;  // lower bound of the peak of any device that runs it: permanent, and the most that
               // one of its operators has around it while running (temporary, inputs, outputs)
  std::span<const DeviceId> devices;  // those that may run all of it, whatever their memory
};

class Units {
 public:
  explicit Units(const CostModel& costs);
  // Coarser units: operators with equal labels go together as well, unless no device may run both.
  // Labels are any numbers below the number of operators.
  Units(const CostModel& costs, const IdVector<OpId, std::uint32_t>& labels);
  Units(const Units&) = delete;  // the spans of a Unit point into this object
  Units& operator=(const Units&) = delete;

  std::size_t size() const { return units_.size(); }
  IdRange<UnitId> keys() const { return units_.keys(); }
  const Unit& operator[](UnitId unit) const { return units_[unit]; }
  UnitId of(OpId op) const { return unit_of_[op]; }

 private:
  std::vector<OpId> members_;  // of all units, one after the other: what the spans point to
  DeviceSets device_sets_;
  IdVector<UnitId, Unit> units_;
  IdVector<OpId, UnitId> unit_of_;
};

// "operator 'f'", "the colocation group of operator 'f' (3 operators)", by its first operator.
std::string unit_words(std::string_view first, std::size_t ops);

// Why no placement at all can fit: an arithmetic proof, not a failed search.
struct CannotFit {
  std::optional<OpId> op;  // the operator (or its group's first) at fault; absent: the whole graph
  Bytes short_by;          // what is missing in the best case; zero when memory is not the reason
  std::string reason;      // one sentence with names and bytes
};
std::optional<CannotFit> prove_cannot_fit(const CostModel& costs, const Units& units);

}  // namespace baechi
