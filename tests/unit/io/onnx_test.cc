// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/onnx/onnx.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/io/graph/read_graph.h"
#include "baechi/io/onnx/write_onnx.h"
#include "baechi/io/text/text_file.h"
#include "unit/io/onnx_text.h"
#include "unit/test_paths.h"

namespace baechi {
namespace {

using namespace onnx_text;

OpGraph file(const char* name, const ModelCosts& with) {
  return read_graph(std::string(BAECHI_TEST_DATA_DIR "/onnx/") + name,
                    {.costs = with, .cancel = nullptr});
}

TEST_CASE("onnx: an exported transformer needs nothing but its input's sizes") {
  const OpGraph graph = file("transformer.onnx", costs({}, {{"batch", 3}, {"sequence", 7}}));
  CHECK(graph.num_ops() == 175);  // 174 nodes and the input
  CHECK(bytes_out(graph, "ids") == 3 * 7 * 8);
  CHECK(bytes_out(graph, "/layers.0/up/MatMul") == 3 * 7 * 32 * 4);
  CHECK(bytes_out(graph, "/layers.1/Softmax") == 3 * 2 * 7 * 7 * 4);
  CHECK(bytes_out(graph, "/head/MatMul") == 3 * 7 * 64 * 4);
  // Weights stay with the operator that reads them, and the exporter's Identity nodes move nothing.
  CHECK(graph[find(graph, "/layers.0/up/MatMul")].permanent == Bytes(16 * 32 * 4));
  for (const OpId op : graph.ops())
    if (graph[op].kind == "Identity" || graph[op].kind == "Constant") {
      CHECK(graph.out_edges(op).empty());
      CHECK(graph.times(KindId(0))[op] == Time(0));
    }
}

TEST_CASE("onnx: convolutions, pools and resizes follow from the image") {
  const OpGraph graph = file("cnn.onnx", costs(5));
  CHECK(graph.batch_size() == 5);
  CHECK(bytes_out(graph, "/c1/Conv") == 5 * 8 * 8 * 8 * 4);
  CHECK(bytes_out(graph, "/up/ConvTranspose") == 5 * 4 * 16 * 16 * 4);
  CHECK(bytes_out(graph, "/MaxPool") == 5 * 4 * 8 * 8 * 4);
  CHECK(bytes_out(graph, "/Resize") == 5 * 4 * 16 * 16 * 4);
  CHECK(bytes_out(graph, "/f/Gemm") == 5 * 10 * 4);
}

TEST_CASE("onnx: floating-point work comes from the shapes") {
  const std::int64_t n = 512;
  const OpGraph graph =
      read(model(node("mm", "MatMul", {"x", "w"}, {"y"}) + node("add", "Add", {"y", "y"}, {"z"}) +
                 input("x", {512, 4096}) + initializer("w", {4096, 8192})));
  const DevicePreset& device = device_preset("rtx2080");
  const std::int64_t x = n * 4096 * 4, w = std::int64_t{4096} * 8192 * 4, y = n * 8192 * 4;
  const auto time = [&](std::string_view name) {
    return *graph.times(KindId(0))[find(graph, name)];
  };
  CHECK(time("mm") ==
        roofline_time(device, {.flops = 2 * n * 4096 * 8192, .bytes = Bytes(x + w + y)}));
  CHECK(time("add") == roofline_time(device, {.flops = n * 8192, .bytes = Bytes(3 * y)}));
  CHECK(time("x") == device.dispatch);
}

TEST_CASE("onnx: small shared initializers are copied, large ones keep their readers together") {
  const auto tied = [](std::uint64_t rows) {
    return read(model(node("a", "Add", {"x", "w"}, {"y"}) + node("b", "Add", {"y", "w"}, {"z"}) +
                      input("x", {rows, 64}) + initializer("w", {rows, 64})));
  };
  const OpGraph small = tied(256), large = tied(257);  // 64 KiB, and one row more
  CHECK(small.num_groups() == 0);
  CHECK(small[find(small, "a")].permanent == Bytes(65536));
  CHECK(small[find(small, "b")].permanent == Bytes(65536));
  REQUIRE(large.num_groups() == 1);
  CHECK(large.colocation_names(find(large, "a")).front() == "w");
  CHECK(large[find(large, "a")].permanent == Bytes(257 * 256));
  CHECK(large[find(large, "b")].permanent == Bytes(0));
}

TEST_CASE("onnx: a conditional is one operator that reads what its branches read") {
  const std::string branch = node("inner", "Add", {"x", "w"}, {"t"}) + initializer("w", {256}) +
                             field(12, value("t", {256}));
  const OpGraph graph = read(model(
      node("if", "If", {"c"}, {"y"}, body("then_branch", branch) + body("else_branch", branch)) +
      node("after", "Relu", {"y"}, {"z"}) + input("c", {}, 9) + input("x", {256})));
  const OpId conditional = find(graph, "if");
  CHECK(graph[conditional].permanent == Bytes(2 * 1024));
  CHECK(graph.in_edges(conditional).size() == 2);  // c and x
  CHECK(bytes_out(graph, "if") == 1024);
  CHECK_FALSE(graph.find("inner").has_value());
}

TEST_CASE("onnx: nodes without a name are called after what they make, and names are unique") {
  const OpGraph graph =
      read(model(node("", "Relu", {"x"}, {"a"}) + node("a", "Relu", {"a"}, {"b"}) +
                 node("x", "Relu", {"b"}, {"c"}) + input("x", {4})));
  CHECK(graph[OpId(0)].name == "x#2");  // the input: nodes keep their names
  CHECK(graph[OpId(1)].name == "a");
  CHECK(graph[OpId(2)].name == "a#2");
  CHECK(graph[OpId(3)].name == "x");
}

TEST_CASE("onnx: what the file says of open dimensions yields to what follows from the inputs") {
  // The file gives both axes one name; ours differ.
  const std::string graph = node("t", "Transpose", {"x"}, {"y"}) + node("r", "Relu", {"y"}, {"z"}) +
                            input("x", {0, 6}) + field(13, value("y", {0, 0}));
  CHECK(bytes_out(read(model(graph), costs(2)), "t") == 2 * 6 * 4);
  // Another's operator: the file is all there is.
  const std::string other =
      node("t", "Mystery", {"x"}, {"y"}) + input("x", {0, 6}) + field(13, value("y", {0, 3}));
  CHECK(bytes_out(read(model(other), costs(2)), "t") == 2 * 3 * 4);
}

std::string whole_numbers(std::string_view name, const std::vector<std::uint64_t>& sizes,
                          const std::vector<std::uint64_t>& values) {
  return field(5, tensor(name, sizes, kInt64, values));
}

// [2, 1] x [1, 2] has four numbers, of which two are not known: the shape that they give is not.
TEST_CASE("onnx: numbers are used only where every one of a shape is known") {
  const std::string cut = node("r", "Reshape", {"c", "four"}, {"d"}) +
                          node("s", "Slice", {"d", "two", "four"}, {"k"}) +
                          node("e", "Expand", {"x", "k"}, {"y"}) + input("x", {1}) +
                          whole_numbers("two", {1}, {2}) + whole_numbers("four", {1}, {4});
  const std::string outer = node("m", "Mul", {"a", "b"}, {"c"}) +
                            whole_numbers("a", {2, 1}, {1, 2}) + whole_numbers("b", {1, 2}, {3, 4});
  const std::string unknown =
      "m.onnx: node 'e' (Expand): the shape of 'y' is not in the file and does not follow from its "
      "inputs: run onnx.shape_inference on the model first";
  CHECK(complaint(model(outer + cut)) == unknown);
  // The file is wrong about the number of elements.
  const std::string lied = node("m", "Add", {"a", "a"}, {"c"}) + whole_numbers("a", {2}, {1, 2}) +
                           field(13, value("c", {4}, kInt64));
  CHECK(complaint(model(lied + cut)) == unknown);
}

// As PyTorch's exporter writes x.expand(rows, -1, 16): -1 keeps what is there.
TEST_CASE("onnx: sizes that are chosen by a comparison are followed") {
  const std::uint64_t keep = ~std::uint64_t{0};
  const std::string graph = node("eq", "Equal", {"sizes", "minus"}, {"is_open"}) +
                            node("where", "Where", {"is_open", "ones", "sizes"}, {"shape"}) +
                            node("expand", "Expand", {"x", "shape"}, {"y"}) +
                            input("x", {1, 7, 1}) + whole_numbers("sizes", {3}, {5, keep, 16}) +
                            whole_numbers("minus", {1}, {keep}) +
                            whole_numbers("ones", {3}, {1, 1, 1});
  CHECK(bytes_out(read(model(graph)), "expand") == 5 * 7 * 16 * 4);
}

// As PyTorch's exporter writes pad(x, (1, 2, 3, 4)): pairs from the last axis on are turned round.
TEST_CASE("onnx: paddings that are turned round are followed") {
  const std::uint64_t last = ~std::uint64_t{0}, all = std::uint64_t{1} << 63;
  const std::string graph =
      node("pairs", "Reshape", {"pads", "two"}, {"p"}) +
      node("round", "Slice", {"p", "last", "all", "zero", "last"}, {"r"}) +
      node("turn", "Transpose", {"r"}, {"t"}) + node("flat", "Reshape", {"t", "last"}, {"f"}) +
      node("pad", "Pad", {"x", "f"}, {"y"}) + input("x", {10, 100}) +
      whole_numbers("pads", {4}, {1, 2, 30, 40}) + whole_numbers("two", {2}, {last, 2}) +
      whole_numbers("last", {1}, {last}) + whole_numbers("all", {1}, {all}) +
      whole_numbers("zero", {1}, {0});
  CHECK(bytes_out(read(model(graph)), "pad") == (10 + 30 + 40) * (100 + 1 + 2) * 4);
}

TEST_CASE("onnx: a maximum of three lists of sizes is not that of the first two") {
  const std::string graph = node("m", "Max", {"a", "b", "c"}, {"k"}) +
                            node("e", "Expand", {"x", "k"}, {"y"}) + input("x", {1}) +
                            whole_numbers("a", {1}, {2}) + whole_numbers("b", {1}, {3}) +
                            whole_numbers("c", {1}, {9});
  CHECK(complaint(model(graph)).find("the shape of 'y' is not in the file") != std::string::npos);
  const std::string two = node("m", "Max", {"a", "b"}, {"k"}) +
                          node("e", "Expand", {"x", "k"}, {"y"}) + input("x", {1}) +
                          whole_numbers("a", {1}, {2}) + whole_numbers("b", {1}, {3});
  CHECK(bytes_out(read(model(two)), "e") == 3 * 4);
}

TEST_CASE("onnx: what has no type in the file has that of its inputs, or is refused") {
  const std::string x = input("x", {8});
  const std::string untyped = field(12, field(1, "y"));
  CHECK(bytes_out(read(model(node("r", "Relu", {"x"}, {"y"}) + x + untyped)), "r") == 8 * 4);
  const auto cast = [&](std::uint64_t to) {
    return model(node("c", "Cast", {"x"}, {"y"}, integer("to", to)) + x);
  };
  CHECK(bytes_out(read(cast(10)), "c") == 8 * 2);
  CHECK(complaint(cast(99)) == "m.onnx: node 'c' (Cast): 'y' has the unknown element type 99");
  CHECK(complaint(cast(0)) ==
        "m.onnx: node 'c' (Cast): the element type of 'y' is not in the file and does not follow "
        "from its inputs");
  // A sequence: nothing is known of its size.
  const std::string sequence =
      field(13, field(1, "s") + field(2, field(4, field(1, field(1, number(1, kFloat))))));
  CHECK(bytes_out(read(model(node("q", "SplitToSequence", {"x"}, {"s"}) + x + sequence)), "q") ==
        0);
}

TEST_CASE("onnx: names that an exporter made up are not the batch size") {
  const auto other = [](std::uint64_t first, std::string_view name) {
    const std::string made = field(2, name);
    const std::string dims = field(1, first != 0 ? number(1, first) : made) + field(1, made);
    return node("t", "Mystery", {"x"}, {"y"}) + input("x", {0, 6}) +
           field(13, field(1, "y") + field(2, field(1, number(1, kFloat) + field(2, dims))));
  };
  CHECK(complaint(model(other(3, "unk__7")), costs(2)) ==
        "m.onnx: node 't' (Mystery): an output has the open dimension 'unk__7', which does not "
        "follow from its inputs: give it with --dim unk__7=N");
  CHECK(bytes_out(read(model(other(3, "unk__7")), costs(2, {{"unk__7", 50}})), "t") == 3 * 50 * 4);
  CHECK(bytes_out(read(model(other(3, "n")), costs(2)), "t") == 3 * 2 * 4);
  CHECK(complaint(model(other(3, "n")), costs(2, {{"m", 5}})) ==
        "m.onnx: the model has no open dimension 'm'; it has n");
}

TEST_CASE("onnx: of a conditional's branches the larger one counts, and constants are held") {
  const auto branch = [](std::uint64_t size) {
    return node("k", "Constant", {}, {"t"},
                field(5, field(1, "value") + field(5, tensor("", {size})) + number(20, 4))) +
           field(12, value("t", {size}));
  };
  const OpGraph graph = read(
      model(node("if", "If", {"c"}, {"y"},
                 body("then_branch", branch(10)) + body("else_branch", branch(1000))) +
            input("c", {}, 9) + field(12, field(1, "y") + field(2, field(1, number(1, kFloat))))));
  CHECK(bytes_out(graph, "if") == 4000);
  CHECK(graph[find(graph, "if")].permanent == Bytes(4040));
}

TEST_CASE("onnx: ONNX Runtime's packed attention is a product and the attention itself") {
  const std::string weights = initializer("w", {64, 192});
  const auto attention = [&](const std::string& domain) {
    return node("a", "Attention", {"x", "w"}, {"y"}, field(7, domain) + integer("num_heads", 4)) +
           input("x", {2, 128, 64}) + weights;
  };
  const OpGraph graph = read(model(attention("com.microsoft")));
  CHECK(bytes_out(graph, "a") == 2 * 128 * 64 * 4);
  const std::int64_t flops = 2 * 2 * 128 * 64 * 192 + 4 * 2 * 128 * 64 * 128;
  const Bytes moved((2 * 2 * 128 * 64 + 64 * 192) * 4);
  CHECK(*graph.times(KindId(0))[find(graph, "a")] ==
        roofline_time(device_preset("rtx2080"), {.flops = flops, .bytes = moved}));
  CHECK(complaint(model(attention(""))).find("the shape of 'y'") != std::string::npos);
}

// [512, 4, 2048] stands for [4, 512, 2048]; turned, too, for [4, 2048, 512].
TEST_CASE("onnx: ONNX Runtime's fused products may have their batch in the middle") {
  const auto product = [](const std::string& attributes) {
    const OpGraph graph = read(
        model(node("mm", "FusedMatMul", {"a", "b"}, {"y"}, field(7, "com.microsoft") + attributes) +
              input("a", {512, 4, 2048}) + input("b", {512, 4, 2048})));
    return std::pair(bytes_out(graph, "mm"), *graph.times(KindId(0))[find(graph, "mm")]);
  };
  const std::string batches = integer("transBatchA", 1) + integer("transBatchB", 1);
  const auto expected = [&](std::int64_t out, std::int64_t inner) {
    return std::pair(out * 4, roofline_time(device_preset("rtx2080"),
                                            {.flops = 2 * out * inner,
                                             .bytes = Bytes((2 * 512 * 4 * 2048 + out) * 4)}));
  };
  CHECK(product(batches + integer("transB", 1)) == expected(4 * 512 * 512, 2048));
  CHECK(product(batches + integer("transA", 1)) == expected(4 * 2048 * 2048, 512));
}

TEST_CASE("onnx: ONNX Runtime's quantized products give out what they read") {
  // Its own names for sizes are made up: they do not stand for the batch.
  const std::string made = field(13, value("y", {0, 0, 9}));
  const std::string graph =
      node("mm", "DynamicQuantizeMatMul", {"x", "w", "scale"}, {"y"}, field(7, "com.microsoft")) +
      input("x", {0, 5, 4}) + field(5, tensor("w", {4, 9}, 3)) + initializer("scale", {1}) + made;
  const OpGraph read_back = read(model(graph), costs(2));
  CHECK(bytes_out(read_back, "mm") == 2 * 5 * 9 * 4);
  CHECK(read_back[find(read_back, "mm")].permanent == Bytes(4 * 9 + 4));
}

TEST_CASE("onnx: constants take no time") {
  const OpGraph graph = read(model(
      node("k", "Constant", {}, {"w"},
           field(5, field(1, "value") + field(5, tensor("", {4})) + number(20, 4))) +
      node("i", "Identity", {"w"}, {"v"}) + node("a", "Add", {"x", "v"}, {"y"}) + input("x", {4})));
  CHECK(*graph.times(KindId(0))[find(graph, "k")] == Time(0));
  CHECK(*graph.times(KindId(0))[find(graph, "i")] == Time(0));
  CHECK(*graph.times(KindId(0))[find(graph, "a")] > Time(0));
}

TEST_CASE("onnx: sizes beyond 63 bits are refused") {
  const std::string x = input("x", {1, 1, 4});
  const std::uint64_t huge = std::uint64_t{1} << 39;
  CHECK(complaint(model(node("c", "ConvTranspose", {"x", "w"}, {"y"}, integer("group", huge)) + x +
                        initializer("w", {1, huge, 1})))
            .starts_with("m.onnx: node 'c' (ConvTranspose): "));
  CHECK(complaint(model(node("a", "Attention", {"q", "q", "q"}, {"y"},
                             integer("q_num_heads", huge) + integer("kv_num_heads", 1)) +
                        input("q", {1, 1, huge})))
            .starts_with("m.onnx: node 'a' (Attention): "));
}

TEST_CASE("onnx: two graphs in one model are refused") {
  const std::string bytes = model(small_graph());
  CHECK(complaint(bytes + field(7, small_graph()), costs(2)) ==
        "m.onnx: byte " + std::to_string(bytes.size()) + ": a second graph");
  const OpGraph graph = read(bytes, costs(2));
  CHECK_THROWS_AS(placed_onnx(field(7, "").insert(0, bytes), "m.onnx", graph, {}), InputError);
}

TEST_CASE("onnx: what cannot be read is told by node and reason") {
  const std::string x = input("x", {4});
  const auto one = [&](const std::string& nodes) { return complaint(model(nodes + x)); };
  CHECK(complaint(model(small_graph())) ==
        "m.onnx: input 'x': it has the open dimension 'n': give it with --batch N, or --dim n=N");
  CHECK(one(node("a", "Mystery", {"x"}, {"y"})) ==
        "m.onnx: node 'a' (Mystery): the shape of 'y' is not in the file and does not follow from "
        "its inputs: run onnx.shape_inference on the model first");
  CHECK(one(node("a", "Relu", {"q"}, {"y"})) ==
        "m.onnx: node 'a' (Relu): its input 'q' is made by no node before it");
  CHECK(one(node("a", "Relu", {"x"}, {"x"})) ==
        "m.onnx: node 'a' (Relu): there are two values named 'x'");
  CHECK(one(node("a", "Add", {"x", "w"}, {"y"}) + initializer("w", {3})) ==
        "m.onnx: node 'a' (Add): its inputs have sizes 4 and 3 where they should be equal");
  CHECK(one(node("a", "MatMul", {"x", "w"}, {"y"}) + initializer("w", {3, 2})) ==
        "m.onnx: node 'a' (MatMul): it multiplies rows of 4 with columns of 3");
  CHECK(one(node("a", "Concat", {"x"}, {"y"}, integer("axis", 1))) ==
        "m.onnx: node 'a' (Concat): there is no axis 1 of 1");
  CHECK(one(initializer("x", {1}) + initializer("x", {1}) + node("a", "Relu", {"x"}, {"y"})) ==
        "m.onnx: initializer 'x': there are two values named 'x'");
  CHECK(complaint(model("")) == "m.onnx: the model's graph has no nodes");
  CHECK(complaint(number(1, 8) + field(2, "x")) == "m.onnx: the model has no graph");
  CHECK(complaint(model(small_graph()), {}).find("--costs") != std::string::npos);
  const std::string whole = model(small_graph());
  for (std::size_t size = 0; size < whole.size(); ++size) {  // wherever it is cut
    CAPTURE(size);
    CHECK(complaint(whole.substr(0, size), costs(2)) != "");
  }
}

TEST_CASE("onnx: the format is told by the first fields, cut off or not") {
  const std::string whole = model(small_graph());
  CHECK(detect_graph_format(whole, "m").name == "ONNX model");
  CHECK(detect_graph_format(whole.substr(0, 20), "m").name == "ONNX model");
  CHECK_FALSE(looks_like_onnx(""));
  CHECK_FALSE(looks_like_onnx("\x08\x08"));
  CHECK_FALSE(looks_like_onnx("{\"format\": 1}"));
  CHECK_FALSE(looks_like_onnx(
      read_text_file(BAECHI_TEST_DATA_DIR "/tensorflow/cnn_step.pb").text.substr(0, 4096)));
}

}  // namespace
}  // namespace baechi
