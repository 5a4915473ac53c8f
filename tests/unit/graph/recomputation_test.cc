// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/recomputation.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "baechi/graph/op_graph_builder.h"
#include "baechi/io/graph/read_graph.h"
#include "baechi/io/graph/write_graph.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_recomputation.h"
#include "baechi/verify/check_schedule.h"
#include "unit/graph/training_sketches.h"
#include "unit/graph_sketch.h"
#include "unit/graphs.h"
#include "unit/refusal.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

Recomputation again(const OpGraph& graph, const char* op, const char* after = nullptr) {
  Recomputation result{op_named(graph, op)};
  if (after != nullptr) result.after = op_named(graph, after);
  return result;
}

std::string refusal(const OpGraph& graph, const std::vector<Recomputation>& list) {
  return refusal_of([&] { recomputing(graph, list); });
}

Trace replay(const OpGraph& graph, const Cluster& cluster, const DeviceLists& lists) {
  Trace trace =
      simulate(CostModel(graph, cluster), in_order(graph, lists), {.record_memory = true});
  CHECK(check_schedule(graph, cluster, trace.schedule).empty());
  const auto peaks = checked_peaks(graph, cluster, trace.schedule);
  for (const DeviceId device : peaks.keys())
    CHECK(peaks[device].bytes == trace.devices[device].peak);
  return trace;
}

// f0's 10 bytes are dropped at 5, when f1 has read them, and there again from 14.
//   0 f0  2 f1  5 f2  9 b2  14 f0@again  16 b1  22 b0  29
TEST_CASE("recomputation: one second run on one device, time and memory by hand") {
  const OpGraph graph = three_layers();
  const std::vector<Recomputation> list{again(graph, "f0", "b2")};
  const OpGraph step = recomputing(graph, list);
  CHECK(check_recomputation(graph, step, list).empty());
  const Trace trace = replay(step, byte_per_ns(1, CommunicationMode::kParallel, Time(0), Bytes(21)),
                             {{"x", "f0", "f1", "f2", "b2", "f0@again", "b1", "b0"}});
  CHECK(trace.schedule.makespan == Time(29));
  CHECK(trace.devices[kGpu0].memory == std::vector<MemoryStep>{{Time(0), Bytes(1 + 10)},
                                                               {Time(2), Bytes(1 + 10 + 10)},
                                                               {Time(5), Bytes(1 + 10 + 5)},
                                                               {Time(9), Bytes(1 + 10 + 5 + 1)},
                                                               {Time(14), Bytes(1 + 1 + 10)},
                                                               {Time(16), Bytes(1 + 1 + 10 + 1)},
                                                               {Time(22), Bytes(1 + 1)},
                                                               {Time(29), Bytes(0)}});
}

// Both readers of f0 are second runs or backward; the region runs from x on.
TEST_CASE("recomputation: a region reads its own second runs") {
  const OpGraph graph = three_layers();
  const OpGraph step = recomputing(graph, std::vector{again(graph, "f0"), again(graph, "f1")});
  const auto reads = [&](const char* reader, const char* producer) {
    for (const Edge& edge : step.in_edges(op_named(step, reader)))
      if (edge.tensor.has_value() && edge.from == op_named(step, producer)) return true;
    return false;
  };
  CHECK(reads("f0@again", "x"));
  CHECK(reads("f1@again", "f0@again"));
  CHECK_FALSE(reads("f1@again", "f0"));
  CHECK(reads("f1", "f0"));
  CHECK(reads("f2", "f1"));
  CHECK(reads("b2", "f1@again"));
  CHECK(reads("b1", "f0@again"));
  CHECK(step[op_named(step, "f1@again")].group == step[op_named(step, "f1")].group);
}

