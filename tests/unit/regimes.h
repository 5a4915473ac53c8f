// SPDX-License-Identifier: Apache-2.0
// Small random instances of every kind that the rules allow, for comparisons with the oracle.
#pragma once

#include <cstdint>
#include <span>

#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"

namespace baechi::testing {

struct Regime {
  const char* name;
  std::int64_t max_time = 20, max_bytes = 8;
  double edge_chance = 0.35, group_chance = 0.0, pin_chance = 0.0, cpu_chance = 0.0;
  bool equal_devices = false, tight = false;
  double variable_chance = 0.0, write_chance = 0.0;
};

struct Instance {
  OpGraph graph;
  Cluster cluster;
};

std::span<const Regime> regimes();

// 2 to 6 operators on 1 to 3 devices, in any communication mode and memory mode.
Instance instance_of(const Regime& regime, std::uint64_t seed);

}  // namespace baechi::testing
