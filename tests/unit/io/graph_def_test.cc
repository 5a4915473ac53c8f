// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/graph_def/graph_def.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/io/cluster/read_cluster.h"
#include "baechi/io/graph/read_graph.h"
#include "baechi/io/graph/write_graph.h"
#include "baechi/io/graph_def/write_graph_def.h"
#include "baechi/io/protobuf/wire_reader.h"
#include "baechi/io/text/text_file.h"
#include "baechi/plan/planner.h"
#include "unit/io/wire_text.h"
#include "unit/refusal.h"
#include "unit/test_paths.h"

namespace baechi {
namespace {

std::string attribute(std::string_view key, const std::string& value) {
  return field(5, field(1, key) + field(2, value));
}
std::string type(std::uint64_t data_type) { return number(6, data_type); }
std::string shape(const std::vector<std::int64_t>& sizes) {
  std::string dims;
  for (const std::int64_t size : sizes)
    dims += field(2, number(1, static_cast<std::uint64_t>(size)));
  return dims;
}
std::string output_shapes(const std::vector<std::vector<std::int64_t>>& outputs) {
  std::string list;
  for (const auto& sizes : outputs) list += field(7, shape(sizes));
  return attribute("_output_shapes", field(1, list));
}
std::string node(std::string_view name, std::string_view op, const std::vector<std::string>& inputs,
                 const std::string& attributes = "") {
  std::string text = field(1, name) + field(2, op);
  for (const std::string& input : inputs) text += field(3, input);
  return field(1, text + attributes);
}
std::string floats(std::string_view name, std::string_view op,
                   const std::vector<std::string>& inputs, const std::vector<std::int64_t>& sizes) {
  return node(name, op, inputs, attribute("T", type(1)) + output_shapes({sizes}));
}

ModelCosts on(const char* kinds, std::optional<std::int64_t> batch = {}) {
  return {.kinds = parse_costed_kinds(kinds), .batch = batch};
}
OpGraph read(const std::string& bytes, std::optional<std::int64_t> batch = {}) {
  return parse_graph_def(bytes, "m.pb", "m", on("gpu=rtx2080", batch));
}
TensorId output(const OpGraph& graph, OpId op, std::ptrdiff_t port) {
  return graph.outputs(op).begin()[port];
}
std::string complaint(const std::string& bytes) {
  return testing::refusal_of([&] { read(bytes); });
}

const std::string kStep = BAECHI_TEST_DATA_DIR "/tensorflow/cnn_step.pb";

TEST_CASE("graph_def: a traced training step keeps operators, variables and gradients") {
  const OpGraph graph =
      read_graph(kStep, {.costs = on("gpu=rtx2080,cpu=cpu", 4), .cancel = nullptr});
  CHECK(graph.num_ops() == 270);
  CHECK(graph.batch_size() == 4);
  const auto find = [&](const char* name) {
    const std::optional<OpId> op = graph.find(name);
    REQUIRE_MESSAGE(op.has_value(), name);
    return *op;
  };

  // The convolution: [4, 16, 16, 3] by [3, 3, 3, 8]; its variable is 216 floats.
  const OpId convolution = find("sequential_1/conv2d_1/convolution");
  CHECK(graph[convolution].kind == "Conv2D");
  CHECK(graph.size(output(graph, convolution, 0)) == Bytes(4 * 16 * 16 * 8 * 4));
  const OpId variable = find("sequential_1/conv2d_1/convolution/ReadVariableOp/resource");
  CHECK(graph[variable].permanent == Bytes(3 * 3 * 3 * 8 * 4));
  CHECK(graph[find("sequential_1/conv2d_1/convolution/ReadVariableOp")].group ==
        graph[variable].group);

  std::size_t backward = 0, paired = 0, unpaired_gradients = 0;
  for (const OpId op : graph.ops()) {
    backward += graph[op].backward ? 1U : 0U;
    paired += graph[op].forward.has_value() ? 1U : 0U;
    const bool named = std::string_view(graph[op].name).starts_with("gradient_tape/");
    if (named && !graph[op].forward.has_value()) ++unpaired_gradients;
    if (graph[op].forward.has_value()) CHECK(!graph[*graph[op].forward].backward);
  }
  CHECK(paired > 50);
  CHECK(unpaired_gradients == 0);
  CHECK(backward > paired);  // the optimizer
  const OpId gradient =
      find("gradient_tape/sequential_1/conv2d_1/convolution/Conv2DBackpropFilter");
  CHECK(graph[gradient].forward == convolution);
}

TEST_CASE("graph_def: floating-point work comes from the shapes") {
  // Large enough that the product decides over bytes and launches.
  const auto time_of = [](const std::string& bytes, const char* name) {
    const OpGraph graph = read(bytes);
    const Cluster cluster(parse_cluster_line("1xgpu:64GiB"));
    return *CostModel(graph, cluster).compute_time(*graph.find(name), DeviceId(0));
  };
  const DevicePreset& gpu = device_preset("rtx2080");
  const auto expected = [&](std::int64_t flops, std::int64_t elements) {
    return roofline_time(gpu, {.flops = flops, .bytes = Bytes(4 * elements)});
  };
  const std::string a = floats("a", "Placeholder", {}, {512, 1024});
  const std::string b = floats("b", "Placeholder", {}, {1024, 2048});
  CHECK(time_of(a + b + floats("y", "MatMul", {"a", "b"}, {512, 2048}), "y") ==
        expected(std::int64_t{2} * 512 * 1024 * 2048, 512 * 1024 + 1024 * 2048 + 512 * 2048));
  const std::string transposed =
      node("y", "MatMul", {"b", "c"},
           attribute("T", type(1)) + attribute("transpose_a", number(5, 1)) +
               output_shapes({{2048, 64}}));
  const std::string c = floats("c", "Placeholder", {}, {1024, 64});
  CHECK(time_of(b + c + transposed, "y") ==
        expected(std::int64_t{2} * 2048 * 64 * 1024, 1024 * 2048 + 1024 * 64 + 2048 * 64));
  const std::string einsum = node("y", "Einsum", {"p", "q"},
                                  attribute("equation", field(2, "...ab,bcd->...acd")) +
                                      attribute("T", type(1)) + output_shapes({{9, 100, 8, 64}}));
  CHECK(time_of(floats("p", "Placeholder", {}, {9, 100, 512}) +
                    floats("q", "Placeholder", {}, {512, 8, 64}) + einsum,
                "y") == expected(std::int64_t{2} * 9 * 100 * 512 * 8 * 64,
                                 9 * 100 * 512 + 512 * 8 * 64 + 9 * 100 * 8 * 64));
  const std::string image = floats("x", "Placeholder", {}, {8, 56, 56, 64});
  const std::string filter = floats("w", "Placeholder", {}, {3, 3, 64, 128});
  CHECK(time_of(image + filter + floats("y", "Conv2D", {"x", "w"}, {8, 56, 56, 128}), "y") ==
        expected(std::int64_t{2} * 8 * 56 * 56 * 128 * 9 * 64,
                 8 * 56 * 56 * 64 + 9 * 64 * 128 + 8 * 56 * 56 * 128));
}

TEST_CASE("graph_def: control inputs move nothing, ports are told apart, types have sizes") {
  const std::string split =
      node("split", "Split", {"x"},
           attribute("T", type(19)) + output_shapes({{10}, {20}}));  // half precision
  const std::string less =
      node("less", "Less", {"split:1"}, attribute("T", type(19)) + output_shapes({{20}}));
  const std::string bytes =
      node("done", "NoOp", {"^less"}) + less + split + floats("x", "Placeholder", {}, {30});
  const OpGraph graph = read(bytes);
  CHECK(graph.num_ops() == 4);
  const OpId op = *graph.find("split");
  CHECK(graph.size(output(graph, op, 0)) == Bytes(20));
  CHECK(graph.size(output(graph, op, 1)) == Bytes(40));
  CHECK(graph.consumers(output(graph, op, 0)).empty());
  CHECK(graph.consumers(output(graph, op, 1)).size() == 1);
  CHECK(graph.size(output(graph, *graph.find("less"), 0)) == Bytes(20));  // truth values
  REQUIRE(graph.in_edges(*graph.find("done")).size() == 1);
  CHECK(!graph.in_edges(*graph.find("done"))[0].tensor.has_value());
}

TEST_CASE("graph_def: operators of a variable, and of a _class, are one group") {
  const std::string handle =
      node("v", "VarHandleOp", {},
           attribute("dtype", type(1)) + attribute("shape", field(7, shape({5, 5}))) +
               output_shapes({{}}));
  const std::string read_v =
      node("read", "ReadVariableOp", {"v"}, attribute("dtype", type(1)) + output_shapes({{5, 5}}));
  const std::string follow =
      node("follow", "Relu", {"read"},
           attribute("T", type(1)) + attribute("_class", field(1, field(2, "loc:@v"))) +
               output_shapes({{5, 5}}));
  const OpGraph graph = read(handle + read_v + follow + floats("free", "Relu", {"read"}, {5, 5}));
  CHECK(graph[*graph.find("v")].permanent == Bytes(100));
  REQUIRE(graph[*graph.find("v")].group.has_value());
  CHECK(graph[*graph.find("read")].group == graph[*graph.find("v")].group);
  CHECK(graph[*graph.find("follow")].group == graph[*graph.find("v")].group);
  CHECK(!graph[*graph.find("free")].group.has_value());
}

// x -> d/MatMul -> d/Relu -> loss, and back as tf.gradients() names it. The two gradients of x's
// users are summed for what made x; "gradients/Fill" is named after nothing.
TEST_CASE("graph_def: gradients find their forward operators, sums of them those they go to") {
  const auto op = [](const char* name, const char* kind, const std::vector<std::string>& inputs) {
    return floats(name, kind, inputs, {4, 4});
  };
  const OpGraph graph =
      read(op("x", "Square", {"in"}) + op("in", "Placeholder", {}) +
           op("d/MatMul", "MatMul", {"x", "in"}) + op("d/Relu", "Relu", {"d/MatMul"}) +
           op("loss", "AddV2", {"d/Relu", "x"}) + op("gradients/Fill", "Identity", {"loss"}) +
           op("gradients/loss_grad/Neg", "Neg", {"gradients/Fill"}) +
           op("gradients/d/Relu_grad/ReluGrad", "ReluGrad", {"gradients/loss_grad/Neg", "d/Relu"}) +
           op("gradients/d/MatMul_grad/MatMul_1", "MatMul", {"gradients/d/Relu_grad/ReluGrad"}) +
           op("AddN", "AddN", {"gradients/d/MatMul_grad/MatMul_1", "gradients/loss_grad/Neg"}) +
           op("gradients/x_grad/Mul", "Mul", {"AddN", "in"}) + op("AddN_1", "AddN", {"in"}) +
           node("sink", "NoOp", {"^AddN"}));
  const auto forward = [&](const char* name) {
    const std::optional<OpId> found = graph[*graph.find(name)].forward;
    return found.has_value() ? std::string(graph[*found].name) : "none";
  };
  CHECK(forward("gradients/d/MatMul_grad/MatMul_1") == "d/MatMul");
  CHECK(forward("gradients/d/Relu_grad/ReluGrad") == "d/Relu");
  CHECK(forward("gradients/x_grad/Mul") == "x");
  CHECK(forward("gradients/loss_grad/Neg") == "loss");
  CHECK(forward("gradients/Fill") == "loss");
  CHECK(forward("AddN") == "x");
  CHECK(forward("AddN_1") == "none");  // not of gradients
  CHECK(graph.times(KindId(0))[*graph.find("sink")] == Time(0));
}

// x -> Enter -> Merge -> Switch -> Exit -> y;  Switch -> body -> NextIteration -> Merge: a loop as
// TensorFlow 1 has it. `w` enters it too, and is read outside as well.
std::string looped() {
  return floats("x", "Placeholder", {}, {4}) + floats("w", "Const", {}, {4}) +
         floats("loop/enter", "Enter", {"x"}, {4}) + floats("loop/w", "Enter", {"w"}, {4}) +
         floats("loop/merge", "Merge", {"loop/enter", "loop/next"}, {4}) +
         floats("loop/less", "Less", {"loop/merge", "loop/w"}, {}) +
         floats("loop/cond", "LoopCond", {"loop/less"}, {}) +
         node("loop/switch", "Switch", {"loop/merge", "loop/cond"},
              attribute("T", type(1)) + output_shapes({{4}, {4}})) +
         floats("loop/body", "Mul", {"loop/switch:1", "loop/w"}, {4}) +
         floats("loop/next", "NextIteration", {"loop/body"}, {4}) +
         floats("loop/exit", "Exit", {"loop/switch"}, {4}) +
         floats("y", "Relu", {"loop/exit", "^loop/body"}, {4}) +
         floats("z", "Add", {"y", "w"}, {4});
}

// The same with a count `i`, which alone decides when the loop ends: x turns on a cycle of its own,
// which reads the count and has a branch in it.
std::string counted() {
  const auto both = [](std::string_view name, const std::vector<std::string>& inputs) {
    return node(name, "Switch", inputs, attribute("T", type(1)) + output_shapes({{4}, {4}}));
  };
  return floats("x", "Placeholder", {}, {4}) + floats("zero", "Const", {}, {4}) +
         floats("loop/enter", "Enter", {"zero"}, {4}) +
         floats("loop/enter_1", "Enter", {"x"}, {4}) +
         floats("loop/i", "Merge", {"loop/enter", "loop/next"}, {4}) +
         floats("loop/x", "Merge", {"loop/enter_1", "loop/next_1"}, {4}) +
         floats("loop/less", "Less", {"loop/i", "loop/i"}, {}) +
         floats("loop/cond", "LoopCond", {"loop/less"}, {}) +
         both("loop/switch", {"loop/i", "loop/cond"}) +
         both("loop/switch_1", {"loop/x", "loop/cond"}) +
         floats("loop/add", "Add", {"loop/switch:1", "loop/switch:1"}, {4}) +
         floats("loop/next", "NextIteration", {"loop/add"}, {4}) +
         floats("loop/scaled", "Square", {"loop/switch:1"}, {4}) +
         floats("loop/mul", "Mul", {"loop/switch_1:1", "loop/scaled"}, {4}) +
         floats("loop/large", "Greater", {"loop/mul", "loop/mul"}, {}) +
         both("loop/branch", {"loop/mul", "loop/large"}) +
         floats("loop/relu", "Relu", {"loop/branch:1"}, {4}) +
         floats("loop/merge", "Merge", {"loop/branch", "loop/relu"}, {4}) +
         floats("loop/next_1", "NextIteration", {"loop/merge"}, {4}) +
         floats("loop/exit", "Exit", {"loop/switch_1"}, {4}) +
         floats("y", "Relu", {"loop/exit"}, {4});
}

TEST_CASE("graph_def: what a loop carries beside its count is part of it") {
  const OpGraph graph = read(counted());
  std::vector<std::string_view> names;
  for (const OpId op : graph.ops()) names.push_back(graph[op].name);
  CHECK(names == std::vector<std::string_view>{"x", "zero", "loop/cond", "y"});
  CHECK(graph.in_edges(*graph.find("loop/cond")).size() == 2);
  CHECK(graph.size(output(graph, *graph.find("loop/cond"), 0)) == Bytes(16));
}

TEST_CASE("graph_def: a loop of Merge and Switch is one operator, and placed as one") {
  const std::string bytes = looped();
  const OpGraph graph = read(bytes);
  std::vector<std::string_view> names;
  for (const OpId op : graph.ops()) names.push_back(graph[op].name);
  CHECK(names == std::vector<std::string_view>{"x", "w", "loop/cond", "y", "z"});
  const OpId loop = *graph.find("loop/cond");
  CHECK(graph[loop].kind == "While");
  CHECK(graph.size(output(graph, loop, 0)) == Bytes(16));
  CHECK(graph.in_edges(loop).size() == 2);
  CHECK(graph.in_edges(*graph.find("y")).size() == 2);  // the result, and to wait for it
  CHECK(profile_notes(graph, on("gpu=rtx2080")) ==
        std::vector<std::string>{"'loop/cond' is a loop, which counts as one operator without the "
                                 "work of its steps: measure the costs, or unroll"});

  const Cluster cluster(parse_cluster_line("2xgpu:1GiB"));
  const CostModel costs(graph, cluster);
  PlanRequest request;
  request.method = "balanced";
  const PlanResult result = make_plan(costs, request);
  REQUIRE(std::holds_alternative<Plan>(result));
  const std::string placed = placed_graph_def(bytes, "m.pb", graph, std::get<Plan>(result));
  const DeviceId planned = std::get<Plan>(result).schedule.slots[loop].device;
  std::size_t seen = 0;
  for (WireReader all(placed, placed, "placed"); all.next();) {
    std::string_view name, device;
    for (WireReader message = all.message(); message.next();) {
      if (message.field() == 1) name = message.bytes();
      if (message.field() == 4) device = message.bytes();
    }
    if (!name.starts_with("loop/")) continue;
    CHECK(device.ends_with("GPU:" + std::to_string(planned.value())));
    ++seen;
  }
  CHECK(seen == 9);
  CHECK(graph_to_json(read(placed)) == graph_to_json(graph));
}

TEST_CASE("graph_def: an output of unknown rank counts as large as the largest input") {
  const auto of_any_rank = [](std::string_view name, std::string_view op,
                              const std::vector<std::string>& inputs) {
    const std::string any = attribute("_output_shapes", field(1, field(7, number(3, 1))));
    return node(name, op, inputs, attribute("T", type(1)) + any);
  };
  const std::string x = floats("x", "Placeholder", {}, {4, 6});
  const std::string axes =
      node("axes", "Const", {}, attribute("T", type(3)) + output_shapes({{2}}));
  const OpGraph graph =
      read(of_any_rank("like", "Relu", {"sum"}) + of_any_rank("sum", "Sum", {"x", "axes"}) + x +
           axes + floats("y", "Reshape", {"like"}, {4}));
  const auto bytes = [&](const char* name) {
    return graph.size(output(graph, *graph.find(name), 0)).count();
  };
  CHECK(bytes("sum") == 4 * 6 * 4);
  CHECK(bytes("like") == 4 * 6 * 4);
  CHECK(bytes("y") == 4 * 4);
  CHECK(graph.notes() ==
        std::vector<std::string>{"'like' and 1 more have outputs whose rank is unknown until the "
                                 "step runs: each counts as large as the largest input. Measured "
                                 "costs have the true size"});
  CHECK(profile_notes(graph, on("gpu=rtx2080")) == graph.notes());
  CHECK(read(x + floats("y", "Relu", {"x"}, {4, 6})).notes().empty());
  // Nothing tells the size of what is read from elsewhere, or of what feeds itself.
  CHECK(complaint(of_any_rank("p", "Placeholder", {}) + floats("y", "Relu", {"p"}, {4})) ==
        "m.pb: node 'p': an output has no known shape, not even a rank: say it where the output is "
        "made, with tf.ensure_shape, or give measured costs");
  CHECK(
      complaint(of_any_rank("a", "Relu", {"b"}) + of_any_rank("b", "Relu", {"a"})).find("cycle") !=
      std::string::npos);
}

TEST_CASE("graph_def: a SavedModel is told from an ONNX model, and says what to do") {
  const std::string meta_graph = field(1, field(5, "serve")) + field(2, looped());
  const std::string saved = number(1, 1) + field(2, meta_graph);
  CHECK_THROWS_WITH_AS(detect_graph_format(saved, "saved_model.pb"),
                       doctest::Contains("capture(FOLDER, signature=...)"), InputError);
  CHECK(detect_graph_format(number(1, 8) + field(2, "producer"), "m").name == "ONNX model");
}

TEST_CASE("graph_def: what cannot be right is refused by node and reason") {
  const std::string x = floats("x", "Placeholder", {}, {4});
  CHECK(complaint("") == "m.pb: the GraphDef has no nodes");
  CHECK(complaint(x + x) == "m.pb: byte 55: duplicate operator name 'x'");
  CHECK(complaint(floats("y", "Relu", {"z"}, {4})) ==
        "m.pb: node 'y': its input 'z' is no node of this graph");
  CHECK(complaint(x + floats("y", "Relu", {"x:1"}, {4})).find("output 1 of 'x' has no shape") !=
        std::string::npos);
  CHECK(complaint(x + floats("y", "Relu", {"x:a"}, {4})) == "m.pb: node 'y': bad input 'x:a'");
  CHECK(complaint(floats("x", "Placeholder", {}, {-1, 4})).find("give it with --batch") !=
        std::string::npos);
  CHECK(complaint(floats("x", "Placeholder", {}, {1 << 30, 1 << 30, 1 << 30}))
            .find("node 'x': memory") != std::string::npos);
  CHECK(
      complaint(floats("a", "Relu", {"b"}, {4}) + floats("b", "Relu", {"a"}, {4})).find("cycle") !=
      std::string::npos);
  CHECK(complaint(field(1, field(2, "Relu"))).find("without a name") != std::string::npos);
  CHECK(complaint(field(1, field(1, "x"))).find("without an operation") != std::string::npos);
  CHECK(complaint(x.substr(0, x.size() - 1)).find("cut off") != std::string::npos);
  CHECK(complaint("\x0B").find("unknown wire type") != std::string::npos);
  CHECK(complaint(std::string(11, '\xFF')).find("more than 64 bits") != std::string::npos);
  try {
    parse_graph_def(x, "m.pb", "m", {});
    FAIL("no costs");
  } catch (const InputError& error) {
    CHECK(std::string(error.what()).find("--costs") != std::string::npos);
  }
}

TEST_CASE("graph_def: a placed graph differs from its model in the devices only") {
  const SourceText source = read_text_file(kStep);
  const OpGraph graph = read(source.text, 4);
  const Cluster cluster(parse_cluster_line("2xgpu:1GiB"));
  const CostModel costs(graph, cluster);
  PlanRequest request;
  request.method = "balanced";
  const PlanResult result = make_plan(costs, request);
  REQUIRE(std::holds_alternative<Plan>(result));
  const Plan& plan = std::get<Plan>(result);
  const std::string placed = placed_graph_def(source.text, "m.pb", graph, plan);

  // Read the devices back.
  std::size_t seen = 0;
  for (WireReader all(placed, placed, "placed"); all.next();) {
    if (all.field() != 1) continue;
    std::string_view name, device;
    for (WireReader message = all.message(); message.next();) {
      if (message.field() == 1) name = message.bytes();
      if (message.field() == 4) device = message.bytes();
    }
    const DeviceId planned = plan.schedule.slots[*graph.find(name)].device;
    CHECK(device ==
          "/job:localhost/replica:0/task:0/device:GPU:" + std::to_string(planned.value()));
    ++seen;
  }
  CHECK(seen == graph.num_ops());

  const auto without_devices = [](const std::string& bytes) {
    return set_graph_def_devices(bytes, "m.pb", [](std::string_view) { return ""; });
  };
  CHECK(without_devices(placed) == without_devices(source.text));
  CHECK_THROWS_AS(placed_graph_def("{}", "m.pb", graph, plan), InputError);
}

}  // namespace
}  // namespace baechi
