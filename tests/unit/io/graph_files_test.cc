// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>

#include "baechi/base/error.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/io/graph/dnn_partitioning.h"
#include "baechi/io/graph/read_graph.h"
#include "baechi/io/graph/write_graph.h"
#include "unit/graphs.h"
#include "unit/io/same_graph.h"
#include "unit/refusal.h"

namespace baechi {
namespace {

OpGraph parse(const std::string& text) { return parse_graph(text, "g.json"); }

// One operator list inside an otherwise fine document.
std::string document(const std::string& operators) {
  return "{\"format\": \"baechi-graph\", \"version\": 1,\n\"operators\": [" + operators + "]}";
}

TEST_CASE("graph.json: every field arrives") {
  const OpGraph graph = parse(R"({"format": "baechi-graph", "version": 1, "name": "net",
    "memory_mode": "retain", "batch_size": 32, "operators": [
    {"name": "grad", "time": {"gpu": "12.5us", "cpu": 99}, "inputs": [["x", 1], "x", [1, 1]],
     "after": ["y"], "forward": 1, "colocate": ["g"]},
    {"name": "x", "kind": "MatMul", "time": 7, "memory": {"permanent": "4KiB", "temporary": 3},
     "outputs": [8, "1MB"], "colocate": ["g", "h"], "device": "gpu:0"},
    {"name": "y", "time": 1, "backward": true}]})");
  CHECK(graph.name() == "net");
  CHECK(graph.memory_mode() == MemoryMode::kRetain);
  CHECK(graph.batch_size() == 32);
  const OpId grad(0), x(1), y(2);
  CHECK(graph[x].kind == "MatMul");
  CHECK(graph[x].permanent == Bytes(4096));
  CHECK(graph[x].temporary == Bytes(3));
  CHECK(graph[x].pin == "gpu:0");
  CHECK(graph.output_bytes(x) == Bytes(1'000'008));
  CHECK(graph[grad].forward == x);
  CHECK(graph[grad].backward);
  CHECK(graph[y].backward);
  CHECK(graph[grad].group == graph[x].group);
  CHECK(graph.colocation_names(x).size() == 2);
  CHECK(graph.times(*graph.find_kind("gpu"))[grad] == Time(12'500));
  CHECK(graph.times(*graph.find_kind(kAnyKind))[x] == Time(7));
  REQUIRE(graph.in_edges(grad).size() == 3);  // x:0, x:1 (named twice) and the control edge
  CHECK(graph.in_edges(grad)[0].tensor.has_value());
  CHECK_FALSE(graph.in_edges(grad)[2].tensor.has_value());
}

TEST_CASE("graph.json: format may come last, and fields in any order") {
  const OpGraph graph = parse(
      R"({"operators": [{"time": 1, "inputs": [1], "name": "b"}, {"outputs": [4], "time": 2, "name": "a"}],
          "version": 1, "format": "baechi-graph"})");
  CHECK(graph.topological_order().front() == OpId(1));
}

TEST_CASE("graph.json: random graphs come back as they were") {
  testing::RandomDag limits;
  limits.max_ops = 30;
  limits.group_chance = 0.3;
  limits.backward_chance = 0.3;
  limits.pin_chance = 0.1;
  limits.cpu_chance = 0.5;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    limits.memory_mode = seed % 2 == 0 ? MemoryMode::kDataflow : MemoryMode::kRetain;
    const OpGraph graph = testing::random_dag(seed, limits);
    const std::string text = graph_to_json(graph);
    const OpGraph back = parse(text);
    CHECK(testing::graph_difference(graph, back) == "");
    CHECK(graph_to_json(back) == text);
  }
}

TEST_CASE("graph.json: names of every shape survive") {
  OpGraphBuilder builder("a \"graph\"\n");
  for (const char* name : {"while/cond\\1", "ä€😀", "tab\there", " ", "a\"b"}) {
    const OpId op = builder.add_operator({.name = name, .kind = name, .pin = name});
    builder.set_time(op, name, Time(1));
    builder.add_to_group(op, name);
  }
  const OpGraph graph = std::move(builder).build();
  CHECK(testing::graph_difference(graph, parse(graph_to_json(graph))) == "");
}

TEST_CASE("graph.json: an error names file, line, column, path and reason") {
  const auto error_of = [](const std::string& operators) -> std::string {
    return testing::refusal_of([&] { parse(document(operators)); });
  };
  CHECK(error_of(R"({"name": "a", "time": -1})") ==
        "g.json:2:37: $.operators[0].time: a time cannot be negative");
  CHECK(error_of(R"({"name": "a", "time": 1}, {"name": "a", "time": 1})") ==
        "g.json:2:41: $.operators[1]: duplicate operator name 'a'");
  CHECK(error_of(R"({"name": "a", "time": 1, "inputs": ["b"]})") ==
        "g.json:2:51: $.operators[0].inputs: there is no operator 'b'");
  CHECK(error_of(R"({"name": "a", "time": 1, "inputs": [0]})") ==
        "g.json:2:51: $.operators[0].inputs: the operator it names has no output 0");
  CHECK(error_of(R"({"name": "a", "time": 1, "after": ["a"]})") ==
        "g.json:2:50: $.operators[0].after: operator 'a' waits for itself");
  CHECK(
      error_of(
          R"({"name": "a", "time": 1, "after": ["b"]}, {"name": "b", "time": 1, "after": ["a"]})") ==
      "g.json:2:14: $.operators: the graph has a cycle of 2 operators: 'a' -> 'b' -> 'a'");
  CHECK(error_of(R"({"name": "a", "time": {}})") ==
        "g.json:2:37: $.operators[0].time: has no compute time for any kind of device");
  CHECK(
      error_of(
          R"({"name": "a", "time": 1, "forward": "b", "backward": false}, {"name": "b", "time": 1})")
          .find("cannot have \"backward\": false") != std::string::npos);
  CHECK(error_of("") == "g.json:2:14: $.operators: the graph has no operators");
}

TEST_CASE("graph.json: reading stops when the user cancels") {
  CancelFlag cancel;
  cancel.request();
  CHECK_THROWS_AS(
      parse_graph(graph_to_json(testing::figure_1()), "g.json", {.costs = {}, .cancel = &cancel}),
      Cancelled);
}

TEST_CASE("graph files: a file of another kind is called by its name") {
  CHECK_THROWS_WITH(parse(R"({"format": "baechi-plan"})"),
                    "g.json: this is a plan, expected a graph");
  CHECK_THROWS_WITH(parse(R"({"format": "baechi-cluster"})"),
                    "g.json: this is a cluster, expected a graph");
  CHECK_THROWS_WITH(parse(" \n"), "g.json: the file is empty");
  CHECK_THROWS_WITH(parse("PK\x03\x04weights"),
                    doctest::Contains("torch.save and Keras write: load"));
  CHECK_THROWS_WITH(parse("\x80\x02}q"),
                    doctest::Contains("this is a Python pickle: load the model"));
  CHECK_THROWS_WITH(parse("\x89HDF\r\n"), doctest::Contains("an HDF5 file, as Keras writes: load"));
  for (const GraphFormat& format : graph_formats()) {  // whoever is lost is told of each
    CAPTURE(format.name);
    CHECK_THROWS_WITH_AS(parse("words"), doctest::Contains(std::string(format.name).c_str()),
                         InputError);
    CHECK(graph_format_names().find(format.name) != std::string::npos);
  }
}

const char* const kInstance = R"({"maxSizePerFPGA": 1000.0, "maxFPGAs": 2, "maxCPUs": 1, "nodes": [
  {"id": 7, "name": "a", "supportedOnFpga": 1, "cpuLatency": 1.5, "fpgaLatency": 0.25, "size": 10.0,
   "isBackwardNode": 0, "colorClass": 3, "layerId": "x"},
  {"id": 2, "supportedOnFpga": false, "cpuLatency": 2, "fpgaLatency": 9, "size": 0,
   "isBackwardNode": true, "colorClass": 3}],
  "edges": [{"sourceId": 7, "destId": 2, "cost": 0.5, "size": 1}]})";

