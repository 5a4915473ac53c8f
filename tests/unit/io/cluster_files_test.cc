// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>

#include "baechi/base/error.h"
#include "baechi/io/cluster/read_cluster.h"
#include "baechi/io/cluster/write_cluster.h"
#include "unit/graphs.h"
#include "unit/refusal.h"

namespace baechi {
namespace {

TEST_CASE("cluster line: groups of devices, counted per kind") {
  const ClusterSpec spec = parse_cluster_line("2xgpu:24GiB + 1xcpu:64GB+1x8GiB@0.6");
  REQUIRE(spec.devices.size() == 4);
  CHECK(spec.devices[1] == Device{"gpu:1", "gpu", gibibytes(24), "localhost", kFullSpeed});
  CHECK(spec.devices[2].name == "cpu:0");
  CHECK(spec.devices[2].capacity == Bytes(64'000'000'000));
  CHECK(spec.devices[3] == Device{"gpu:2", "gpu", gibibytes(8), "localhost", Speed(600'000)});
  CHECK(spec.communication == CommunicationMode::kSequential);
  REQUIRE(spec.links.size() == 1);
  CHECK(spec.links[0].latency == microseconds(50));
  CHECK(spec.links[0].bandwidth == Bandwidth(6'000'000'000));
}

TEST_CASE("cluster line: what is none is refused with the part at fault") {
  for (const char* line : {"",
                           "8GiB",
                           "x8GiB",
                           "4x",
                           "4x8",
                           "4x8Gi",
                           "0x8GiB",
                           "-1x8GiB",
                           "1025x8GiB",
                           "4x8GiB+",
                           "+4x8GiB",
                           "4x:8GiB",
                           "4x8GiB@",
                           "4x8GiB@0",
                           "4x8GiB@-1",
                           "4x8GiB@fast",
                           "4x0GiB",
                           "600x1GiB+600x1GiB",
                           "4 8GiB",
                           "99999999999999999999x8GiB",
                           "4xgpu:a:8GiB"}) {
    CAPTURE(line);
    CHECK_THROWS_AS(parse_cluster_line(line), InputError);
  }
  CHECK_THROWS_WITH(
      parse_cluster_line("4x8GiB+2x9Gig"),
      "cluster '2x9Gig': memory '9Gig' needs a unit: B, kB, MB, GB, TB, KiB, MiB, GiB "
      "or TiB");
  CHECK_THROWS_WITH(parse_cluster_line("2xrtx9999"),
                    doctest::Contains("'rtx9999' is no amount of memory, such as 24GiB; known"));
  CHECK_THROWS_WITH(read_cluster({.cluster = "auto", .link = {}, .communication = {}}),
                    doctest::Contains("name them, such as 2x24GiB"));
}

TEST_CASE("cluster: --link and --comm replace what the cluster says") {
  const ClusterSpec spec =
      read_cluster({.cluster = "2x8GiB", .link = "10us, 10Gbit/s", .communication = "duplex"});
  CHECK(spec.communication == CommunicationMode::kDuplex);
  REQUIRE(spec.links.size() == 1);
  CHECK(spec.links[0].latency == microseconds(10));
  CHECK(spec.links[0].bandwidth == Bandwidth(1'250'000'000));
  CHECK_FALSE(parse_link("5us,unlimited").bandwidth.has_value());
  CHECK_FALSE(parse_link("0").bandwidth.has_value());
  for (const char* link :
       {"", "50us,", "50us,6GB", "50,6GB/s", "6GB/s,50us", "50us,6GB/s,1", "1us,0B/s"}) {
    CAPTURE(link);
    CHECK_THROWS_AS(parse_link(link), InputError);
  }
  CHECK_THROWS_AS(parse_communication("Sequential"), InputError);
}

TEST_CASE("cluster: a name of a preset is its cluster, and a missing file is called missing") {
  CHECK(read_cluster({.cluster = "paper", .link = {}, .communication = {}}).devices.size() == 4);
  CHECK_THROWS_WITH(read_cluster({.cluster = "no/such.json", .link = {}, .communication = {}}),
                    "no/such.json: cannot open: no such file");
}

TEST_CASE("cluster.json: random clusters come back as they were") {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    const ClusterSpec spec = testing::random_cluster(seed).spec();
    const std::string text = cluster_to_json(spec);
    const ClusterSpec back = parse_cluster(text, "c.json");
    CHECK(back == spec);
    CHECK(cluster_to_json(back) == text);
  }
}

TEST_CASE("cluster.json: every scope and field is read") {
  const ClusterSpec spec =
      parse_cluster(R"({"format": "baechi-cluster", "version": 1, "name": "lab",
    "communication": "duplex",
    "devices": [{"name": "a", "kind": "gpu", "capacity": 100, "host": "h1", "speed": 0.5},
                {"name": "b", "kind": "cpu", "capacity": "1KiB"}],
    "links": [{"scope": "default", "latency": 5},
              {"scope": "other-host", "latency": "5us", "bandwidth": 7, "channels": ["{from_host}"]},
              {"scope": "same-host", "latency": 0},
              {"scope": "kinds", "from": "gpu", "to": "cpu", "both_ways": false, "latency": 1},
              {"scope": "pair", "from": "a", "to": "b", "latency": 2}]})",
                    "c.json");
  CHECK(spec.name == "lab");
  CHECK(spec.communication == CommunicationMode::kDuplex);
  CHECK(spec.devices[0].speed == Speed(500'000));
  CHECK(spec.devices[1].host == "localhost");
  CHECK(spec.links[1].channels == std::vector<std::string>{"{from_host}"});
  CHECK(spec.links[1].bandwidth == Bandwidth(7));
  CHECK(spec.links[3].scope == LinkScope::kKinds);
  CHECK_FALSE(spec.links[3].both_ways);
  CHECK(spec.links[4].scope == LinkScope::kPair);
}

TEST_CASE("cluster.json: an error names file, line, column, path and reason") {
  const auto error_of = [](const std::string& fields) -> std::string {
    return testing::refusal_of([&] {
      parse_cluster("{\"format\": \"baechi-cluster\", \"version\": 1,\n" + fields + "}", "c.json");
    });
  };
  CHECK(error_of(R"("devices": [])") == "c.json:1:1: $: the cluster has no devices");
  CHECK(error_of(R"("devices": [{"name": "a", "kind": "g"}])") ==
        "c.json:2:13: $.devices[0]: the field \"capacity\" is missing");
  CHECK(error_of(R"("devices": [{"name": "a", "kind": "g", "capacity": 1, "speed": 0.1234567}])") ==
        "c.json:2:64: $.devices[0].speed: a speed has at most six decimals");
  CHECK(
      error_of(
          R"("devices": [{"name": "a", "kind": "g", "capacity": 1}], "links": [{"scope": "pair", "latency": 1}])") ==
      "c.json:2:67: $.links[0]: the field \"from\" is missing");
}

}  // namespace
}  // namespace baechi
