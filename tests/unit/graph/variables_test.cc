// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/variables.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "baechi/graph/recomputation.h"
#include "baechi/graph/unroll.h"
#include "baechi/io/graph/read_graph.h"
#include "baechi/io/graph/write_graph.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_schedule.h"
#include "baechi/verify/check_variables.h"
#include "unit/graph_sketch.h"
#include "unit/refusal.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

OpGraph graph_of(const std::string& operators) {
  return parse_graph(
      R"({"format": "baechi-graph", "version": 1, "operators": [)" + operators + "]}", "net.json");
}

std::string error_of(const std::string& operators) {
  return refusal_of([&] { graph_of(operators); });
}

const std::string kW = R"({"name": "w", "variable": true, "outputs": [6]},)";

TEST_CASE("variables: a file tells them, and is written as it was read") {
  const OpGraph graph = graph_of(kW + R"({"name": "f", "time": 4, "inputs": ["w"]})");
  const OpId w = op_named(graph, "w");
  CHECK(graph[w].variable);
  CHECK(graph[w].per_step);
  CHECK_FALSE(graph.marks_steps());
  CHECK(graph[w].permanent == Bytes(6));
  CHECK(graph.output_bytes(w) == Bytes(0));
  CHECK(graph.size(*graph.outputs(w).begin()) == Bytes(6));
  const std::string text = graph_to_json(graph);
  CHECK(text.find(R"({"name": "w", "variable": true, "time": {"*": 0}, "outputs": [6]})") !=
        std::string::npos);
  CHECK(graph_to_json(parse_graph(text, "again.json")) == text);
}

TEST_CASE("variables: what none can be or have is an error that names it and says what to do") {
  const auto w = [](const std::string& more) {
    return R"({"name": "f", "time": 1, "outputs": [1]}, {"name": "w", "variable": true, )" + more +
           "}";
  };
  const std::pair<std::string, std::string> kWrong[] = {
      {w(R"("outputs": [6], "memory": {"permanent": 8})"),
       "variable 'w' has permanent memory: what it holds for the whole step is its output, so "
       "leave "
       "\"permanent\" out"},
      {w(R"("outputs": [6], "memory": {"temporary": 8})"),
       "variable 'w' has temporary memory, but it never runs: leave \"temporary\" out"},
      {w(R"("outputs": [6], "time": 1)"),
       "variable 'w' has a compute time, but it never runs: it is 0, or leave \"time\" out"},
      {w(R"("outputs": [6, 1])"), "variable 'w' has 2 outputs"},
      {w(R"("time": 0)"), "variable 'w' has 0 outputs"},
      {w(R"("outputs": [6], "inputs": ["f"])"),
       "variable 'w' waits for operator 'f': it is there from the start of the step and has no "
       "inputs"},
      {w(R"("outputs": [6], "after": ["f"])"), "variable 'w' waits for operator 'f'"},
      {w(R"("outputs": [6], "forward": "f")"), "variable 'w' has a forward operator"},
      {w(R"("outputs": [6], "per": "micro-batch")"),
       "a variable is there for the whole step: leave \"per\" out"},
  };
  for (const auto& wrong : kWrong) {
    const std::string& reason = wrong.second;  // Clang 14 captures no bindings
    CAPTURE(reason);
    const std::string error = error_of(wrong.first);
    CHECK_MESSAGE(error.find(reason) != std::string::npos, error);
    CHECK(error.starts_with("net.json:1:"));
  }
}

