// SPDX-License-Identifier: Apache-2.0
#include "baechi/generate/inception_v3.h"

#include <doctest/doctest.h>

#include <string>

#include "baechi/base/error.h"
#include "unit/generate/graph_sums.h"

namespace baechi {
namespace {

using testing::GraphSums;
using testing::sums_of;

// 23,817,352 is what Keras counts as trainable in its InceptionV3 (no auxiliary classifier, no
// scale in batch normalisation). Moving averages are not trained and have no slots: 17,216 channels
// twice.
constexpr std::int64_t kTrainable = 23'817'352;
constexpr std::int64_t kMoving = 2 * 17'216;

TEST_CASE("inception-v3: as many operators as the paper counts, within 3 percent") {
  const std::size_t ops = generate_inception_v3({}).num_ops();
  CHECK(ops > 6'884 * 97 / 100);
  CHECK(ops < 6'884 * 103 / 100);
}

TEST_CASE("inception-v3: permanent memory is weights, two RMSProp slots and moving averages") {
  const Bytes plain = sums_of(generate_inception_v3({.auxiliary = false})).permanent;
  CHECK(plain == Bytes(4 * (3 * kTrainable + kMoving)));
  // The auxiliary classifier: 1x1x768x128 and 5x5x128x768 convolutions, 768x1000 and its biases.
  const std::int64_t extra = 768 * 128 + 128 + 5 * 5 * 128 * 768 + 768 + 768 * 1000 + 1000;
  CHECK(sums_of(generate_inception_v3({})).permanent - plain ==
        Bytes(4 * (3 * extra + 2 * (128 + 768))));
}

TEST_CASE("inception-v3: a forward pass is 5.7 GMAC per image") {
  const double per_image =
      testing::compute_flops(generate_inception_v3({.batch = 64, .auxiliary = false}), "Conv2D") /
      64;
  CHECK(per_image > 2 * 5.6e9);
  CHECK(per_image < 2 * 5.9e9);  // where memory bounds a convolution, its time shows more
}

TEST_CASE("inception-v3: the grids are 35, 17 and 8 wide, the branches add up") {
  const OpGraph graph = generate_inception_v3({.batch = 1});
  const auto bytes = [&](const std::string& name) {
    return graph.output_bytes(graph.find(name).value());
  };
  CHECK(bytes("Mixed_5b/concat") == Bytes(4 * 35 * 35 * 256));
  CHECK(bytes("Mixed_5d/concat") == Bytes(4 * 35 * 35 * 288));
  CHECK(bytes("Mixed_6e/concat") == Bytes(4 * 17 * 17 * 768));
  CHECK(bytes("Mixed_7a/concat") == Bytes(4 * 8 * 8 * 1280));
  CHECK(bytes("Mixed_7c/concat") == Bytes(4 * 8 * 8 * 2048));
}

TEST_CASE("inception-v3: gradients of one operator wait for each other, and know their forward") {
  const OpGraph graph = generate_inception_v3({.batch = 1});
  const std::string conv = "gradients/Mixed_6b/Branch_1/Conv2d_1/Conv2D_grad/";
  const OpId gate = graph.find(conv + "tuple/group_deps").value();
  CHECK(graph.in_edges(gate).size() == 2);  // of the input and of the filter
  CHECK(graph.out_edges(gate).size() == 2);
  for (const OpId op : graph.ops()) {
    const std::string name(graph[op].name);
    CAPTURE(name);
    CHECK(graph[op].forward.has_value() == name.starts_with("gradients/"));
  }
}

TEST_CASE("inception-v3: times and outputs grow with the batch, the path stays below the work") {
  GraphSums previous;
  for (const std::int64_t batch : {1, 8, 32, 64}) {
    const GraphSums sums = sums_of(generate_inception_v3({.batch = batch}));
    CHECK(sums.one_device > previous.one_device);
    CHECK(sums.longest_path > previous.longest_path);
    CHECK(sums.outputs > previous.outputs);
    CHECK(sums.longest_path < sums.one_device);
    CHECK(sums.unread < mebibytes(1));
    previous = sums;
  }
}

TEST_CASE("inception-v3: the smallest image works, a smaller one is refused") {
  CHECK(generate_inception_v3({.batch = 1, .image = 107}).num_ops() > 6'000);
  CHECK_THROWS_AS(generate_inception_v3({.batch = 1, .image = 106}), InputError);
  CHECK(generate_inception_v3({.batch = 1, .image = 75, .auxiliary = false}).num_ops() > 6'000);
  CHECK_THROWS_AS(generate_inception_v3({.batch = 1, .image = 74, .auxiliary = false}), InputError);
  CHECK_THROWS_AS(generate_inception_v3({.batch = 0}), InputError);
}

}  // namespace
}  // namespace baechi
