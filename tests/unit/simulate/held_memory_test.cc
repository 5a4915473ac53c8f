// SPDX-License-Identifier: Apache-2.0
#include "baechi/simulate/held_memory.h"

#include <doctest/doctest.h>

#include <vector>

#include "baechi/simulate/execution_simulator.h"
#include "unit/graph_sketch.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

using enum MemoryUse;

// gpu:0  a 0-2; a's 4 bytes travel 2-6; gpu:1  b 6-9, which has 3 bytes around it and 5 for good.
TEST_CASE("held memory: permanent, temporary, outputs and copies, each under its operator") {
  const OpGraph graph =
      GraphSketch().op("a", 2, 1).op("b", 3, 3, 5).tensor("a", 4, {"b"}).tensor("b", 2, {}).build();
  const Cluster cluster = equal_devices(2, Bytes(100), Time(0), Bandwidth(1'000'000'000));
  const Schedule schedule =
      simulate(CostModel(graph, cluster), in_order(graph, {{"a"}, {"b"}})).schedule;
  const auto at = [&](std::int64_t moment) {
    return held_memory(graph, schedule, IdVector<DeviceId, Time>(2, Time(moment)));
  };
  const OpId a(0), b(1);
  using Held = std::vector<HeldMemory>;
  CHECK(at(1)[DeviceId(0)] == Held{{a, kTemporary, Bytes(1)}, {a, kOutput, Bytes(4)}});
  CHECK(at(1)[DeviceId(1)] == Held{{b, kPermanent, Bytes(5)}});
  CHECK(at(4)[DeviceId(0)] == Held{{a, kOutput, Bytes(4)}});
  CHECK(at(7)[DeviceId(0)].empty());
  CHECK(at(7)[DeviceId(1)] == Held{{a, kCopy, Bytes(4)},
                                   {b, kPermanent, Bytes(5)},
                                   {b, kTemporary, Bytes(3)},
                                   {b, kOutput, Bytes(2)}});
}

}  // namespace
}  // namespace baechi::testing