TEST_CASE("variables: who may write them") {
  const std::pair<std::string, std::string> kWrong[] = {
      {kW + R"({"name": "f", "time": 1, "writes": ["g"]}, {"name": "g", "time": 1})",
       "operator 'f' writes 'g', which is no variable"},
      {kW + R"({"name": "v", "variable": true, "outputs": [1], "writes": ["w"]})",
       "operator 'v' is a variable: it writes no other one"},
      {kW + R"({"name": "f", "time": 1, "writes": ["w"]},
               {"name": "g", "time": 1, "writes": ["w"]})",
       "operators 'f' and 'g' both write variable 'w'"},
      {kW + R"({"name": "u", "time": 1, "per": "step", "writes": ["w"]})",
       "operator 'u' is marked \"per\": \"step\" and writes variable 'w'"},
      {kW + R"({"name": "f", "time": 1, "outputs": [1], "writes": ["w"]},
               {"name": "g", "time": 1, "inputs": ["w", "f"]})",
       "cycle of 2 operators"},
      {kW + R"({"name": "f", "time": 1, "writes": ["x"]})", "writes: there is no operator 'x'"},
  };
  for (const auto& wrong : kWrong) {
    const std::string& reason = wrong.second;  // Clang 14 captures no bindings
    CAPTURE(reason);
    const std::string error = error_of(wrong.first);
    CHECK_MESSAGE(error.find(reason) != std::string::npos, error);
  }
}

// m is read by f and g and written by g; n is alone.
OpGraph averaging() {
  return graph_of(R"({"name": "m", "variable": true, "outputs": [2]},
                     {"name": "n", "variable": true, "outputs": [3]},
                     {"name": "x", "time": 0, "outputs": [1]},
                     {"name": "f", "time": 2, "inputs": ["m", "x"], "outputs": [1]},
                     {"name": "g", "time": 3, "inputs": ["m", "x"], "writes": ["m"]},
                     {"name": "h", "time": 1, "inputs": ["f", "n"], "random": true})");
}

TEST_CASE("variables: readers come before the writer, and share a device with it") {
  const OpGraph graph = averaging();
  const OpId m = op_named(graph, "m"), f = op_named(graph, "f"), g = op_named(graph, "g");
  CHECK(graph.writes().size() == 1);
  CHECK(graph.writes().front() == Write{g, m});
  CHECK(std::ranges::count(graph.out_edges(f), Edge{f, g, std::nullopt}) == 1);
  CHECK(graph[m].group.has_value());
  CHECK(graph[f].group == graph[m].group);
  CHECK(graph[g].group == graph[m].group);
  CHECK_FALSE(graph[op_named(graph, "x")].group.has_value());
  const std::string text = graph_to_json(graph);
  CHECK(text.find(R"("after": ["f"], "writes": ["m"])") != std::string::npos);
  CHECK(text.find(R"("random": true)") != std::string::npos);
  CHECK(graph_to_json(parse_graph(text, "again.json")) == text);
}

std::set<std::pair<std::string, std::string>> control_edges(const OpGraph& graph) {
  std::set<std::pair<std::string, std::string>> found;
  for (const OpId op : graph.ops())
    for (const Edge& edge : graph.out_edges(op))
      if (!edge.tensor.has_value()) found.emplace(graph[edge.from].name, graph[edge.to].name);
  return found;
}

TEST_CASE("variables: in a step of micro-batches one is there once, and carried ones keep order") {
  const Unrolled step = unroll(averaging(), 3);
  const std::set<std::pair<std::string, std::string>> kExpected{
      {"f@0", "g@0"}, {"f@1", "g@1"}, {"f@2", "g@2"}, {"g@0", "f@1"}, {"g@1", "f@2"},
      {"g@0", "g@1"}, {"g@1", "g@2"}, {"h@0", "h@1"}, {"h@1", "h@2"}};
  CHECK(control_edges(step.graph) == kExpected);
  const OpId m = op_named(step.graph, "m");
  CHECK(step.graph[m].variable);
  CHECK(step.graph[m].permanent == Bytes(2));
  CHECK_FALSE(step.micro_batch[m].has_value());
  CHECK(step.graph.out_edges(m).size() == 6);
  for (const char* name : {"f@0", "f@2", "g@0", "g@1"})
    CHECK(step.graph[op_named(step.graph, name)].group == step.graph[m].group);
  CHECK(step.graph[op_named(step.graph, "h@0")].group != step.graph[m].group);
}

