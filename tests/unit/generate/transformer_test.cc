// SPDX-License-Identifier: Apache-2.0
#include "baechi/generate/transformer.h"

#include <doctest/doctest.h>

#include <string>

#include "baechi/base/error.h"
#include "unit/generate/graph_sums.h"

namespace baechi {
namespace {

using testing::GraphSums;
using testing::sums_of;

// Source, target and output have a matrix of words each, unless they share one. Attention has no
// biases; every connection has a scale and a bias.
std::int64_t transformer_parameters(const TransformerOptions& o) {
  const std::int64_t d = o.width, f = o.feed_forward;
  const std::int64_t dense = 2 * d * f + f + d;
  const std::int64_t encoder = 4 * d * d + dense + 2 * 2 * d;
  const std::int64_t decoder = 8 * d * d + dense + 3 * 2 * d;
  return (o.shared_embedding ? 1 : 3) * o.vocabulary * d + o.layers * (encoder + decoder);
}

TEST_CASE("transformer: weights and two Adam slots are permanent") {
  CHECK(sums_of(generate_transformer({})).permanent == Bytes(3 * 4 * transformer_parameters({})));
  CHECK(transformer_parameters({.shared_embedding = true}) ==
        59'461'632);  // base: 65 million at a vocabulary of 37,000+
  CHECK(transformer_parameters({}) == 59'461'632 + 2 * 30'000 * 512);
  const TransformerOptions small{.batch = 2,
                                 .length = 3,
                                 .layers = 2,
                                 .width = 8,
                                 .heads = 2,
                                 .feed_forward = 16,
                                 .vocabulary = 10};
  TransformerOptions sharing = small;
  sharing.shared_embedding = true;
  for (const TransformerOptions& options : {small, sharing})
    CHECK(sums_of(generate_transformer(options)).permanent ==
          Bytes(3 * 4 * transformer_parameters(options)));
}

TEST_CASE("transformer: arithmetic is six FLOPs per weight of a product and token") {
  const TransformerOptions options{.batch = 128};
  const std::int64_t d = options.width;
  const std::int64_t products =
      options.layers * (12 * d * d + 4 * d * options.feed_forward) + d * options.vocabulary;
  const double expected = 6.0 * 128 * 50 * static_cast<double>(products);
  const double found = testing::compute_flops(generate_transformer(options), "MatMul");
  CHECK(found > expected * 0.99);
  CHECK(found < expected * 1.02);
}

TEST_CASE("transformer: attention weights are quadratic in the length") {
  const auto weights = [](std::int64_t length) {
    const OpGraph graph = generate_transformer({.batch = 2, .length = length, .layers = 1});
    return graph.output_bytes(graph.find("decoder/layer_0/cross_attention/Softmax").value());
  };
  CHECK(weights(50) == Bytes(4 * 2 * 8 * 50 * 50));
  CHECK(weights(100) == 4 * weights(50));
}

TEST_CASE("transformer: the shared embedding gets one gradient from rows and from the product") {
  const OpGraph graph = generate_transformer({.batch = 2, .layers = 1, .shared_embedding = true});
  const OpId sum = graph.find("gradients/embedding/read/AddN").value();
  REQUIRE(graph.in_edges(sum).size() == 2);
  CHECK(graph.find("gradients/embedding/read/UnsortedSegmentSum").has_value());
  CHECK(graph.output_bytes(sum) == Bytes(4 * 30'000 * 512));
  CHECK(graph[sum].group == graph[graph.find("embedding").value()].group);
}

TEST_CASE("transformer: source, target and output may go to three devices") {
  const OpGraph graph = generate_transformer({.batch = 2, .layers = 1});
  const auto group = [&](const char* name) { return graph[graph.find(name).value()].group; };
  CHECK(group("source/embedding") != group("target/embedding"));
  CHECK(group("target/embedding") != group("loss/projection"));
  CHECK(group("source/embedding") == group("gradients/source/embedding/read/UnsortedSegmentSum"));
  CHECK_FALSE(graph.find("gradients/loss/projection/read/AddN").has_value());
}

TEST_CASE("transformer: backward operators know their forward, and costs grow with the batch") {
  GraphSums previous;
  for (const std::int64_t batch : {1, 64, 128}) {
    const OpGraph graph = generate_transformer({.batch = batch, .layers = 2});
    const GraphSums sums = sums_of(graph);
    CHECK(sums.one_device > previous.one_device);
    CHECK(sums.outputs > previous.outputs);
    CHECK(sums.longest_path < sums.one_device);
    CHECK(sums.unread < kibibytes(64));
    previous = sums;
    for (const OpId op : graph.ops())
      CHECK(graph[op].forward.has_value() == graph[op].name.starts_with("gradients/"));
  }
}

TEST_CASE("transformer: sizes that do not fit together are refused") {
  CHECK_THROWS_AS(generate_transformer({.heads = 7}), InputError);
  CHECK_THROWS_AS(generate_transformer({.layers = 0}), InputError);
}

}  // namespace
}  // namespace baechi
