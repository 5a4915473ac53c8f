// SPDX-License-Identifier: Apache-2.0
#include "baechi/cost/cost_model.h"

#include <doctest/doctest.h>

#include "baechi/base/error.h"
#include "baechi/graph/op_graph_builder.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

TEST_CASE("costs: a device takes its own kind's time, else any kind's, scaled by its speed") {
  OpGraphBuilder builder;
  const OpId both = testing::timed(builder, {.name = "both"}, Time(10));
  builder.set_time(both, "*", Time(70));
  const OpId gpu_only = testing::timed(builder, {.name = "gpu only", .pin = "fast"}, Time(9));
  const OpGraph graph = std::move(builder).build();
  ClusterSpec spec = testing::equal_devices(3, Bytes(1), Time(5)).spec();
  spec.devices[0].name = "fast";
  spec.devices[1].speed = Speed(600'000);
  spec.devices[2].kind = "cpu";
  const Cluster cluster(spec);
  const CostModel costs(graph, cluster);

  CHECK(costs.compute_time(both, DeviceId(0)) == Time(10));
  CHECK(costs.compute_time(both, DeviceId(1)) == Time(17));  // 16.67, rounded up
  CHECK(costs.compute_time(both, DeviceId(2)) == Time(70));
  CHECK_FALSE(costs.compute_time(gpu_only, DeviceId(2)).has_value());
  CHECK(costs.num_classes() == 3);
  CHECK(costs.may_run(gpu_only, DeviceId(0)));
  CHECK_FALSE(costs.may_run(gpu_only, DeviceId(1)));
  CHECK(costs.may_run(both, DeviceId(2)));

  spec.devices[0].name = "renamed";
  const Cluster other(spec);
  CHECK_THROWS_WITH_AS(
      CostModel(graph, other),
      "operator 'gpu only' is pinned to device 'fast', which the cluster does not have",
      InputError);
}

}  // namespace
}  // namespace baechi
