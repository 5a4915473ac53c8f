// SPDX-License-Identifier: Apache-2.0
#include "baechi/study/cluster_edits.h"

#include <doctest/doctest.h>

#include "baechi/base/error.h"
#include "baechi/io/cluster/read_cluster.h"

namespace baechi {
namespace {

ClusterSpec line(const char* text) {
  return read_cluster({.cluster = text, .link = {}, .communication = {}});
}

TEST_CASE("cluster edits: a device more has a free name and the links of the one it is like") {
  ClusterSpec spec = line("2x4GiB");
  LinkRule nvlink;
  nvlink.scope = LinkScope::kPair;
  nvlink.from = "gpu:0";
  nvlink.to = "gpu:1";
  nvlink.latency = Time(5);
  spec.links.push_back(nvlink);
  const Cluster cluster(with_device_like(spec, 1));
  REQUIRE(cluster.num_devices() == 3);
  CHECK(cluster[DeviceId(2)].name == "gpu:2");
  CHECK(cluster.link(DeviceId(0), DeviceId(2)).latency == Time(5));
  CHECK(cluster.link(DeviceId(1), DeviceId(2)).latency == microseconds(50));

  const ClusterSpec fewer = without_device(spec, 0);
  CHECK(fewer.devices.size() == 1);
  CHECK(fewer.links.size() == 1);
  CHECK(with_devices(spec, 5).devices[4].name == "gpu:4");
  CHECK(with_devices(spec, 1).devices[0].name == "gpu:0");
}

TEST_CASE("cluster edits: factors are exact and round down") {
  const ClusterSpec spec = with_memory(line("1x8GiB+1x4GiB@0.6"), Bytes(1001));
  CHECK(with_memory(spec, Factor(500'000)).devices[1].capacity == Bytes(500));
  CHECK(with_memory(spec, Factor(2'000'000)).devices[0].capacity == Bytes(2002));
  CHECK(with_memory(spec, Factor(1)).devices[0].capacity == Bytes(1));
  CHECK(with_speed(spec, Factor(1'500'000)).devices[1].speed == Speed(900'000));
  CHECK_THROWS_AS(with_memory(spec, Factor(0)), InputError);
  CHECK_THROWS_AS(with_speed(spec, Factor(0)), InputError);
  CHECK(largest_first(line("1x2GiB+1x8GiB+1x2GiB")).devices[0].capacity == gibibytes(8));
}

TEST_CASE("cluster edits: another link joins devices that compute, and leaves hosts and CPUs") {
  const Cluster mixed(with_link(line("2xgpu:4GiB+1xcpu:64GiB"), Time(7), Bandwidth(1'000'000)));
  CHECK(mixed.link(DeviceId(0), DeviceId(1)).latency == Time(7));
  CHECK(mixed.link(DeviceId(0), DeviceId(2)).latency == microseconds(50));

  ClusterSpec hosts = line("4x4GiB");
  hosts.devices[2].host = hosts.devices[3].host = "other";
  const Cluster two(with_link(hosts, Time(7), Bandwidth(1'000'000)));
  CHECK(two.link(DeviceId(0), DeviceId(1)).latency == Time(7));
  CHECK(two.link(DeviceId(2), DeviceId(3)).latency == Time(7));
  CHECK(two.link(DeviceId(1), DeviceId(2)).latency == microseconds(50));
}

}  // namespace
}  // namespace baechi
