// SPDX-License-Identifier: Apache-2.0
#include "baechi/dnn_partitioning/dnnp_score.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/graph/op_graph_builder.h"

namespace baechi {
namespace {

// Two accelerators of 100 bytes and a CPU; a byte takes one nanosecond between an accelerator and
// the CPU, and two between accelerators.
Cluster two_accelerators(bool host = true) {
  ClusterSpec spec = uniform_cluster({.count = 2,
                                      .capacity = Bytes(100),
                                      .latency = Time(0),
                                      .bandwidth = Bandwidth(500'000'000)});
  for (Device& device : spec.devices) device.kind = "accelerator";
  if (!host) return Cluster(std::move(spec));
  spec.devices.push_back({"cpu:0", "cpu", Bytes(1'000'000), "localhost", kFullSpeed});
  LinkRule rule;
  rule.scope = LinkScope::kKinds;
  rule.from = "accelerator";
  rule.to = "cpu";
  rule.bandwidth = Bandwidth(1'000'000'000);
  spec.links.push_back(rule);
  return Cluster(std::move(spec));
}
const DeviceId kFirst(0), kSecond(1), kHost(2);

OpId add(OpGraphBuilder& builder, const std::string& name, int time, int output, int bytes = 40) {
  const OpId op = builder.add_operator({.name = name, .permanent = Bytes(bytes)});
  builder.set_time(op, "accelerator", Time(time));
  builder.set_time(op, "cpu", Time(10 * time));
  builder.add_output(op, Bytes(output));
  return op;
}
void connect(OpGraphBuilder& builder, OpId from, OpId to) {
  builder.connect(*builder.output(from, 0), to);
}

// a -> b -> c: times 2, 3, 4 (ten times that on the CPU); outputs of 5, 6 and 7 bytes.
OpGraph line() {
  OpGraphBuilder builder;
  const OpId a = add(builder, "a", 2, 5), b = add(builder, "b", 3, 6), c = add(builder, "c", 4, 7);
  connect(builder, a, b);
  connect(builder, b, c);
  return std::move(builder).build();
}

//      +--> b --+
//   a -+        +--> d        times 1; all outputs 10 bytes, d's is read by nobody
//      +--> c --+
OpGraph diamond() {
  OpGraphBuilder builder;
  const OpId a = add(builder, "a", 1, 10, 1), b = add(builder, "b", 1, 10, 1),
             c = add(builder, "c", 1, 10, 1), d = add(builder, "d", 1, 10, 1);
  for (const auto& [from, to] : {std::pair(a, b), {a, c}, {b, d}, {c, d}})
    connect(builder, from, to);
  return std::move(builder).build();
}

std::optional<Time> value(const OpGraph& graph, std::vector<DeviceId> placement,
                          DnnpObjective objective, bool host = true) {
  const Cluster cluster = two_accelerators(host);
  return dnnp_score(CostModel(graph, cluster), Placement(std::move(placement)), objective).value;
}
constexpr auto kLatency = DnnpObjective::kLatency;
constexpr auto kMaxLoad = DnnpObjective::kMaxLoad;

TEST_CASE("dnnp max-load: computing, outputs once, inputs once per device; the host pays nothing") {
  const OpGraph graph = line();
  CHECK(value(graph, {kFirst, kFirst, kFirst}, kMaxLoad) == Time(2 + 3 + 4));
  // b's output leaves the first (6) and comes to the second (6).
  CHECK(value(graph, {kFirst, kFirst, kSecond}, kMaxLoad) == Time(2 + 3 + 6));
  CHECK(value(graph, {kFirst, kSecond, kSecond}, kMaxLoad) == Time(5 + 3 + 4));
  // The accelerator pays for what it gives to the CPU and takes from it.
  CHECK(value(graph, {kHost, kFirst, kFirst}, kMaxLoad) == Time(20));
  CHECK(value(graph, {kFirst, kHost, kFirst}, kMaxLoad) == Time(30));
  CHECK(value(graph, {kHost, kHost, kHost}, kMaxLoad) == Time(90));
  const OpGraph fork = diamond();
  // a's output leaves once for both, and comes in once where both b and c are.
  CHECK(value(fork, {kFirst, kSecond, kSecond, kSecond}, kMaxLoad) == Time(10 + 3));
  CHECK(value(fork, {kFirst, kFirst, kSecond, kFirst}, kMaxLoad) == Time(3 + 10 + 10));
}

TEST_CASE("dnnp latency: an accelerator is one call, and its outputs appear at its end") {
  const OpGraph graph = line();
  CHECK(value(graph, {kFirst, kFirst, kFirst}, kLatency) == Time(9));
  CHECK(value(graph, {kFirst, kFirst, kSecond}, kLatency) == Time((2 + 3 + 6) + (6 + 4)));
  CHECK(value(graph, {kHost, kFirst, kFirst}, kLatency) == Time(20 + (5 + 3 + 4)));
  CHECK(value(graph, {kHost, kHost, kHost}, kLatency) == Time(90));
  const OpGraph fork = diamond();
  // b could go out sooner, but the call ends with all of it; c waits for the call.
  CHECK(value(fork, {kFirst, kFirst, kSecond, kSecond}, kLatency) ==
        Time((1 + 1 + 10 + 10) + (10 + 10 + 1 + 1)));
  // The CPU runs b and c side by side.
  CHECK(value(fork, {kHost, kHost, kHost, kHost}, kLatency) == Time(30));
}

TEST_CASE("dnnp latency: what is not contiguous is cut into several calls") {
  const OpGraph graph = line();
  CHECK(value(graph, {kFirst, kSecond, kFirst}, kLatency) == Time((2 + 5) + (5 + 3 + 6) + (6 + 4)));
  CHECK(value(graph, {kFirst, kHost, kFirst}, kLatency) == Time((2 + 5) + 30 + (6 + 4)));
  const Cluster cluster = two_accelerators();
  const DnnpScore score =
      dnnp_score(CostModel(graph, cluster), Placement{kFirst, kSecond, kFirst}, kLatency);
  REQUIRE(score.calls.size() == 3);
  CHECK(score.calls[0].device == kFirst);
  CHECK(score.calls[1].device == kFirst);
  CHECK(score.calls[0].finish == Time(7));
  CHECK(score.calls[1].finish == Time(31));
}

// a -> b and c -> d: each accelerator needs what the other one gives.
TEST_CASE("dnnp latency: calls that wait for each other have no value") {
  OpGraphBuilder builder;
  const OpId a = add(builder, "a", 1, 1), b = add(builder, "b", 1, 1), c = add(builder, "c", 1, 1),
             d = add(builder, "d", 1, 1);
  connect(builder, a, b);
  connect(builder, c, d);
  const OpGraph graph = std::move(builder).build();
  CHECK_FALSE(value(graph, {kFirst, kSecond, kSecond, kFirst}, kLatency).has_value());
  CHECK(value(graph, {kFirst, kSecond, kSecond, kFirst}, kMaxLoad) == Time(2 + 1 + 1));
}

TEST_CASE("dnnp score: without a host, a transfer goes half the way to another accelerator") {
  CHECK(value(line(), {kFirst, kFirst, kSecond}, kMaxLoad, false) == Time(2 + 3 + 6));
}

TEST_CASE("dnnp score: memory is the permanent memory on accelerators") {
  const OpGraph graph = line();
  const Cluster cluster = two_accelerators();
  const CostModel costs(graph, cluster);
  const auto fits = [&](Placement placement) {
    return dnnp_score(costs, placement, kMaxLoad).fits;
  };
  CHECK(fits({kFirst, kFirst, kSecond}));
  CHECK_FALSE(fits({kFirst, kFirst, kFirst}));
  CHECK(fits({kHost, kHost, kHost}));
}

TEST_CASE("dnnp score: placements that break a rule are refused") {
  OpGraphBuilder builder;
  const OpId a = add(builder, "a", 1, 1), b = add(builder, "b", 1, 1);
  const OpId cpu_only = builder.add_operator({.name = "reader"});
  builder.set_time(cpu_only, "cpu", Time(1));
  builder.add_to_group(a, "both");
  builder.add_to_group(b, "both");
  const OpGraph graph = std::move(builder).build();
  CHECK_THROWS_WITH_AS(value(graph, {kFirst, kSecond, kHost}, kMaxLoad),
                       doctest::Contains("colocation group"), InputError);
  CHECK_THROWS_WITH_AS(value(graph, {kFirst, kFirst, kFirst}, kMaxLoad),
                       doctest::Contains("'reader' cannot run"), InputError);
  CHECK_THROWS_AS(find_dnnp_objective("latency"), InputError);
}

TEST_CASE("dnnp score: it stops when asked to") {
  OpGraphBuilder builder;
  add(builder, "a", 1, 1);
  const OpGraph graph = std::move(builder).build();
  const Cluster cluster = two_accelerators();
  const CostModel costs(graph, cluster);
  const Placement placement{kFirst};
  CancelFlag cancel;
  CHECK(dnnp_score(costs, placement, kMaxLoad, &cancel).value.has_value());
  cancel.request();
  CHECK_THROWS_AS(dnnp_score(costs, placement, kMaxLoad, &cancel), Cancelled);
}

}  // namespace
}  // namespace baechi
