// SPDX-License-Identifier: Apache-2.0
#include "baechi/verify/check_replicas.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/graph/unroll.h"
#include "baechi/io/plan/plan_file.h"
#include "baechi/io/step/open_plan.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_plan.h"
#include "unit/graph_draft.h"
#include "unit/graph_sketch.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

// The weight's gradient g has 8 bytes and b's second output 2; v and its reader share a device.
//
//   v --> f(10) --1--> b(20) --8--> u(3)
//                           +--2--> n(1)
OpGraph small_step() {
  OpGraphBuilder builder("small");
  const OpId v = builder.add_operator({.name = "v", .per_step = true, .variable = true});
  const OpId f = builder.add_operator({.name = "f#1", .temporary = Bytes(1)});
  const OpId b = builder.add_operator({.name = "b", .forward = f});
  const OpId u = builder.add_operator({.name = "u", .backward = true, .per_step = true});
  const OpId n = builder.add_operator({.name = "n", .backward = true, .per_step = true});
  builder.set_time(f, "gpu", Time(10));
  builder.set_time(b, "gpu", Time(20));
  builder.set_time(u, "gpu", Time(3));
  builder.set_time(n, "gpu", Time(1));
  for (const OpId op : {v, f, u}) builder.add_to_group(op, "weight");
  builder.connect(builder.add_output(v, Bytes(8)), f);
  builder.connect(builder.add_output(f, Bytes(1)), b);
  builder.connect(builder.add_output(b, Bytes(8)), u);
  builder.connect(builder.add_output(b, Bytes(2)), n);
  builder.add_control_edge(u, n);
  return std::move(builder).build();
}

Replicas in_buckets(std::uint32_t count, const std::vector<std::vector<std::uint32_t>>& ports) {
  Replicas replicas{.count = count};
  for (const std::vector<std::uint32_t>& bucket : ports) {
    replicas.buckets.emplace_back();
    for (const std::uint32_t port : bucket) replicas.buckets.back().push_back({OpId(2), port});
  }
  return replicas;
}

// Replica r on device r, each device in the order of its operators' ids.
Plan plan_on_devices(const Unrolled& step, const Replicas& replicas, const Cluster& cluster) {
  const std::size_t ops = replicas.ops_of_one(step.rank.size());
  PlacedGraph placed{Placement(step.graph.num_ops(), DeviceId(0)), {}};
  for (const OpId op : step.graph.ops()) {
    const std::size_t at = step.original[op].index(), all = ops * replicas.count;
    placed.device[op] = DeviceId(at < all ? at / ops : (at - all) % replicas.count);
  }
  const CostModel costs(step.graph, cluster);
  placed.order = order_of(simulate(costs, placed).schedule, step.graph, cluster.num_devices());
  Plan plan = plan_of(costs, placed, "by hand", true);
  plan.micro_batches = step.micro_batches;
  plan.replicas = replicas;
  return plan;
}

Time step_of(std::uint32_t count, std::uint32_t micro_batches,
             const std::vector<std::vector<std::uint32_t>>& ports, Time latency) {
  const Replicas replicas = in_buckets(count, ports);
  const Unrolled step = unroll(replicated(small_step(), replicas), micro_batches);
  const Cluster cluster = byte_per_ns(count, CommunicationMode::kDuplex, latency);
  return plan_on_devices(step, replicas, cluster).makespan();
}

// Both gradients are there at 30 m; a round takes the latency and an R-th of the bytes, rounded up,
// and there are 2 (R - 1) of them; u and n take 4.
TEST_CASE("replicas: a ring takes what is worked out by hand") {
  CHECK(step_of(2, 1, {{0, 1}}, Time(0)) == Time(30 + 2 * 5 + 4));
  CHECK(step_of(2, 3, {{0, 1}}, Time(0)) == Time(90 + 2 * 5 + 4));
  CHECK(step_of(3, 1, {{0, 1}}, Time(2)) == Time(30 + 4 * (2 + 4) + 4));
  CHECK(step_of(8, 2, {{1, 0}}, Time(7)) == Time(60 + 14 * (7 + 2) + 4));
  // The second bucket's round follows the first's on the same link; u runs meanwhile.
  CHECK(step_of(2, 1, {{0}, {1}}, Time(0)) == Time(30 + 2 * 4 + 1 + 3 + 1));
  CHECK(step_of(2, 1, {{1}, {0}}, Time(0)) == Time(30 + 1 + 4 + 1 + 4 + 3 + 1));
}

