// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/chakra/chakra.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/io/chakra/chakra_nodes.h"
#include "baechi/io/graph/read_graph.h"
#include "baechi/io/protobuf/wire_reader.h"
#include "unit/io/wire_text.h"
#include "unit/test_paths.h"

namespace baechi {
namespace {

std::string message(const std::string& bytes) {
  std::string out;
  append_varint(out, bytes.size());
  return out + bytes;
}
std::string attribute(std::string_view name, std::uint64_t kind, std::uint64_t value) {
  return field(10, field(1, name) + number(kind, value));
}
constexpr std::uint64_t kCompute = 4, kSend = 5, kCollective = 7;

std::string node(std::uint64_t id, std::string_view name, std::uint64_t type,
                 const std::string& rest = "") {
  return message((id != 0 ? number(1, id) : "") + field(2, name) + number(3, type) + rest);
}
std::string data(std::uint64_t id) { return number(5, id); }
std::string control(std::uint64_t id) { return number(4, id); }
std::string duration(std::uint64_t microseconds) { return number(7, microseconds); }
std::string outputs(std::string_view values) { return field(9, field(1, values)); }
std::string trace(const std::string& nodes) { return message(field(1, "0.0.4")) + nodes; }

OpGraph read(const std::string& nodes) { return parse_chakra(trace(nodes), "t.et"); }
std::string complaint(const std::string& bytes) {
  try {
    parse_chakra(bytes, "t.et");
  } catch (const InputError& error) {
    return error.what();
  }
  return "no complaint";
}
OpId find(const OpGraph& graph, std::string_view name) {
  const std::optional<OpId> op = graph.find(name);
  REQUIRE_MESSAGE(op.has_value(), std::string(name));
  return *op;
}

TEST_CASE("chakra: nodes become operators with their times, tensors and order") {
  const OpGraph graph =
      read(node(0, "aten::mm", kCompute,
                duration(12) + attribute("is_cpu_op", 27, 0) +
                    outputs("[[7, 8, 0, 1024, 4, 'cuda:0'], [9, 8, 0, 16, 2, 'cuda:0']]")) +
           node(4, "aten::mm", kCompute, duration(5) + data(0) + attribute("is_cpu_op", 27, 1)) +
           node(2, "all", kCollective,
                duration(100) + data(4) + control(0) + attribute("comm_type", 9, 0) +
                    attribute("comm_size", 13, 4096)));
  REQUIRE(graph.num_ops() == 3);
  const OpId first = find(graph, "aten::mm#0"), second = find(graph, "aten::mm#4");
  const OpId last = find(graph, "all");
  CHECK(graph[last].kind == "all-reduce");
  CHECK(graph.output_bytes(first) == Bytes(4096 + 32));
  CHECK(graph.output_bytes(last) == Bytes(4096));
  CHECK(graph.times(*graph.find_kind("gpu"))[first] == microseconds(12));
  CHECK_FALSE(graph.times(*graph.find_kind("cpu"))[first].has_value());
  CHECK(graph.times(*graph.find_kind("cpu"))[second] == microseconds(5));
  CHECK(graph.times(*graph.find_kind(kAnyKind))[last] == microseconds(100));
  REQUIRE(graph.in_edges(second).size() == 1);
  CHECK(graph.in_edges(second)[0].tensor.has_value());
  REQUIRE(graph.in_edges(last).size() == 2);
  CHECK_FALSE(graph.in_edges(last)[0].tensor.has_value());  // order after the first one
  CHECK_FALSE(graph.in_edges(last)[1].tensor.has_value());  // "aten::mm#4" gives out nothing
}

TEST_CASE("chakra: tensor sizes are read from values, else from shapes and types") {
  using Size = std::optional<Bytes>;
  CHECK(chakra_tensor_bytes("[[1, 2, 0, 10, 4, \"cpu\"]]", "", "") == Size(Bytes(40)));
  CHECK(chakra_tensor_bytes("[3, [1, 2, 0, 10, 8, 'cpu'], 5]", "", "") == Size(Bytes(80)));
  CHECK(chakra_tensor_bytes("[]", "[[2, 3], [4]]", "['Tensor(float)', 'Tensor(c10::Half)']") ==
        Size(Bytes(24 + 8)));
  CHECK(chakra_tensor_bytes("", "[[]]", "['Tensor(long int)']") == Size(Bytes(8)));
  CHECK(chakra_tensor_bytes("", "[[2, 3]]", "['Tensor(quaternion)']") == Size());
  CHECK(chakra_tensor_bytes("", "[[2], [3]]", "['Tensor(float)']") == Size());
  CHECK(chakra_tensor_bytes("", "", "") == Size());
  CHECK(chakra_tensor_bytes("[1, 2, 3, 4, 5]", "", "") == Size());  // a list of numbers
  CHECK_THROWS_AS(chakra_tensor_bytes("", "[[-2]]", "['Tensor(float)']"), InputError);
}

TEST_CASE("chakra: a trace file is recognised and read") {
  const OpGraph graph = read_graph(BAECHI_TEST_DATA_DIR "/chakra/step.et");
  CHECK(graph.num_ops() == 9);
  CHECK(graph[find(graph, "all_reduce_grad")].kind == "all-reduce");
  CHECK(graph.output_bytes(find(graph, "aten::mm#3")) == Bytes(64 * 256 * 4));
}

TEST_CASE("chakra: what is wrong is told by node and reason") {
  CHECK(complaint(trace(node(1, "a", kCompute, data(9)))) ==
        "t.et: node 1 'a': it waits for node 9, which is not in the trace");
  CHECK(complaint(trace(node(1, "a", kCompute, control(1)))) ==
        "t.et: node 1 'a': it waits for itself");
  CHECK(complaint(trace(node(1, "a", kCompute) + node(1, "b", kSend))) ==
        "t.et: node 1 'b': there are two nodes with this id");
  CHECK(complaint(trace(node(1, "a", kCompute, data(2)) + node(2, "b", kCompute, data(1)))) ==
        "t.et: the graph has a cycle of 2 operators: 'a' -> 'b' -> 'a'");
  CHECK(complaint(trace("")) == "t.et: the trace has no nodes");
  CHECK(complaint(trace(node(1, "a", 77))).find("unknown node type 77") != std::string::npos);
  CHECK(complaint(trace(node(1, "a", kCompute, duration(~std::uint64_t{0} >> 1))))
            .find("a duration of more than 63 bits") != std::string::npos);
  const std::string whole = trace(node(1, "a", kCompute) + node(2, "b", kCompute, data(1)));
  const std::string cut = complaint(whole.substr(0, whole.size() - 1));
  CHECK(cut.find("the file is cut off, or not an execution trace") != std::string::npos);
  CHECK_FALSE(looks_like_chakra(""));
  CHECK_FALSE(looks_like_chakra("{\"format\": 1}"));
  CHECK_FALSE(looks_like_chakra("\n\n"));
  CHECK(looks_like_chakra(whole));
}

}  // namespace
}  // namespace baechi
