// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/theorems.h"

#include <doctest/doctest.h>

#include "baechi/graph/op_graph_builder.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

TEST_CASE("theorems: with all devices sufficient the published ratios come out") {
  CHECK(m_etf_bound(4, 4, 100.0, 7.0) == doctest::Approx((2.0 - 1.0 / 4) * 100 + 7));
  CHECK(m_etf_bound(1, 1, 100.0, 0.0) == doctest::Approx(100));
  CHECK(favorite_child_ratio(1.0) == doctest::Approx(4.0 / 3));
  CHECK(favorite_child_ratio(0.0) == doctest::Approx(1.0));
  // 7/3 - 4/(3n) when rho = 1.
  CHECK(m_sct_bound(4, 4, 1.0, 1.0) == doctest::Approx(7.0 / 3 - 1.0 / 3));
  CHECK(m_sct_bound(8, 8, 0.5, 1.0) == doctest::Approx((4 + 1.5) / 2.5 - (2 + 1.0) / (8 * 2.5)));
  // Half of the devices sufficient: the work may take twice as long.
  CHECK(m_etf_bound(4, 2, 100.0, 0.0) == doctest::Approx(250));
}

TEST_CASE("theorems: rho compares the longest transfer with the shortest operator") {
  const auto rho_of = [](std::int64_t shortest, std::int64_t latency) {
    const OpGraph graph = testing::chain({Time(10), Time(shortest), Time(10)}, Bytes(1));
    const Cluster cluster = testing::equal_devices(2, Bytes(99), Time(latency));
    const CostModel costs(graph, cluster);
    CHECK(sct_assumption_holds(costs) == (latency <= shortest));
    return rho(costs);
  };
  CHECK(rho_of(5, 4) == 0.8);
  CHECK(rho_of(5, 5) == 1.0);
  CHECK(rho_of(5, 10) == 2.0);
  CHECK(rho_of(0, 0) == 0.0);
  CHECK_FALSE(rho_of(0, 1).has_value());
}

TEST_CASE("theorems: an operator's rho counts its fastest device, a tensor's its fastest link") {
  const OpGraph graph = testing::chain({Time(10), Time(10)}, Bytes(1));
  ClusterSpec spec = testing::equal_devices(3, Bytes(99), Time(9)).spec();
  spec.devices[1].speed = Speed(2'000'000);
  LinkRule quick;
  quick.scope = LinkScope::kPair;
  quick.from = "gpu:0";
  quick.to = "gpu:2";
  quick.latency = Time(2);
  spec.links.push_back(quick);
  const Cluster cluster(spec);
  CHECK(rho(CostModel(graph, cluster)) == 2.0 / 5.0);
}

TEST_CASE("theorems: the most communication on a chain counts every edge of it") {
  const OpGraph graph = testing::chain({Time(1), Time(1), Time(1), Time(1)}, Bytes(10));
  const Cluster cluster = testing::equal_devices(2, Bytes(99), Time(3), Bandwidth(2'000'000'000));
  CHECK(longest_chain_communication(CostModel(graph, cluster)) == Time(24));  // 3 x (3 + 5)
}

TEST_CASE("theorems: memory narrows the cluster to the devices that cannot run short") {
  // Four operators of 10 bytes each.
  const OpGraph graph = testing::chain({Time(1), Time(1), Time(1), Time(1)}, Bytes(0), Bytes(10));
  const auto sufficiency = [&](std::int64_t capacity) {
    const Cluster cluster = testing::equal_devices(4, Bytes(capacity), Time(1));
    return memory_sufficiency(CostModel(graph, cluster));
  };
  CHECK(sufficiency(40).R == 4);  // one device holds everything
  CHECK(sufficiency(39).R == 3);  // 30 bytes used up leave it 1 short
  CHECK(sufficiency(30).R == 3);  // two that lack room would hold more than 40 bytes
  CHECK(sufficiency(29).R == 2);
  CHECK(sufficiency(10).R == 0);
}

TEST_CASE(
    "theorems: the machine they speak of has equal devices, parallel transfers and no groups") {
  const OpGraph graph = testing::figure_1();
  ClusterSpec spec =
      testing::equal_devices(2, Bytes(9), Time(1), {}, CommunicationMode::kParallel).spec();
  const auto holds = [&] {
    const Cluster cluster(spec);
    return theorem_machine(CostModel(graph, cluster));
  };
  CHECK(holds());
  spec.communication = CommunicationMode::kDuplex;
  CHECK_FALSE(holds());
  spec.communication = CommunicationMode::kParallel;
  spec.devices[1].speed = Speed(900'000);
  CHECK_FALSE(holds());

  OpGraphBuilder builder;
  const OpId op = testing::timed(builder, {.name = "op"}, Time(1));
  builder.add_to_group(op, "g");
  const OpGraph grouped = std::move(builder).build();
  const Cluster cluster = testing::unit_latency_cluster(2, Bytes(9));
  CHECK_FALSE(theorem_machine(CostModel(grouped, cluster)));
}

}  // namespace
}  // namespace baechi