TEST_CASE("replicas: the graph of all of them is right, and names whom it cannot have") {
  const OpGraph one = small_step();
  const OpGraph all = replicated(one, in_buckets(2, {{0, 1}}));
  CHECK(all[OpId(5)].name == "v##1");
  CHECK(all[OpId(10)].name == "bucket0##0.0");
  CHECK(reduced_tensors(one) == in_buckets(2, {{0, 1}}).buckets[0]);
  for (const std::uint32_t count : {2U, 3U, 5U})
    for (const Replicas& replicas : {in_buckets(count, {{0, 1}}), in_buckets(count, {{1}, {0}})})
      CHECK(check_replicas(one, replicated(one, replicas), replicas).empty());
  const auto refused = [&](std::uint32_t count,
                           const std::vector<std::vector<std::uint32_t>>& ports,
                           const char* words) {
    CHECK_THROWS_WITH_AS(replicated(one, in_buckets(count, ports)), words, InputError);
  };
  refused(1, {{0, 1}}, "replicas are at least 2, not 1");
  refused(2, {{0}}, "output 1 of operator 'b' is read by the step, and is in no bucket");
  refused(2, {{0, 1}, {0}}, "output 0 of operator 'b' is in two buckets");
  refused(2, {{0, 1}, {}}, "a bucket is empty");
  refused(2, {{0, 1, 2}},
          "output 2 of operator 'b' is in a bucket, but no operator of the step reads it");
}

// Whether it is found: that, and not the words, is what counts here.
bool is_found(const OpGraph& one, const Draft& draft, const Replicas& replicas) {
  try {
    return !check_replicas(one, draft.build(), replicas).empty();
  } catch (const InputError&) {  // no graph at all
    return true;
  }
}

void check_all_changes(const Replicas& replicas) {
  const OpGraph one = small_step();
  const Draft right(replicated(one, replicas));
  REQUIRE_FALSE(is_found(one, right, replicas));
  const auto broken = [&](auto&& change) {
    Draft draft = right;
    change(draft);
    return is_found(one, draft, replicas);
  };
  for (std::size_t i = 0; i < right.wires.size(); ++i) {
    CAPTURE(i);
    CHECK(broken([&](Draft& d) { d.wires.erase(d.wires.begin() + static_cast<long>(i)); }));
  }
  for (std::size_t i = 0; i < right.ops.size(); ++i) {
    CAPTURE(right.ops[i].name);
    CHECK(broken([&](Draft& d) { d.ops[i].spec.permanent += Bytes(1); }));
    CHECK(broken([&](Draft& d) { d.ops[i].spec.temporary += Bytes(1); }));
    if (!right.ops[i].spec.variable)
      CHECK(broken([&](Draft& d) { d.ops[i].spec.per_step = !d.ops[i].spec.per_step; }));
    CHECK(broken([&](Draft& d) { d.ops[i].spec.random = true; }));
    CHECK(broken([&](Draft& d) { d.ops[i].times = {{"gpu", Time(7)}}; }));
    for (std::size_t port = 0; port < right.ops[i].outputs.size(); ++port)
      CHECK(broken([&](Draft& d) { d.ops[i].outputs[port] += Bytes(1); }));
    const bool alone = replicas.shared > 0 && right.ops[i].name.starts_with("f##");
    if (!right.ops[i].groups.empty() && !alone)
      CHECK(broken([&](Draft& d) { d.ops[i].groups.clear(); }));
  }
}

