// SPDX-License-Identifier: Apache-2.0
// The models at module grain: llama, moe, unet, two-tower.
#include <doctest/doctest.h>

#include <string>

#include "baechi/base/error.h"
#include "baechi/generate/llama.h"
#include "baechi/generate/two_tower.h"
#include "baechi/generate/unet.h"
#include "unit/generate/graph_sums.h"

namespace baechi {
namespace {

using testing::sums_of;

Bytes permanent(const OpGraph& graph) { return sums_of(graph).permanent; }

TEST_CASE("llama: holds the 8,030,261,248 parameters of Llama 3 8B, in 2 bytes or in 16") {
  CHECK(permanent(generate_llama({})) == Bytes(2 * 8'030'261'248));
  CHECK(permanent(generate_llama({.training = true})) == Bytes(16 * 8'030'261'248));
}

TEST_CASE("moe: holds the 46,702,792,704 parameters of Mixtral 8x7B") {
  CHECK(permanent(generate_llama(mixtral_options())) == Bytes(2 * 46'702'792'704));
}

TEST_CASE("unet: holds the parameters of its convolutions, 31 million") {
  std::int64_t expected = 0;
  const auto double_conv = [&](std::int64_t in, std::int64_t out) {
    expected += 9 * in * out + 9 * out * out + 2 * 2 * out;  // and two batch normalisations
  };
  double_conv(3, 64);
  for (const std::int64_t c : {64, 128, 256, 512}) {
    double_conv(c, 2 * c);          // down
    expected += 4 * 2 * c * c + c;  // up: transposed convolution of 2 x 2
    double_conv(2 * c, c);
  }
  expected += 64 * 2 + 2;
  CHECK(expected > 31'000'000);
  CHECK(expected < 31'100'000);
  CHECK(permanent(generate_unet({})) == Bytes(16 * expected));
  CHECK(permanent(generate_unet({.training = false})) == Bytes(4 * expected));
}

TEST_CASE("two-tower: nearly all memory is in the tables") {
  const std::int64_t tables = 64 * (8'000'000 + 4'000'000 + 2 * 8 * 200'000);
  const std::int64_t tower =
      9 * 64 * 1024 + 1024 + 1024 * 512 + 512 + 512 * 256 + 256 + 256 * 128 + 128;
  CHECK(permanent(generate_two_tower({})) == Bytes(16 * (tables + 2 * tower)));
  CHECK(tables > 300 * tower);
}

TEST_CASE("llama: arithmetic is two FLOPs per weight and token forward, and four backward") {
  // On a device that only counts arithmetic the sum of times shows the FLOPs.
  const LlamaOptions options{.batch = 4, .length = 512, .layers = 2};
  const auto linear_seconds = [&](bool training, std::string_view kind) {
    LlamaOptions o = options;
    o.training = training;
    const OpGraph graph = generate_llama(o);
    const auto& times = graph.times(graph.find_kind("gpu").value());
    double seconds = 0;
    for (const OpId op : graph.ops()) {
      const std::string_view name = graph[op].name;
      if (graph[op].kind == kind && name.find("_proj") != std::string_view::npos)
        seconds += static_cast<double>((*times[op] - microseconds(4)).count()) * 1e-9;
    }
    return seconds;
  };
  const double weights = 2.0 * (2.0 * 4096 * 4096 + 2.0 * 4096 * 1024 + 3.0 * 4096 * 14'336);
  const double expected = 2 * weights * 4 * 512 / (40.3e12 * 0.6);
  CHECK(linear_seconds(false, "Linear") > expected * 0.99);
  CHECK(linear_seconds(false, "Linear") < expected * 1.02);
  for (const char* gradient : {"InputGradient", "WeightGradient"}) {
    CAPTURE(gradient);
    CHECK(linear_seconds(true, gradient) == linear_seconds(true, "Linear"));
  }
}

TEST_CASE("moe: the experts of a layer run side by side, each on its share of the tokens") {
  LlamaOptions options = mixtral_options();
  options.layers = 1;
  options.length = 512;
  const OpGraph graph = generate_llama(options);
  const OpId dispatch = graph.find("layers/0/moe/dispatch").value();
  REQUIRE(graph.outputs(dispatch).size() == 8);
  for (const TensorId part : graph.outputs(dispatch))
    CHECK(graph.size(part) == Bytes(2 * (2 * 512 / 8) * 4096));
  CHECK(graph.in_edges(graph.find("layers/0/moe/combine").value()).size() == 9);
  const auto reads = [&](const std::string& reader, const std::string& writer) {
    for (const Edge& edge : graph.in_edges(graph.find(reader).value()))
      if (edge.from == graph.find(writer).value()) return true;
    return false;
  };
  CHECK(reads("layers/0/moe/experts/7/up_proj", "layers/0/moe/dispatch"));
  CHECK_FALSE(reads("layers/0/moe/experts/1/up_proj", "layers/0/moe/experts/0/down_proj"));
}

TEST_CASE("unet: what goes across is read when the image comes up again") {
  const OpGraph graph = generate_unet({.training = false});
  const OpId first = graph.find("down/0/relu1").value(), last = graph.find("up/1/cat").value();
  bool found = false;
  for (const Edge& edge : graph.out_edges(first)) found = found || edge.to == last;
  CHECK(found);
}

TEST_CASE("modules: a module, its gradients and its step are colocated, the step waits for one") {
  const OpGraph graph = generate_two_tower({});
  const OpId forward = graph.find("user/linear2").value(),
             inputs = graph.find("gradients/user/linear2_grad/input_gradient").value(),
             weights = graph.find("gradients/user/linear2_grad/weight_gradient").value(),
             step = graph.find("optimizer/user/linear2").value();
  CHECK(graph[forward].group.has_value());
  for (const OpId gradient : {inputs, weights}) CHECK(graph[gradient].forward == forward);
  for (const OpId op : {inputs, weights, step}) CHECK(graph[op].group == graph[forward].group);
  CHECK(graph[step].backward);
  REQUIRE(graph.in_edges(step).size() == 1);
  CHECK(graph.in_edges(step).front() == Edge{weights, step, std::nullopt});
  // What comes next in the backward pass waits for the gradient by the inputs alone.
  REQUIRE(graph.out_edges(inputs).size() >= 1);
  CHECK(graph.out_edges(weights).size() == 1);
  CHECK(graph[graph.out_edges(inputs).front().to].name == "gradients/user/relu1_grad/backward");
  for (const OpId op : graph.ops())
    CHECK(graph[op].forward.has_value() == graph[op].name.starts_with("gradients/"));
  // A table has no input that wants a gradient, but has one itself.
  CHECK_FALSE(graph.find("gradients/item/id_grad/input_gradient").has_value());
  CHECK(graph.find("gradients/item/id_grad/weight_gradient").has_value());
  CHECK(graph.find("optimizer/item/id").has_value());
  CHECK(sums_of(graph).unread < kibibytes(1));
}

TEST_CASE("modules: both gradients of a module take as long as its forward pass each") {
  for (const bool moe : {false, true}) {
    LlamaOptions options = moe ? mixtral_options() : LlamaOptions{};
    options.layers = 1;
    options.training = true;
    const OpGraph graph = generate_llama(options);
    const auto& times = graph.times(graph.find_kind("gpu").value());
    std::size_t modules = 0;
    for (const OpId op : graph.ops()) {
      const std::string gradient = "gradients/" + std::string(graph[op].name) + "_grad/";
      const auto weights = graph.find(gradient + "weight_gradient");
      if (!weights.has_value()) continue;
      ++modules;
      CHECK(times[*weights] == times[op]);
      const auto inputs = graph.find(gradient + "input_gradient");
      CHECK(inputs.has_value() == (graph[op].kind != "Embedding"));
      if (inputs.has_value()) CHECK(times[*inputs] == times[op]);
    }
    CHECK(modules == (moe ? 34u : 12u));
  }
}

TEST_CASE("modules: sizes that do not fit together are refused") {
  CHECK_THROWS_AS(generate_llama({.heads = 31}), InputError);
  CHECK_THROWS_AS(generate_llama({.key_heads = 3}), InputError);
  CHECK_THROWS_AS(generate_llama({.experts = 0}), InputError);
  CHECK_THROWS_AS(generate_unet({.image = 100}), InputError);
  CHECK_THROWS_AS(generate_unet({.layers = 63}), InputError);
  CHECK_THROWS_AS(generate_two_tower({.layers = 12}), InputError);
  CHECK_THROWS_AS(generate_two_tower({.features = -1}), InputError);
}

}  // namespace
}  // namespace baechi
