// SPDX-License-Identifier: Apache-2.0
#include "baechi/study/device_worth.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "unit/graph_sketch.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

using testing::byte_per_ns;
using testing::GraphSketch;
using Names = std::vector<std::string>;

StepRequest quick() {
  StepRequest request;
  request.search.budget = 0.02;
  return request;
}

OpGraph independent(std::size_t count) {
  GraphSketch sketch;
  for (std::size_t i = 0; i < count; ++i) sketch.op("op" + std::to_string(i), 10, 0, 60);
  return sketch.build();
}

TEST_CASE("what-if --devices: operators one after the other need one device") {
  const OpGraph graph = testing::chain({Time(10), Time(20), Time(5)}, Bytes(4));
  const DevicesWorth worth =
      devices_worth(graph, byte_per_ns(3, CommunicationMode::kDuplex).spec(), quick());
  CHECK(worth.step == Time(35));
  for (const DeviceWorth& device : worth.devices) CHECK(device.step_without == Time(35));
  CHECK(worth.enough == Names{"gpu:0"});
  CHECK(worth.step_of_enough == Time(35));
}

TEST_CASE("what-if --devices: two of three are enough for two operators side by side") {
  Names asked;
  const DevicesWorth worth =
      devices_worth(independent(2), byte_per_ns(3, CommunicationMode::kParallel).spec(), quick(),
                    [&](const std::string& name) { asked.push_back(name); });
  CHECK(worth.step == Time(10));
  CHECK(worth.enough == Names{"gpu:0", "gpu:1"});
  CHECK(asked == Names{"all devices", "without gpu:0", "without gpu:1", "without gpu:2",
                       "without gpu:0", "without gpu:1"});
}

// One is a tenth as fast: eleven operators of 10 ns take 100 ns on both, 110 on the fast one alone.
TEST_CASE("what-if --devices: an unequal pair, and what each of them buys") {
  ClusterSpec spec = byte_per_ns(2, CommunicationMode::kParallel).spec();
  spec.devices[1].speed = Speed(kFullSpeed.count() / 10);
  const DevicesWorth eleven = devices_worth(independent(11), spec, quick());
  CHECK(eleven.step == Time(100));
  CHECK(eleven.devices[0].step_without == Time(1'100));
  CHECK(eleven.devices[1].step_without == Time(110));
  CHECK(eleven.enough == Names{"gpu:0", "gpu:1"});
  const DevicesWorth three = devices_worth(independent(3), spec, quick());
  CHECK(three.devices[1].step_without == three.step);
  CHECK(three.enough == Names{"gpu:0"});
}

TEST_CASE("what-if --devices: what a device buys may be that anything fits") {
  const DevicesWorth worth = devices_worth(
      independent(2), byte_per_ns(2, CommunicationMode::kParallel, Time(0), Bytes(100)).spec(),
      quick());
  CHECK(worth.step == Time(10));
  for (const DeviceWorth& device : worth.devices) {
    CHECK_FALSE(device.step_without.has_value());
    CHECK(device.reason.find("memory") != std::string::npos);
    CHECK(device.peak == Bytes(60));
  }
  CHECK(worth.enough == Names{"gpu:0", "gpu:1"});
  const DevicesWorth none = devices_worth(
      independent(3), byte_per_ns(2, CommunicationMode::kParallel, Time(0), Bytes(100)).spec(),
      quick());
  CHECK_FALSE(none.step.has_value());
  CHECK_FALSE(none.reason.empty());
}

}  // namespace
}  // namespace baechi
