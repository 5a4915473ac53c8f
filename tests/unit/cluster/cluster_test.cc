// SPDX-License-Identifier: Apache-2.0
#include "baechi/cluster/cluster.h"

#include <doctest/doctest.h>

#include "baechi/base/error.h"

namespace baechi {
namespace {

ClusterSpec two_hosts() {
  ClusterSpec spec;
  for (const char* host : {"east", "west"})
    for (const char* slot : {"0", "1"})
      spec.devices.push_back({.name = std::string(host) + ":" + slot,
                              .kind = "gpu",
                              .capacity = gibibytes(8),
                              .host = host});
  LinkRule wire;
  wire.scope = LinkScope::kOtherHost;
  wire.latency = microseconds(100);
  wire.bandwidth = Bandwidth(1'000'000'000);
  wire.channels = {"nic of {from_host}", "nic of {to_host}"};
  LinkRule bus;
  bus.latency = microseconds(10);
  spec.links = {wire, bus};
  return spec;
}

TEST_CASE("cluster: the most specific link rule wins, channels expand per host") {
  ClusterSpec spec = two_hosts();
  LinkRule bridge;
  bridge.scope = LinkScope::kPair;
  bridge.from = "east:0";
  bridge.to = "east:1";
  bridge.both_ways = false;
  bridge.latency = microseconds(1);
  spec.links.insert(spec.links.begin(), bridge);
  const Cluster cluster(spec);
  const DeviceId e0(0), e1(1), w0(2), w1(3);

  CHECK(cluster.link(e0, e1).latency == microseconds(1));
  CHECK(cluster.link(e1, e0).latency == microseconds(10));
  CHECK(cluster.link(e0, w0).transfer_time(Bytes(1'000)) == microseconds(101));
  CHECK(cluster.link(e0, w0).transfer_time(Bytes(1)) == microseconds(100) + Time(1));
  CHECK(cluster.link(e0, e1).transfer_time(gibibytes(1)) == microseconds(1));  // unlimited
  CHECK(&cluster.link(e0, w0) == &cluster.link(w1, e1));
  REQUIRE(cluster.num_channels() == 2);
  CHECK(cluster.link(e0, w1).channels.size() == 2);
  CHECK(cluster.link(w0, w1).channels.empty());
  CHECK(cluster.channel_name(cluster.link(e0, w1).channels[0]) == "nic of east");
  CHECK(cluster.find("west:1") == w1);
  CHECK_FALSE(cluster.find("north").has_value());
}

TEST_CASE("cluster: of equally specific link rules the last one wins") {
  LinkRule first, last;
  first.latency = microseconds(1);
  last.latency = microseconds(2);
  for (const LinkScope scope : {LinkScope::kDefault, LinkScope::kOtherHost, LinkScope::kSameHost,
                                LinkScope::kKinds, LinkScope::kPair}) {
    CAPTURE(static_cast<int>(scope));
    ClusterSpec spec = two_hosts();
    LinkRule anywhere;
    anywhere.latency = microseconds(9);
    first.scope = last.scope = scope;
    const bool pair = scope == LinkScope::kPair, kinds = scope == LinkScope::kKinds;
    const DeviceId from(0), to(scope == LinkScope::kSameHost ? 1 : 2);
    first.from = last.from = pair ? "east:0" : kinds ? "gpu" : "";
    first.to = last.to = pair ? "west:0" : kinds ? "gpu" : "";
    spec.links = {anywhere, first, last};
    CHECK(Cluster(spec).link(from, to).latency == microseconds(2));
    spec.links = {last, anywhere, first};
    if (scope != LinkScope::kDefault)
      CHECK(Cluster(spec).link(from, to).latency == microseconds(1));
  }
}

TEST_CASE("cluster: a placeholder that nobody knows is no name of a channel") {
  ClusterSpec spec = two_hosts();
  for (const char* channel : {"bus of {frm}", "{from_host", "from}", "{}", "{From}", "{{from}}"}) {
    CAPTURE(channel);
    spec.links[0].channels = {channel};
    CHECK_THROWS_WITH_AS(Cluster{spec},
                         doctest::Contains("between braces only {from}, {to}, {from_host} and "
                                           "{to_host} are known"),
                         InputError);
  }
  spec.links[0].channels = {"{from}-{to}", "{from_host}{to_host}"};
  CHECK(Cluster(spec).num_channels() > 2);
}

TEST_CASE("cluster: what cannot be right is refused") {
  const auto refused = [](auto change, const char* message) {
    ClusterSpec spec = two_hosts();
    change(spec);
    CHECK_THROWS_WITH_AS(Cluster{spec}, message, InputError);
  };
  refused([](ClusterSpec& s) { s.devices.clear(); }, "the cluster has no devices");
  refused([](ClusterSpec& s) { s.devices[1].name = "east:0"; }, "duplicate device name 'east:0'");
  refused([](ClusterSpec& s) { s.devices[1].capacity = Bytes(0); },
          "device 'east:1' has no memory: 0 bytes");
  refused([](ClusterSpec& s) { s.links.pop_back(); },
          "no link rule covers 'east:0' to 'east:1': add a default link");
  refused([](ClusterSpec& s) { s.links[0].latency = Time(-1); },
          "the link between hosts has a negative latency");
  refused([](ClusterSpec& s) { s.links[0].bandwidth = Bandwidth(0); },
          "the link between hosts has a bandwidth that is not positive");
  refused(
      [](ClusterSpec& s) {
        s.links[0].scope = LinkScope::kPair;
        s.links[0].from = "east:0";
        s.links[0].to = "south";
      },
      "the link from 'east:0' to 'south' names an unknown device 'south'");
}

}  // namespace
}  // namespace baechi