//   x --1--> f --4--> g        a second output of f, 7, is for b alone
TEST_CASE("recomputation: what one of the runs makes for nobody is temporary memory of it") {
  const OpGraph graph =
      GraphSketch()
          .ops({{"x", 0}, {"f", 2, 1}, {"g", 1}, {"b", 3}, {"c", 1}})
          .backwards({"b", "c"})
          .tensors(
              {{"x", 1, {"f"}}, {"f", 4, {"g"}}, {"f", 7, {"b"}}, {"g", 1, {"c"}}, {"c", 1, {"b"}}})
          .build();
  const std::vector<Recomputation> list{again(graph, "f", "c")};
  const OpGraph step = recomputing(graph, list);
  const Operator &first = step[op_named(step, "f")], &second = step[op_named(step, "f@again")];
  CHECK(first.temporary == Bytes(1 + 7));
  CHECK(second.temporary == Bytes(1 + 4));
  CHECK(step.output_bytes(op_named(step, "f")) == Bytes(4));
  CHECK(step.output_bytes(op_named(step, "f@again")) == Bytes(7));
  CHECK(check_recomputation(graph, step, list).empty());
}

TEST_CASE("recomputation: what cannot run again is refused, with the reason") {
  const OpGraph graph = three_layers();
  CHECK(refusal(graph, {again(graph, "b1")}) ==
        "operator 'b1' is of the backward pass: only operators of the forward pass run again");
  CHECK(refusal(graph, {again(graph, "x")}) ==
        "operator 'x' reads no tensor: what it outputs comes from outside of the graph");
  CHECK(refusal(graph, {again(graph, "f0"), again(graph, "f0")}) ==
        "operator 'f0' is recomputed twice");
  CHECK(refusal(graph, {again(graph, "f1"), again(graph, "f0")}).find("is out of order") !=
        std::string::npos);
  CHECK(refusal(graph, {again(graph, "f0", "f2")}) ==
        "the second run of 'f0' waits for 'f2', which is not of the backward pass");
  // b1 reads f0@again.
  CHECK(refusal(graph, {again(graph, "f0", "b1")}).find("cycle") != std::string::npos);

  OpGraphBuilder marked("marked");
  const OpId x = timed(marked, {.name = "x"}, Time(1));
  const OpId f = timed(marked, {.name = "f", .recompute = false}, Time(1));
  const OpId once = timed(marked, {.name = "once", .per_step = true}, Time(1));
  const OpId unread = timed(marked, {.name = "unread"}, Time(1));
  const OpId b = timed(marked, {.name = "b", .forward = f}, Time(1));
  const TensorId input = marked.add_output(x, Bytes(1)), weight = marked.add_output(once, Bytes(1));
  for (const OpId op : {f, unread}) marked.connect(input, op);
  marked.connect(weight, f);
  marked.connect(marked.add_output(f, Bytes(1)), b);
  marked.add_output(unread, Bytes(1));
  const OpGraph other = std::move(marked).build();
  CHECK(
      refusal(other, {again(other, "f")}) ==
      "operator 'f' is marked \"recompute\": false: a second run would not give the same outputs");
  CHECK(refusal(other, {again(other, "once")}) ==
        "operator 'once' runs once per step, however many micro-batches there are");
  CHECK(refusal(other, {again(other, "unread")}).find("is recomputed for nobody") !=
        std::string::npos);
  // The mark survives the file.
  const OpGraph back = parse_graph(graph_to_json(other), "graph.json");
  CHECK_FALSE(back[f].recompute);
  CHECK(back[x].recompute);
}

TEST_CASE("recomputation: the verifier finds a reader of the wrong run and memory that is kept") {
  const OpGraph graph = three_layers();
  const std::vector<Recomputation> list{again(graph, "f0", "b2")};
  const auto faults = [&](const char* reader_of_first, std::int64_t held,
                          std::int64_t first_held = 10) {
    GraphSketch sketch;
    sketch.op("x", 0).ops(
        {{"f0", 2, 10 - first_held}, {"f1", 3}, {"f2", 4}, {"b2", 5}, {"b1", 6}, {"b0", 7}});
    sketch.op("f0@again", 2);
    for (const char* op : {"b2", "b1", "b0", "f0@again"}) sketch.backward(op);
    sketch.tensor("x", 1, {"f0", "b0", "f0@again"});
    if (std::string(reader_of_first).empty()) {
      sketch.tensor("f0", first_held, {"f1"}).tensor("f0@again", held, {"b1"});
    } else {
      sketch.tensor("f0", 10, {"f1", reader_of_first}).tensor("f0@again", held, {});
    }
    sketch.tensor("f1", 10, {"f2", "b2"}).tensor("f2", 5, {"b2"}).tensor("b2", 1, {"b1"});
    sketch.tensor("b1", 1, {"b0"}).control("f0", "f0@again").control("b2", "f0@again");
    std::string all;
    for (const std::string& fault : check_recomputation(graph, sketch.build(), list))
      all += fault + "\n";
    return all;
  };
  const std::string apart =
      "recomputation: operator 'f0@again' may be on another device than its first run\n";
  CHECK(faults("", 10) == apart);  // a sketch has no colocation groups
  CHECK(faults("", 9) ==
        "recomputation: operator 'f0@again' drops an output before it is read\n"
        "recomputation: operator 'f0@again' holds other memory while it runs than it should\n" +
            apart);
  CHECK(faults("", 10, 0) ==
        "recomputation: operator 'f0' drops an output before it is read\n" + apart);
  CHECK(faults("b1", 10) ==
        "recomputation: operator 'b1' reads or waits for what it should not\n" + apart +
            "recomputation: operator 'f0@again' holds an output that nobody is left to read\n");
  CHECK(check_recomputation(graph, recomputing(graph, list), std::vector{again(graph, "f1", "b2")})
            .size() >= 2);
}