TEST_CASE("verify: whatever is changed in the graph of replicas is found") {
  const OpGraph one = small_step();
  const Replicas replicas = in_buckets(3, {{0}, {1}}), shared = sharing(one, 3);
  check_all_changes(replicas);
  check_all_changes(shared);
  const Draft right(replicated(one, replicas));
  const auto broken = [&](auto&& change) {
    Draft draft = right;
    change(draft);
    return is_found(one, draft, replicas);
  };
  // A ring the other way round: replicas 1 and 2 change places as whom replica 0 and they read.
  CHECK(broken([&](Draft& d) {
    for (Draft::Wire& wire : d.wires) {
      const std::string& from = d.ops[wire.from.index()].name;
      if (from == "bucket0##1.0" && wire.port.has_value())
        wire.from = op_named(replicated(one, replicas), "bucket0##2.0");
      else if (from == "bucket0##2.0" && wire.port.has_value())
        wire.from = op_named(replicated(one, replicas), "bucket0##1.0");
    }
  }));
  // The right graph of other buckets.
  CHECK(is_found(one, right, in_buckets(3, {{1}, {0}})));
  CHECK(is_found(one, right, in_buckets(3, {{0}})));
  CHECK(is_found(one, right, in_buckets(3, {{0}, {1}, {1}})));
  CHECK(is_found(one, right, in_buckets(2, {{0}, {1}})));
  CHECK(is_found(one, right, shared));
  CHECK(is_found(one, Draft(replicated(one, shared)), sharing(one, 2)));
  Replicas fewer = shared;
  --fewer.shared;
  CHECK(is_found(one, Draft(replicated(one, shared)), fewer));
}

// v, u and n are there once, and u reads both gradients.
TEST_CASE("replicas: those that share the operators of the step, by hand") {
  const OpGraph one = small_step();
  const OpGraph all = replicated(one, sharing(one, 2));
  REQUIRE(all.num_ops() == 7);
  CHECK(all[OpId(5)].name == "f#1##1");
  CHECK(all.in_edges(OpId(3)).size() == 2);
  CHECK(all.in_edges(OpId(5)).front().from == OpId(0));
  Draft drawing(one);
  drawing.ops[2].spec.random = true;
  CHECK_THROWS_WITH_AS(replicated(drawing.build(), sharing(one, 2)),
                       "copies of operator 'b' cannot be apart: it draws random numbers",
                       InputError);
  Draft holding(one);
  holding.ops[1].spec.permanent = Bytes(1);
  CHECK_THROWS_AS(replicated(holding.build(), sharing(one, 2)), InputError);
}

TEST_CASE("verify: a plan's replicas are apart, and its file tells them again") {
  const Cluster cluster = byte_per_ns(4, CommunicationMode::kDuplex);
  const Replicas replicas = in_buckets(2, {{0, 1}});
  for (const std::uint32_t micro_batches : {1U, 3U}) {
    CAPTURE(micro_batches);
    const Unrolled step = unroll(replicated(small_step(), replicas), micro_batches);
    Plan plan = plan_on_devices(step, replicas, cluster);
    CHECK(check_plan(small_step(), step, plan).empty());
    const std::string text = plan_to_json(plan, step);
    const OpenedPlan back = open_plan_text(text, "plan.json", small_step());
    CHECK(back.plan == plan);
    REQUIRE(back.original.has_value());
    CHECK(check_plan(*back.original, back.step, back.plan).empty());
    CHECK_THROWS_AS(open_plan_text(text.substr(0, text.find("\"replicas\"")) +
                                       text.substr(text.find("\"operators\": [")),
                                   "plan.json", small_step()),
                    InputError);

    // n of replica 1 goes to the device of replica 0, where the schedule has room for it.
    PlacedGraph placed{placement_of(plan.schedule), {}};
    placed.device[OpId(9)] = DeviceId(0);
    const CostModel costs(step.graph, cluster);
    placed.order = order_of(simulate(costs, placed).schedule, step.graph, 4);
    plan = plan_of(costs, placed, "by hand", false);
    plan.micro_batches = micro_batches;
    CHECK(check_plan(StepGraph(step), plan).empty());
    plan.replicas = replicas;
    CHECK(check_plan(StepGraph(step), plan) ==
          std::vector<std::string>{"replicas: device 'gpu:0' has operators of replicas 0 and 1"});
  }
}

}  // namespace
}  // namespace baechi::testing
