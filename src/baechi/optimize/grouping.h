// SPDX-License-Identifier: Apache-2.0
// Sets of operators that are to share a device, grown by uniting them under caps (Paper 3.1.1,
// 3.1.2).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/union_find.h"
#include "baechi/optimize/contraction.h"

namespace baechi {

struct GroupCaps {
  Time work;     // of all members together, on an average device
  Bytes memory;  // what a device holds at the worst moment for the group
};

// Starts from given groups, which it keeps whole even when they exceed the caps.
class Grouping {
 public:
  Grouping(const CostModel& costs, const OpLabels& groups, const GroupCaps& caps);
  ~Grouping();

  // Puts both operators' groups together, unless the result would exceed a cap or no device could
  // run it. True when they share a group afterwards.
  bool unite(OpId a, OpId b);
  bool together(OpId a, OpId b) { return sets_.find(a.value()) == sets_.find(b.value()); }

  Time work(OpId op) { return sums_[sets_.find(op.value())].work; }
  // Labels by the smallest member.
  OpLabels labels();

 private:
  // A group's memory over the step, in equal shares of its work; the cheap stand-in for replaying
  // the group after each union.
  static constexpr std::size_t kMoments = 32;
  using Profile = std::array<Bytes, kMoments>;

  struct Sums {  // of one group
    Time work;
    Bytes permanent;
    Bytes outputs;              // an upper bound of what its tensors take
    Bytes temporary;            // the largest of its members
    std::uint64_t classes = 0;  // device classes that can run all members, as bits
    std::optional<DeviceId> pin;
    std::uint32_t last = 0;  // end of the list of members that starts at the set's smallest
    std::unique_ptr<Profile> profile;
  };

  void merge(std::uint32_t a, std::uint32_t b);
  bool memory_fits(std::uint32_t a, std::uint32_t b);
  void need_profile(std::uint32_t set);
  void set_moments();

  const CostModel& costs_;
  GroupCaps caps_;
  UnionFind sets_;
  std::vector<Sums> sums_;           // by the set's smallest member
  std::vector<std::uint32_t> next_;  // members of a set, linked
  IdVector<OpId, Time> own_work_;
  IdVector<OpId, std::uint8_t> moment_;  // of each operator's turn; empty until a profile is needed
};

// The mean time of `op` over the devices that can run it; zero if none can.
IdVector<OpId, Time> mean_work(const CostModel& costs);

// The classes of devices that can run `op`, as bits.
std::uint64_t class_bits(const CostModel& costs, OpId op);

}  // namespace baechi
