// SPDX-License-Identifier: Apache-2.0
#include "baechi/cluster/transfer_queues.h"

#include <doctest/doctest.h>

#include "baechi/cluster/cluster.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

constexpr DeviceId kA(0), kB(1), kC(2);

// Three devices; transfers from the first share a bus.
Cluster three_devices(CommunicationMode mode) {
  ClusterSpec spec = testing::equal_devices(3, Bytes(1), Time(5)).spec();
  spec.communication = mode;
  for (const char* to : {"gpu:1", "gpu:2"}) {
    LinkRule bus;
    bus.scope = LinkScope::kPair;
    bus.from = "gpu:0";
    bus.to = to;
    bus.both_ways = false;
    bus.latency = Time(5);
    bus.channels = {"bus"};
    spec.links.insert(spec.links.begin(), bus);
  }
  return Cluster(spec);
}

TEST_CASE("transfer queues: a device sends and receives one at a time in sequential mode") {
  const Cluster cluster = three_devices(CommunicationMode::kSequential);
  TransferQueues queues(cluster);
  CHECK(queues.size() == 4);
  CHECK(queues.serve(kB, kC, Time(10), Time(7)).end == Time(17));
  CHECK(queues.serve(kC, kB, Time(10), Time(7)).start == Time(17));
  CHECK(queues.serve(kA, kB, Time(30), Time(1)).end == Time(31));
  CHECK(queues.free(kC, kA) == Time(31));
  queues.clear();
  CHECK(queues.free(kC, kA) == Time(0));
}

TEST_CASE("transfer queues: the directions are apart in duplex mode, but for a shared channel") {
  const Cluster cluster = three_devices(CommunicationMode::kDuplex);
  TransferQueues queues(cluster);
  CHECK(queues.size() == 7);
  CHECK(queues.serve(kB, kC, Time(0), Time(7)).end == Time(7));
  CHECK(queues.serve(kC, kB, Time(0), Time(7)).end == Time(7));
  CHECK(queues.serve(kB, kA, Time(0), Time(2)).start == Time(7));
  CHECK(queues.serve(kA, kC, Time(0), Time(3)).end == Time(10));    // kC received until 7
  CHECK(queues.serve(kA, kB, Time(0), Time(3)).start == Time(10));  // the bus
}

TEST_CASE("transfer queues: nothing waits in parallel mode") {
  const Cluster cluster = three_devices(CommunicationMode::kParallel);
  TransferQueues queues(cluster);
  CHECK(queues.size() == 0);
  for (int i = 0; i < 2; ++i) CHECK(queues.serve(kA, kB, Time(3), Time(4)).start == Time(3));
  CHECK(queues.free(kA, kB) == Time(0));
}

}  // namespace
}  // namespace baechi
