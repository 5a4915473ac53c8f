// SPDX-License-Identifier: Apache-2.0
// A small instance as plain tables, for the exact search: what everything takes on every device.
// Beyond the paper. Internal to place/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "baechi/cost/cost_model.h"

namespace baechi::exact {

// Nanoseconds and bytes as plain numbers for the inner loops; tabulate() refuses instances whose
// totals could overflow them.
using Ns = std::int64_t;
using Index = std::uint32_t;
using DeviceSet = std::uint32_t;  // a bit per device
using OpSet = std::uint64_t;      // a bit per operator

inline constexpr std::size_t kMostOps = 64, kMostDevices = 32;
// Stands for "impossible" in minima of sums: more than any makespan, and four of them still add up.
inline constexpr Ns kNever = std::numeric_limits<Ns>::max() / 8;

constexpr DeviceSet only(std::size_t device) { return DeviceSet{1} << device; }
constexpr OpSet op_bit(std::size_t op) { return OpSet{1} << op; }

struct Instance {
  struct Tensor {
    Index producer = 0;
    std::vector<Index> readers;  // without duplicates
    std::int64_t bytes = 0;
    std::int64_t at_home = 0;  // on its producer's device: none of a variable
    bool lasts = false;        // on its producer's device until the step ends
    bool kept = false;         // and so are its copies
  };
  // All that `from` hands to `to`: tensors, or (without any) its end alone.
  struct Flow {
    Index from = 0, to = 0;
    std::vector<Index> tensors;
  };
  // What is placed as one: a colocation group, or an operator without one.
  struct Unit {
    std::vector<Index> ops;
    DeviceSet devices = 0;  // that may run all of it, and could hold it if it were alone there
    std::int64_t permanent = 0;
    std::int64_t running = 0;  // the most that one of its operators has around it while it runs
    std::int64_t held = 0;     // permanent memory and what lives until the step ends
  };

  const CostModel* costs = nullptr;
  std::size_t num_ops = 0, num_devices = 0;
  CommunicationMode mode = CommunicationMode::kParallel;
  std::vector<Index> order;                 // topological: the order of decisions
  std::vector<Index> rank;                  // [op]: its place in it
  std::vector<Ns> time;                     // [op * devices + device]; kNever where it may not run
  std::vector<std::int64_t> temporary;      // [op]
  std::vector<Index> variables;             // operators that are there when the step starts
  std::vector<OpSet> ancestors;             // [op]
  std::vector<std::vector<Index>> outputs;  // [op]: its tensors
  std::vector<Tensor> tensors;
  std::vector<Ns> transfer;  // [(tensor * devices + from) * devices + to]; 0 where from == to
  std::vector<Flow> flows;
  std::vector<std::vector<Index>> flows_in, flows_out;  // [op]
  // [(flow * devices + from) * devices + to]: at least so long after `from` has ended, `to` can
  // start.
  std::vector<Ns> flow_time;
  std::vector<Unit> units;
  std::vector<Index> unit_of;  // [op]
  std::vector<std::int64_t> capacity;
  // The queues that a transfer waits in, [from * devices + to]; none in parallel mode.
  std::size_t num_queues = 0;
  std::vector<std::vector<Index>> queues;
  // [device]: the devices that may be exchanged with it without anybody noticing, but for the ids
  // by which simultaneous requests are told apart.
  std::vector<DeviceSet> twins;

  Ns time_on(std::size_t op, std::size_t device) const { return time[op * num_devices + device]; }
  Ns transfer_time(std::size_t tensor, std::size_t from, std::size_t to) const {
    return transfer[(tensor * num_devices + from) * num_devices + to];
  }
  Ns flow_time_on(std::size_t flow, std::size_t from, std::size_t to) const {
    return flow_time[(flow * num_devices + from) * num_devices + to];
  }
};

// Absent when there are more operators or devices than the sets have bits, or times so long that
// sums could overflow. The order of decisions is `order`, which is topological, or the one that has
// the longest path ahead first: bounds rise soonest along it.
std::optional<Instance> tabulate(const CostModel& costs, std::span<const OpId> order = {});

}  // namespace baechi::exact
