// SPDX-License-Identifier: Apache-2.0
// The named graphs and clusters that tests draw on, each with a drawing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"
#include "baechi/graph/op_graph_builder.h"

namespace baechi::testing {

// Adds an operator that takes this time on devices of this kind.
OpId timed(OpGraphBuilder& builder, const OperatorSpec& spec, Time time,
           std::string_view kind = "gpu");

// The example of Paper Figure 1: a graph of ours, made to the numbers of its caption. Times and
// permanent memory; tensors of zero bytes.
//
//   a(1,1) --> b(3,2) --> c(3,2) --> d(1,1)
//     \                               ^
//      +-----> e(3,1) --> f(1,1) -----+
OpGraph figure_1();

// The example of Paper Figure 5: a graph of ours, made to the numbers of its caption. m-ETF on two
// devices between which a tensor takes five time units needs 7, and 3 with co-placement.
//
//   a(1) --+
//          +--> c(1)
//   b(1) --+
OpGraph figure_5();

// `count` devices, transfers of one nanosecond whatever the size, parallel communication.
Cluster unit_latency_cluster(std::size_t count, Bytes capacity);

// a -> b -> c -> ...: `times[i]` each; every operator has `permanent` memory and outputs `bytes`.
OpGraph chain(const std::vector<Time>& times, Bytes bytes, Bytes permanent = {});

//        +--> m0 --+
//   src -+--> m1 --+-> sink      all times `time`, all tensors `bytes`, src's output is shared
//        +--> ...--+
OpGraph fork_join(std::size_t width, Time time, Bytes bytes);

struct RandomDag {  // what random_dag may draw; every limit is inclusive
  std::size_t min_ops = 1, max_ops = 12;
  double edge_chance = 0.3;      // of each earlier operator being a parent
  double control_chance = 0.1;   // of an edge being a control edge
  double group_chance = 0.0;     // of an operator joining one of a few groups
  double backward_chance = 0.0;  // of an operator being the backward of an earlier one
  double second_output_chance = 0.2;
  double pin_chance = 0.0;     // to "gpu:0"
  double cpu_chance = 0.0;     // of also having a time for kind "cpu"
  std::int64_t max_time = 20;  // zero times occur
  std::int64_t max_tensor_bytes = 8;
  std::int64_t max_permanent_bytes = 8;
  std::int64_t max_temporary_bytes = 4;
  MemoryMode memory_mode = MemoryMode::kDataflow;
  double variable_chance = 0.0;  // of an operator being a variable
  double write_chance = 0.0;     // of a variable being written
  double random_chance = 0.0;    // of an operator drawing random numbers
  double update_chance = 0.0;    // of a variable having an update, which a host may run, too
};
OpGraph random_dag(std::uint64_t seed, const RandomDag& limits = {});

// 1 to 4 devices of kinds gpu and cpu on one or two hosts, with random speeds, links, channels and
// communication mode; gpu:0 always exists. Capacities up to `max_capacity`.
Cluster random_cluster(std::uint64_t seed, Bytes max_capacity = Bytes(1'000'000));

}  // namespace baechi::testing