TEST_CASE("dnn-partitioning: milliseconds become nanoseconds, costs become bytes") {
  const OpGraph graph = parse_graph(kInstance, "net.json");
  CHECK(graph.name().empty());
  const OpId a = *graph.find("a"), b = *graph.find("node2");
  CHECK(graph.times(*graph.find_kind("cpu"))[a] == Time(1'500'000));
  CHECK(graph.times(*graph.find_kind("accelerator"))[a] == Time(250'000));
  CHECK_FALSE(graph.times(*graph.find_kind("accelerator"))[b].has_value());
  CHECK(graph[a].permanent == Bytes(10));
  CHECK(graph[b].backward);
  CHECK(graph[a].group == graph[b].group);
  REQUIRE(graph.outputs(a).size() == 1);
  CHECK(graph.outputs(b).empty());

  const Cluster cluster(cluster_of(parse_dnn_partitioning(kInstance, "net.json"), "net.json"));
  REQUIRE(cluster.num_devices() == 3);
  const DeviceId first(0), second(1), cpu(2);
  const Bytes bytes = graph.size(*graph.outputs(a).begin());
  CHECK(cluster[first].capacity == Bytes(1000));
  // The cost comes back to within the rounding of one byte: half a nanosecond each way.
  CHECK(cluster.link(first, cpu).transfer_time(bytes) - Time(500'000) <= Time(1));
  CHECK(cluster.link(cpu, second).transfer_time(bytes) >= Time(499'999));
  CHECK(cluster.link(first, second).transfer_time(bytes) - Time(1'000'000) <= Time(1));
}

TEST_CASE("dnn-partitioning: an edge to nowhere and unequal costs are refused") {
  std::string text = kInstance;
  text.replace(text.find("\"destId\": 2"), 11, "\"destId\": 5");
  CHECK_THROWS_WITH(parse_graph(text, "net.json"),
                    "net.json:6:13: $.edges[0].destId: there is no node with the id 5");
  text = kInstance;
  text.replace(text.rfind("]"), 1, R"(, {"sourceId": 7, "destId": 2, "cost": 0.25}])");
  CHECK_THROWS_WITH(parse_graph(text, "net.json"),
                    "net.json: node 'a': the costs of its outgoing edges differ");
}

TEST_CASE("graphs: what an earlier version read is named with the way out") {
  CHECK_THROWS_WITH(parse_graph("node1 -- Input -- forward_compute_time=0\n", "graph.txt"),
                    "graph.txt: PipeDream's profiles are no longer read: write a graph.json "
                    "(docs/reference/file_formats.md)");
  CHECK_THROWS_WITH(parse_graph("\n\n", "step.et"),
                    "step.et: Chakra traces are no longer read: write a graph.json "
                    "(docs/reference/file_formats.md)");
}

TEST_CASE("graph.json: every output of an operator with many comes back to its reader") {
  OpGraphBuilder builder;
  const OpId split = testing::timed(builder, {.name = "split"}, Time(1));
  std::vector<TensorId> parts;
  for (std::int64_t size = 1; size <= 6; ++size)
    parts.push_back(builder.add_output(split, Bytes(size)));
  for (const TensorId part : parts) {
    const OpId reader =
        testing::timed(builder, {.name = "reader " + std::to_string(part.value())}, Time(1));
    builder.connect(part, reader);
  }
  const OpGraph graph = std::move(builder).build();
  const OpGraph again = parse(graph_to_json(graph));
  for (const OpId op : graph.ops())
    for (const Edge& edge : graph.in_edges(op)) {
      REQUIRE(again.in_edges(op).size() == 1);
      CHECK(again.size(*again.in_edges(op)[0].tensor) == graph.size(*edge.tensor));
    }
}

}  // namespace
}  // namespace baechi
