// SPDX-License-Identifier: Apache-2.0
// Placements that cut a graph into consecutive parts, one for each device. Beyond the paper.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// One micro-batch: nothing is on the store.
struct SequenceOfOne {
  Placement device;
  std::vector<OpId> sequence;  // topological
  bool in_rounds = false;      // micro-batches follow each other in what one device has of it

  friend bool operator==(const SequenceOfOne&, const SequenceOfOne&) = default;
};

// An operator and those of its group.
std::vector<OpId> members_with(const OpGraph& graph, OpId op);

// How long each device but the store takes for all that it may run, the fastest first; of the
// fastest, the largest.
std::vector<std::pair<Time, DeviceId>> by_time(const CostModel& costs, DeviceId store);

// The others are where their forward operator is, what updates or reads a variable, or what they read.
// Nothing if one may not run there.
std::optional<SequenceOfOne> beside_those(const CostModel& costs,
                                          IdVector<OpId, std::optional<DeviceId>> at,
                                          DeviceId otherwise, bool in_rounds);

// Unless there is an equal one.
void add_new(std::optional<SequenceOfOne> one, std::vector<SequenceOfOne>& starts);

// Devices and their parts of the forward operators' bytes, in the order of the graph.
using DeviceShares = std::vector<std::pair<DeviceId, double>>;

// Backward operators and updates follow their forward operators.
std::optional<SequenceOfOne> in_parts(const CostModel& costs, const DeviceShares& shares);

// By memory: for all devices but the store, for the fastest and those as fast, and for the fastest
// alone. Where devices are unequally fast, also with the slower ones first, which then hold no more
// than they have room for: less is computed there, and their gradients come last.
std::vector<DeviceShares> shares_by_memory(const CostModel& costs);
// Of these, and of those that follow from the best by moving a part from one device to another or by
// exchanging two that differ, the one with the least rating. Nothing is rated twice.
DeviceShares least_shares(const Cluster& cluster, const std::vector<DeviceShares>& from,
                          const std::function<std::optional<double>(const DeviceShares&)>& rate);

std::vector<SequenceOfOne> starts_in_parts(const CostModel& costs);

}  // namespace baechi