// w(6) is read on both devices, v(2) on the other one; f starts at once, the copies go at 0.
//   gpu:0  w, x 0..5, f 5..9       gpu:1  v, g 6..9 reads w, which takes 6
TEST_CASE("variables: sent at the start, whatever runs there and wherever an order has them") {
  const OpGraph graph = graph_of(R"({"name": "x", "time": 5, "outputs": [1]},
                                    {"name": "f", "time": 4, "inputs": ["x", "w"]},
                                    {"name": "w", "variable": true, "outputs": [6]},
                                    {"name": "v", "variable": true, "outputs": [2]},
                                    {"name": "g", "time": 3, "inputs": ["w", "v"]})");
  const Cluster cluster = byte_per_ns(2, CommunicationMode::kSequential);
  for (const bool ordered : {false, true}) {
    CAPTURE(ordered);
    const DeviceLists lists{{"x", "f", "w"}, {"g", "v"}};
    const Trace trace = simulate(CostModel(graph, cluster),
                                 ordered ? in_order(graph, lists) : in_any_order(graph, lists),
                                 {.record_memory = true});
    CHECK(check_schedule(graph, cluster, trace.schedule).empty());
    CHECK(trace.schedule.makespan == Time(9));
    CHECK(trace.schedule.slots[op_named(graph, "g")].start == Time(6));
    REQUIRE(trace.schedule.transfers.size() == 1);
    CHECK(trace.schedule.transfers.front().start == Time(0));
    // The weight all the time, and once; x from its start to the end of f.
    CHECK(trace.devices[kGpu0].memory ==
          std::vector<MemoryStep>{{Time(0), Bytes(6 + 1)}, {Time(9), Bytes(6)}});
    // v all the time, the copy of w from the start of its transfer to its last reader.
    CHECK(trace.devices[kGpu1].memory ==
          std::vector<MemoryStep>{{Time(0), Bytes(2 + 6)}, {Time(9), Bytes(2)}});
  }
}

TEST_CASE("variables: copies of them end with their last reader, also where outputs are retained") {
  const OpGraph graph = parse_graph(
      R"({"format": "baechi-graph", "version": 1, "memory_mode": "retain", "operators": [
          {"name": "w", "variable": true, "outputs": [6]}, {"name": "f", "time": 2, "inputs": ["w"]},
          {"name": "g", "time": 20, "inputs": ["w"]}]})",
      "net.json");
  const Cluster cluster = byte_per_ns(2, CommunicationMode::kParallel);
  const Trace trace = simulate(CostModel(graph, cluster), in_any_order(graph, {{"w", "g"}, {"f"}}),
                               {.record_memory = true});
  CHECK(check_schedule(graph, cluster, trace.schedule).empty());
  CHECK(trace.devices[kGpu0].memory == std::vector<MemoryStep>{{Time(0), Bytes(6)}});
  CHECK(trace.devices[kGpu1].memory ==
        std::vector<MemoryStep>{{Time(0), Bytes(6)}, {Time(8), Bytes(0)}});
}

std::string first_fault(const Schedule& schedule, const StepGraph& step, const Cluster& cluster) {
  const auto faults = check_carried(step, cluster, schedule);
  return faults.empty() ? "" : faults.front();
}

