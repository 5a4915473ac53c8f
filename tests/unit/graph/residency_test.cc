// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/residency.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/graph/recosted.h"
#include "baechi/graph/unroll.h"
#include "baechi/io/plan/plan_file.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/plan/residency/stored_units.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_plan.h"
#include "baechi/verify/check_residency.h"
#include "baechi/verify/check_schedule.h"
#include "unit/graph_sketch.h"
#include "unit/graphs.h"
#include "unit/simulate/random_placement.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

// w (a variable of 10 bytes) is read by f and b; f's 6 bytes are read by m and b; u changes w.
//
//   w --> f --> m --> b --> u <-- w
enum class Late : std::uint8_t { kNobody, kReadsToo, kReadsBehindUpdate };  // one that reads w late
OpGraph small_step(Late late = Late::kNobody) {
  OpGraphBuilder builder("small");
  const OpId w = builder.add_operator({.name = "w", .per_step = true, .variable = true});
  builder.add_output(w, Bytes(10));
  const auto add = [&](const char* name, std::int64_t time, std::int64_t bytes, bool backward) {
    const OpId op =
        timed(builder, {.name = name, .backward = backward, .per_step = std::string(name) == "u"},
              Time(time));
    if (bytes > 0) builder.add_output(op, Bytes(bytes));
    return op;
  };
  const OpId f = add("f", 5, 6, false), m = add("m", 40, 1, false), b = add("b", 5, 4, true);
  const OpId u = add("u", 3, 0, true);
  builder.set_time(u, "host", Time(7));
  for (const OpId reader : {f, b, u}) builder.connect(*builder.output(w, 0), reader);
  for (const OpId reader : {m, b}) builder.connect(*builder.output(f, 0), reader);
  builder.connect(*builder.output(m, 0), b);
  builder.connect(*builder.output(b, 0), u);
  if (late != Late::kNobody) {
    const OpId reader = builder.add_operator({.name = "late", .per_step = true});
    builder.set_time(reader, "gpu", Time(3));
    builder.connect(*builder.output(w, 0), reader);
    if (late == Late::kReadsBehindUpdate) builder.add_control_edge(u, reader);
  }
  return std::move(builder).build();
}

Residency all_away(const OpGraph& graph) {
  const auto id = [&](const char* name) { return op_named(graph, name); };
  return {"host:0",
          {{id("w"), 0, {{std::nullopt, {id("f")}}, {id("f"), {id("b")}}}},
           {id("f"), 0, {{id("f"), {id("b")}}}}},
          {id("w"), id("u")}};
}