// f's second output is what the step ends with: nobody reads it.
//
//   x --1--> f --4--> b        f --6--> (nobody)
TEST_CASE("recomputation: what nobody ever read is held to the end, by the first run alone") {
  const auto sketch = [](bool again, std::int64_t result, std::int64_t temporary) {
    GraphSketch made;
    made.op("x", 1).op("f", 1, temporary + (again ? 4 : 0)).op("b", 1).backward("b");
    if (again) made.op("f@again", 1, 6).backward("f@again");
    made.tensor("x", 1, {"f"});
    if (again) {
      made.tensor("f", 0, {}).tensor("f", result, {});
      made.tensor("f@again", 4, {"b"}).tensor("f@again", 0, {});
    } else {
      made.tensor("f", 4, {"b"}).tensor("f", result, {});
    }
    return made;
  };
  const OpGraph graph = sketch(false, 6, 0).build();
  const std::vector<Recomputation> list{{op_named(graph, "f"), std::nullopt}};
  const OpGraph step = recomputing(graph, list);
  const auto sizes = [&](std::string_view name) {
    std::vector<Bytes> held;
    for (const TensorId tensor : step.outputs(op_named(step, name)))
      held.push_back(step.size(tensor));
    return held;
  };
  CHECK(sizes("f") == std::vector{Bytes(0), Bytes(6)});
  CHECK(sizes("f@again") == std::vector{Bytes(4), Bytes(0)});
  CHECK(step[op_named(step, "f@again")].temporary == Bytes(6));
  CHECK(check_recomputation(graph, step, list).empty());

  // As much memory while it runs, and none of the result behind it.
  const auto found = check_recomputation(graph, sketch(true, 0, 6).build(), list);
  CHECK(std::ranges::count(
            found, "recomputation: operator 'f' drops an output that the step ends with") == 1);
}

TEST_CASE("recomputation: the verifier finds what left its colocation group") {
  OpGraphBuilder builder("grouped");
  std::vector<OpId> ops;
  for (const char* name : {"x", "f", "g", "b"}) {
    ops.push_back(timed(builder, {.name = name, .backward = *name == 'b'}, Time(1)));
  }
  for (const OpId op : {ops[0], ops[2], ops[3]}) builder.add_to_group(op, "together");
  for (std::size_t i = 0; i + 1 < ops.size(); ++i)
    builder.connect(builder.add_output(ops[i], Bytes(1)), ops[i + 1]);
  builder.connect(*builder.output(ops[1], 0), ops[3]);
  const OpGraph graph = std::move(builder).build();
  const std::vector<Recomputation> list{again(graph, "f")};
  const OpGraph step = recomputing(graph, list);
  CHECK(check_recomputation(graph, step, list).empty());
  std::string text = graph_to_json(step);
  const std::size_t at = text.find(R"("colocate")", text.find(R"("name": "g")"));
  text.erase(at - 2, text.find(']', at) + 1 - (at - 2));  // with the comma before it
  CHECK(check_recomputation(graph, parse_graph(text, "step"), list) ==
        std::vector<std::string>{
            "recomputation: operator 'g' may be on another device than its colocation group"});
}

}  // namespace
}  // namespace baechi::testing