// Two micro-batches, one device: f@0 g@0 f@1 g@1, then what must not be. Only times are changed, as
// a step graph without the edges would have them.
TEST_CASE("verify: a carried variable that is read too early or too late, or is elsewhere") {
  const Unrolled step = unroll(averaging(), 2);
  const Cluster cluster = byte_per_ns(2, CommunicationMode::kParallel);
  const auto slots = [&](std::initializer_list<std::pair<const char*, OpSlot>> given) {
    Schedule schedule;
    schedule.slots.resize(step.graph.num_ops());
    for (const auto& [name, slot] : given) schedule.slots[op_named(step.graph, name)] = slot;
    return schedule;
  };
  const auto at = [](std::int64_t start, std::int64_t end, DeviceId device = kGpu0) {
    return OpSlot{device, Time(start), Time(end)};
  };
  CHECK(first_fault(slots({{"f@0", at(0, 2)},
                           {"g@0", at(2, 5)},
                           {"f@1", at(5, 7)},
                           {"g@1", at(7, 10)},
                           {"h@0", at(2, 3)},
                           {"h@1", at(7, 8)}}),
                    step, cluster)
            .empty());
  CHECK(first_fault(
            slots({{"g@0", at(0, 3)}, {"f@0", at(3, 5)}, {"f@1", at(5, 7)}, {"g@1", at(7, 10)}}),
            step, cluster) ==
        "operator 'g@0' starts at 0 ns, before operator 'f@0' has finished at 5 ns: micro-batches "
        "come in their order there");
  CHECK(first_fault(
            slots({{"f@0", at(0, 2)}, {"f@1", at(2, 4)}, {"g@0", at(4, 7)}, {"g@1", at(7, 10)}}),
            step, cluster)
            .starts_with("operator 'f@1' starts at 2 ns, before operator 'g@0' has finished"));
  CHECK(first_fault(
            slots({{"g@1", at(0, 3)}, {"f@0", at(3, 5)}, {"g@0", at(5, 8)}, {"f@1", at(8, 9)}}),
            step, cluster)
            .starts_with("operator 'g@1' starts at 0 ns, before operator 'g@0' has finished"));
  CHECK(
      first_fault(
          slots(
              {{"f@0", at(0, 2, kGpu1)}, {"g@0", at(2, 5)}, {"f@1", at(5, 7)}, {"g@1", at(7, 10)}}),
          step, cluster) ==
      "operator 'f@0' reads 'm', which every micro-batch changes, but runs on 'gpu:1' and not on "
      "'gpu:0'");
  CHECK(first_fault(slots({{"f@0", at(0, 2)},
                           {"g@0", at(2, 5)},
                           {"f@1", at(5, 7)},
                           {"g@1", at(7, 10)},
                           {"h@0", at(8, 9)},
                           {"h@1", at(7, 8)}}),
                    step, cluster)
            .starts_with("operator 'h@1' starts at 7 ns, before operator 'h@0' has finished"));
}

TEST_CASE("verify: a variable that is late, or is held twice or not at all") {
  const OpGraph graph = graph_of(kW + R"({"name": "f", "time": 4, "inputs": ["w"]})");
  const Cluster cluster = byte_per_ns(1, CommunicationMode::kParallel, Time(0), Bytes(6));
  Schedule schedule =
      simulate(CostModel(graph, cluster), in_any_order(graph, {{"w", "f"}})).schedule;
  CHECK(check_schedule(graph, cluster, schedule).empty());  // once: it fits
  CHECK(checked_peaks(graph, cluster, schedule)[kGpu0].bytes == Bytes(6));
  schedule.slots[OpId(0)] = {kGpu0, Time(4), Time(4)};
  const auto faults = check_schedule(graph, cluster, schedule);
  REQUIRE_FALSE(faults.empty());
  CHECK(faults.front() ==
        "variable 'w' on 'gpu:0' is there from 4 ns on, not from the start of the step");
}

TEST_CASE("recomputation: not of who reads or writes a variable that micro-batches change") {
  const OpGraph graph = graph_of(R"({"name": "m", "variable": true, "outputs": [2]},
                  {"name": "w", "variable": true, "outputs": [2]},
                  {"name": "x", "time": 0, "outputs": [1]},
                  {"name": "r", "time": 2, "inputs": ["m", "x"], "outputs": [1]},
                  {"name": "s", "time": 2, "inputs": ["x"], "outputs": [1], "writes": ["m"]},
                  {"name": "t", "time": 2, "inputs": ["x", "w"], "outputs": [1], "random": true},
                  {"name": "b", "time": 2, "inputs": ["r", "s", "t", "w"], "backward": true})");
  const MayRunAgain may(graph);
  for (const char* name : {"r", "s"})
    CHECK(may.refusal(op_named(graph, name)) ==
          "operator '" + std::string(name) +
              "' reads or writes a variable that micro-batches change: a second run would find "
              "another value");
  const OpId t = op_named(graph, "t");
  CHECK_FALSE(may.refusal(t).has_value());
  const std::vector<Recomputation> again{{.op = t}};
  const OpGraph twice = recomputing(graph, again);
  CHECK(twice.writes().size() == 1);
  CHECK(twice[t].random);
  CHECK_FALSE(twice[op_named(twice, "t@again")].random);  // it draws what was saved
  CHECK(twice.out_edges(op_named(twice, "w")).size() == 3);
}

}  // namespace
}  // namespace baechi::testing
