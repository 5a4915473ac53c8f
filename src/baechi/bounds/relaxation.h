// SPDX-License-Identifier: Apache-2.0
// The instance as the lower bounds see it: devices by type, for every operator the least it can
// take on each, and what must share a device. Internal to bounds/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/cost/cost_model.h"

namespace baechi::bounds {

// Nanoseconds and bytes as plain numbers for the inner loops. relax() rejects instances whose
// totals could overflow them.
using Ns = std::int64_t;

// Stands for "impossible" in minima of sums: more than any makespan, and four of them still add up.
inline constexpr Ns kNever = std::numeric_limits<Ns>::max() / 8;

// Devices that may be exchanged without anybody noticing: same times, capacity and links, and no
// operator pinned to one of them.
struct DeviceType {
  std::size_t count = 0;
  std::int64_t capacity = 0;
};

// A pin, a colocation group or a lone operator: all of it goes to one device.
using UnitId = Id<struct UnitTag>;

struct Relaxation {
  const OpGraph* graph = nullptr;
  std::size_t num_devices = 0;
  bool transfers_queue = false;   // several tensors to one device come one after the other
  bool queues_both_ways = false;  // what a device receives does not wait for what it sends
  std::vector<DeviceType> types;
  std::vector<Ns> k;      // [op * types + type]: kNever where it may not run
  std::vector<Ns> k_min;  // [op]: over the types
  // Links between types, and what each tensor takes on each link.
  std::size_t num_links = 0;
  std::vector<std::optional<std::size_t>> link;  // [from * types + to]; absent: no such pair
  std::vector<Ns> c;                             // [tensor * num_links + link]
  std::vector<Ns> c_min;                         // [tensor]: over the links; kNever without any
  IdVector<OpId, UnitId> unit;
  // Bytes that a unit takes of its device at one moment for all its operators, whatever the order;
  // and what it has always, and the most that one of its operators needs in addition to run.
  IdVector<UnitId, std::int64_t> held, permanent, running;

  std::size_t num_types() const { return types.size(); }
  Ns time(OpId op, std::size_t type) const { return k[op.index() * types.size() + type]; }
};

// Absent when a step could take longer than kNever (36 years), or an operator has no device at all
// that could run it: then bounds mean nothing.
std::optional<Relaxation> relax(const CostModel& costs);

}  // namespace baechi::bounds