std::string refusal(const OpGraph& graph, const Residency& residency) {
  try {
    residing(graph, residency);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

//        gpu                     to the gpu           to the host
//   0                            w@fetch  10
//  10 f  15                      w@fetch@1  25        f's output  21
//  15 m  55                      f@fetch  31
//  55 b  60                                           b's output  64     then u on the host  71
TEST_CASE("residency: a step of which all is away, time and memory by hand") {
  const OpGraph graph = small_step();
  const Residency residency = all_away(graph);
  const OpGraph step = residing(graph, residency);
  const Cluster cluster = gpu_and_host(Bytes(30), Bytes(1000));
  CHECK(check_residency(graph, step, cluster.spec(), residency).empty());
  const Trace trace =
      simulate(CostModel(step, cluster),
               in_order(step, {{"f", "m", "b"}, {"w", "w@fetch", "w@fetch@1", "f@fetch", "u"}}));
  CHECK(check_schedule(step, cluster, trace.schedule).empty());
  const auto slot = [&](const char* name) { return trace.schedule.slots[op_named(step, name)]; };
  CHECK(slot("f").start == Time(10));
  CHECK(slot("f@fetch").start == Time(21));  // the put has ended
  CHECK(slot("b").start == Time(55));
  CHECK(slot("u").start == Time(64));
  CHECK(trace.schedule.makespan == Time(71));
  // While m runs: w, f's output as made and as fetched, m's output.
  CHECK(trace.devices[DeviceId(0)].peak == Bytes(10 + 6 + 6 + 1));
}

TEST_CASE(
    "residency: what runs once per step may wait for a micro-batch's operator, if there is one") {
  OpGraphBuilder builder("read");
  const OpId w = builder.add_operator({.name = "w", .per_step = true, .variable = true});
  builder.add_output(w, Bytes(10));
  const OpId x = timed(builder, {.name = "x"}, Time(5));
  const OpId read = timed(builder, {.name = "read", .per_step = true}, Time(1));
  builder.connect(*builder.output(w, 0), read);
  const OpId m = timed(builder, {.name = "m"}, Time(5));
  builder.connect(builder.add_output(read, Bytes(10)), m);
  builder.connect(builder.add_output(x, Bytes(1)), m);
  const OpGraph graph = std::move(builder).build();
  const Residency residency{"host:0", {{w, 0, {{x, {read}}}}}, {w}};
  const OpGraph step = residing(graph, residency);
  const Cluster cluster = gpu_and_host(Bytes(30), Bytes(1000));
  CHECK(check_residency(graph, step, cluster.spec(), residency).empty());
  const Trace trace =
      simulate(CostModel(step, cluster), in_order(step, {{"x", "read", "m"}, {"w", "w@fetch"}}));
  CHECK(check_schedule(step, cluster, trace.schedule).empty());
  CHECK(trace.schedule.makespan == Time(5 + 10 + 1 + 5));
}

// The update runs on the device: w is fetched for b and u, and what u makes of it is put back.
//
//        gpu                     to the gpu           to the host
//   0                            w@fetch  10
//  10 f  15                      w@fetch@1  25
//  15 m  55  b  60
//  60 u  63  u@new  63                                u@new's output  73  then u@put  73
Residency streamed(const OpGraph& graph) {
  const auto id = [&](const char* name) { return op_named(graph, name); };
  return {"host:0",
          {{id("w"), 0, {{std::nullopt, {id("f")}}, {id("f"), {id("b"), id("u")}}}}},
          {id("w")}};
}

OpGraph without_edge(const OpGraph& graph, const Edge& left_out) {
  OpGraphBuilder builder(graph.name());
  for (const OpId op : graph.ops()) {
    OperatorSpec spec = spec_of(graph[op]);
    spec.name = graph[op].name;
    builder.add_operator(spec);
    for (const KindId kind : graph.kinds())
      if (const auto time = graph.times(kind)[op]; time.has_value())
        builder.set_time(op, graph.kind_name(kind), *time);
    for (const TensorId tensor : graph.outputs(op)) builder.add_output(op, graph.size(tensor));
    for (const std::string_view group : graph.colocation_names(op)) builder.add_to_group(op, group);
  }
  for (const OpId op : graph.ops())
    for (const Edge& edge : graph.out_edges(op))
      if (edge == left_out)
        continue;
      else if (edge.tensor.has_value())
        builder.connect(*edge.tensor, edge.to);
      else
        builder.add_control_edge(op, edge.to);
  return std::move(builder).build();
}

TEST_CASE("residency: a streamed update, time and memory by hand") {
  const OpGraph graph = small_step();
  const Residency residency = streamed(graph);
  const OpGraph step = residing(graph, residency);
  const Cluster cluster = gpu_and_host(Bytes(21), Bytes(1000));
  CHECK(check_residency(graph, step, cluster.spec(), residency).empty());
  const Trace trace = simulate(
      CostModel(step, cluster),
      in_order(step, {{"f", "m", "b", "u", "u@new"}, {"w", "w@fetch", "w@fetch@1", "u@put"}}));
  CHECK(check_schedule(step, cluster, trace.schedule).empty());
  CHECK(trace.schedule.slots[op_named(step, "u")].end == Time(63));
  CHECK(trace.schedule.makespan == Time(73));
  // While b runs: w, what f, m and b have made. New values of w take no room beside it.
  CHECK(trace.devices[DeviceId(0)].peak == Bytes(10 + 6 + 1 + 4));
  CHECK(trace.devices[DeviceId(1)].peak == Bytes(10 + 10));  // w, and what is sent or comes

  const Edge none{OpId(0), OpId(0), std::nullopt};
  CHECK(check_residency(graph, without_edge(step, none), cluster.spec(), residency).empty());
  for (const char* of : {"u@new", "u@put"})
    for (const Edge& edge : step.in_edges(op_named(step, of)))
      CHECK_FALSE(
          check_residency(graph, without_edge(step, edge), cluster.spec(), residency).empty());

  const OpGraph not_streamed = residing(graph, all_away(graph));
  CHECK_FALSE(check_residency(graph, not_streamed, cluster.spec(), residency).empty());
  Residency wrong = residency;
  wrong.away[0].fetches[1].readers = {op_named(graph, "b")};
  CHECK(refusal(graph, wrong) == "operator 'u' is not on the store: it has to fetch 'w', which is");
  CHECK_FALSE(check_residency(graph, step, cluster.spec(), wrong).empty());
}

TEST_CASE("residency: no variable is on the store that is read behind its update") {
  const OpGraph too = small_step(Late::kReadsToo), behind = small_step(Late::kReadsBehindUpdate);
  const Cluster cluster = gpu_and_host(Bytes(40), Bytes(1000));
  for (const auto& of : {streamed, all_away}) {
    const OpGraph step = residing(too, of(too));
    CHECK(check_residency(too, step, cluster.spec(), of(too)).empty());
    CHECK(refusal(behind, of(behind)) ==
          "operator 'w' may not be on the store: 'late' reads it and waits for an update of it, so "
          "it may find the old or the new value");
    const auto faults = check_residency(behind, step, cluster.spec(), of(behind));
    CHECK(std::ranges::find(faults,
                            "residency: operator 'late' reads 'w' on the store behind an update of "
                            "it: the old or the new value") != faults.end());
  }
  CHECK(units_for_store(CostModel(too, cluster), too, DeviceId(1)).size() == 1);
  CHECK(units_for_store(CostModel(behind, cluster), behind, DeviceId(1)).empty());
}

TEST_CASE("residency: what may not be away is refused in a line") {
  const OpGraph graph = small_step();
  const auto id = [&](const char* name) { return op_named(graph, name); };
  Residency wrong = all_away(graph);
  wrong.on_store = {id("u")};
  CHECK(refusal(graph, wrong) ==
        "operator 'u' changes 'w': what it changes is on the store, or nothing of it and not the "
        "update");
  wrong.on_store = {id("w"), id("m"), id("u")};
  CHECK(refusal(graph, wrong) ==
        "operator 'm' may not be on the store: it is neither a variable nor an update");
  wrong.on_store = {};
  CHECK(refusal(graph, wrong) ==
        "operator 'w' is a variable that is away: it has to be on the store");
  wrong = all_away(graph);
  wrong.away[1].fetches[0].readers = {id("u")};
  CHECK(refusal(graph, wrong) == "operator 'f' is fetched for 'u', which does not read it");
  wrong = all_away(graph);
  wrong.away[0].fetches[1].readers = {id("f")};
  CHECK(refusal(graph, wrong) == "operator 'w' is fetched twice for one reader");
  wrong = all_away(graph);
  std::swap(wrong.away[0], wrong.away[1]);
  CHECK(refusal(graph, wrong) ==
        "operator 'w' is out of order: tensors that are away are sorted as in the graph");
  wrong = all_away(graph);
  wrong.away[1].port = 3;
  CHECK(refusal(graph, wrong) == "operator 'f' has no output 3");
}

// Of two micro-batches, which share both fetches of w, and add b's gradient up before it is sent.
//
//        gpu                                    to the gpu             to the host
//   0                                           w@@fetch    10
//  10 f@0  15 f@1  20                           w@@fetch@@1 30
//  20 m@0  60 m@1 100 b@0 105 b@1 110                                  b's sum 114    then u 121
TEST_CASE("residency: micro-batches share a fetch, time and memory by hand") {
  const OpGraph one = small_step();
  const Unrolled unrolled = unroll(one, 2);
  const auto id = [&](const char* name) { return op_named(unrolled.graph, name); };
  const Residency residency{
      "host:0",
      {{id("w"), 0, {{std::nullopt, {id("f@0"), id("f@1")}}, {id("f@1"), {id("b@0"), id("b@1")}}}}},
      {id("w"), id("u")}};
  const Unrolled step = with_fetches(unrolled, residency);
  const Cluster cluster = gpu_and_host(Bytes(30), Bytes(1000));
  CHECK(check_residency(unrolled.graph, step.graph, cluster.spec(), residency, &one).empty());
  const PlacedGraph placed = in_order(
      step.graph,
      {{"f@0", "f@1", "m@0", "m@1", "b@0", "b@1", "b@sum"}, {"w", "w@@fetch", "w@@fetch@@1", "u"}});
  const Trace trace = simulate(CostModel(step.graph, cluster), placed);
  CHECK(check_schedule(step.graph, cluster, trace.schedule).empty());
  CHECK(trace.schedule.makespan == Time(121));
  Bytes fetched;
  for (const Transfer& transfer : trace.schedule.transfers)
    if (transfer.to == DeviceId(0)) fetched += step.graph.size(transfer.tensor);
  CHECK(fetched == Bytes(20));
  CHECK(trace.devices[DeviceId(0)].peak == Bytes(10 + 2 * 6 + 2 * 1 + 4));  // while b@0 runs
  Residency wrong = residency;
  wrong.away.push_back({id("b@0"), 0, {{std::nullopt, {id("b@sum")}}}});
  CHECK_THROWS_WITH_AS(
      with_fetches(unrolled, wrong),
      "operator 'b@0' makes the buffer that micro-batches add to: it stays where it is",
      InputError);
  wrong = {"host:0", {wrong.away.back()}, {}};
  const OpGraph forged = residing(unrolled.graph, wrong);  // which does not know of micro-batches
  CHECK_FALSE(check_residency(unrolled.graph, forged, cluster.spec(), wrong, &one).empty());
  wrong = residency;
  wrong.away[0].fetches[0].readers.pop_back();
  CHECK_FALSE(check_residency(unrolled.graph, step.graph, cluster.spec(), wrong, &one).empty());
  CHECK_FALSE(check_residency(unrolled.graph, step.graph, cluster.spec(), residency).empty());
}

TEST_CASE("residency: a file has what is streamed, of one and of several micro-batches") {
  const OpGraph one = small_step();
  for (const std::uint32_t micro_batches : {1U, 2U}) {
    const Unrolled unrolled = unroll(one, micro_batches);
    Residency residency = streamed(one);
    if (micro_batches > 1) {
      const auto id = [&](const char* name) { return op_named(unrolled.graph, name); };
      residency.away[0].fetches = {{std::nullopt, {id("f@0"), id("f@1")}},
                                   {id("m@0"), {id("u"), id("b@0"), id("b@1")}}};
      std::ranges::sort(residency.away[0].fetches[1].readers);
    }
    const Unrolled step = with_fetches(unrolled, residency);
    const Cluster cluster = gpu_and_host(Bytes(40), Bytes(1000));
    const PlacedGraph placed =
        micro_batches == 1
            ? in_order(step.graph,
                       {{"f", "m", "b", "u", "u@new"}, {"w", "w@fetch", "w@fetch@1", "u@put"}})
            : in_order(step.graph,
                       {{"f@0", "f@1", "m@0", "m@1", "b@0", "b@1", "b@sum", "u", "u@@new"},
                        {"w", "w@@fetch", "w@@fetch@@1", "u@@put"}});
    Plan plan = plan_of(CostModel(step.graph, cluster), placed, "residency", false);
    plan.micro_batches = micro_batches;
    plan.residency = residency;
    CHECK(check_plan(one, step, plan).empty());
    CHECK(plan.makespan() == Time(micro_batches == 1 ? 73 : 123));
    const std::string text =
        micro_batches == 1 ? plan_to_json(plan, step.graph) : plan_to_json(plan, step);
    const StepFile file = parse_step_plan(text, "plan", recosted(one, {}));
    CHECK(file.plan.residency == residency);
    if (micro_batches == 1)
      CHECK(file.plan.schedule.slots == plan.schedule.slots);
    else
      CHECK(file.placed == placed);
  }
}

// Fetches of some outputs, for some of their readers, at random; updates on the store, streamed or
// neither.
Residency random_residency(const StepGraph& step, Random& random) {
  const OpGraph& graph = step.graph();
  Residency residency{"host:0", {}, {}};
  IdVector<OpId, std::size_t> rank(graph.num_ops());
  for (std::size_t i = 0; i < graph.num_ops(); ++i) rank[graph.topological_order()[i]] = i;
  for (const TensorId tensor : graph.tensors()) {
    const OpId producer = graph.producer(tensor);
    std::optional<OpId> update;
    for (const Edge& edge : graph.consumers(tensor))
      if (graph[producer].variable && is_update(step, edge.to)) update = edge.to;
    if ((graph[producer].variable && !update.has_value()) || random.chance(0.4)) continue;
    const bool stream = update.has_value() && random.chance(0.6);
    if (update.has_value()) residency.on_store.push_back(producer);
    if (update.has_value() && !stream) residency.on_store.push_back(*update);
    Fetch fetch;
    std::size_t first = graph.num_ops();
    for (const Edge& edge : graph.consumers(tensor))
      if (edge.to == update ? stream : random.chance(0.6) && !step.is_sum(edge.to)) {
        fetch.readers.push_back(edge.to);
        first = std::min(first, rank[edge.to]);
      }
    if (fetch.readers.empty()) continue;
    const bool for_step =
        std::ranges::all_of(fetch.readers, [&](OpId reader) { return is_update(step, reader); });
    const OpId after = graph.topological_order()[random.below(std::max<std::size_t>(first, 1))];
    if (first > 0 && random.chance(0.7) && (for_step || !is_update(step, after)))
      fetch.after = after;
    const std::size_t port = tensor.index() - (*graph.outputs(producer).begin()).index();
    residency.away.push_back({producer, static_cast<std::uint32_t>(port), {fetch}});
  }
  std::ranges::sort(residency.on_store);
  return residency;
}

TEST_CASE(
    "residency: the verifier agrees with replays of random steps, and finds what was changed") {
  std::size_t checked = 0, forged = 0, streaming = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    Random random(seed ^ 0x5107e);
    RandomDag limits{.min_ops = 3, .max_ops = 10, .edge_chance = 0.5};
    limits.variable_chance = 0.3;
    limits.update_chance = 0.9;
    const OpGraph one = random_dag(seed, limits);
    const auto micro_batches = static_cast<std::uint32_t>(seed % 3 + 1);
    const Unrolled unrolled = unroll(one, micro_batches);
    const OpGraph& graph = unrolled.graph;
    const OpGraph* of_one = micro_batches > 1 ? &one : nullptr;
    const Cluster cluster = gpu_and_host(Bytes(1000), Bytes(1000));
    const Residency residency = random_residency(unrolled, random);
    if (residency.empty()) continue;
    const OpGraph step = residing(unrolled, residency);
    REQUIRE(check_residency(graph, step, cluster.spec(), residency, of_one).empty());
    const CostModel costs(step, cluster);
    const std::optional<Placement> placement = random_placement(costs, random);
    if (!placement.has_value()) continue;
    const Trace trace = simulate(costs, {*placement, random_order(costs, *placement, random)});
    REQUIRE(check_schedule(step, cluster, trace.schedule, {.capacities = false}).empty());
    const auto peaks = checked_peaks(step, cluster, trace.schedule);
    for (const DeviceId device : peaks.keys())
      REQUIRE(peaks[device].bytes == trace.devices[device].peak);
    ++checked;
    if (const std::vector<OpId> updates = streamed_updates(unrolled, residency); !updates.empty()) {
      ++streaming;
      Residency on_store = residency;
      on_store.on_store.push_back(updates.front());
      std::ranges::sort(on_store.on_store);
      CHECK_FALSE(check_residency(graph, step, cluster.spec(), on_store, of_one).empty());
    }
    Residency other = residency;
    if (other.away.empty()) continue;
    AwayTensor& changed = other.away[random.below(other.away.size())];
    if (random.chance(0.5) && changed.fetches[0].readers.size() > 1)
      changed.fetches[0].readers.pop_back();
    else if (changed.fetches[0].after.has_value() && changed.fetches[0].after != changed.producer)
      changed.fetches[0].after.reset();
    else
      continue;
    ++forged;
    CHECK_FALSE(check_residency(graph, step, cluster.spec(), other, of_one).empty());
  }
  CHECK(checked > 200);
  CHECK(streaming > 50);
  CHECK(forged > 50);
}

}  // namespace
}  // namespace baechi::testing
