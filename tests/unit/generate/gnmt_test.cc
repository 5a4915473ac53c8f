// SPDX-License-Identifier: Apache-2.0
#include "baechi/generate/gnmt.h"

#include <doctest/doctest.h>

#include <string>
#include <string_view>

#include "baechi/base/error.h"
#include "unit/generate/graph_sums.h"

namespace baechi {
namespace {

using testing::GraphSums;
using testing::sums_of;

bool within(std::int64_t value, std::int64_t expected, double percent) {
  return std::abs(static_cast<double>(value - expected)) <=
         static_cast<double>(expected) * percent / 100;
}

// Embeddings, LSTM kernels and biases (the decoder's also read the context), attention, projection.
std::int64_t gnmt_parameters(const GnmtOptions& o) {
  const std::int64_t h = o.hidden;
  const std::int64_t encoder = o.layers * ((2 * h) * (4 * h) + 4 * h);
  const std::int64_t decoder = o.layers * ((3 * h) * (4 * h) + 4 * h);
  const std::int64_t attention = 2 * h * h + h;
  return 2 * o.vocabulary * h + encoder + decoder + attention + h * o.vocabulary + o.vocabulary;
}

TEST_CASE("gnmt: as many operators as the paper counts, within 2 percent") {
  for (const bool at_once : {false, true}) {
    const auto operators = [&](std::int64_t length) {
      const GnmtOptions options{.length = length, .project_at_once = at_once};
      return static_cast<std::int64_t>(generate_gnmt(options).num_ops());
    };
    CHECK(within(operators(40), 18'050, 2));
    CHECK(within(operators(50), 22'340, 2));
  }
}

TEST_CASE("gnmt: weights and two Adam slots are permanent, whatever the batch and the length") {
  for (const std::int64_t length : {1, 2, 7}) {
    for (const std::int64_t layers : {2, 3, 4}) {
      CAPTURE(length);
      CAPTURE(layers);
      const GnmtOptions options{.batch = 3 * length, .length = length, .layers = layers};
      CHECK(sums_of(generate_gnmt(options)).permanent == Bytes(3 * 4 * gnmt_parameters(options)));
    }
  }
  CHECK(gnmt_parameters({}) == 67'622'704);
}

TEST_CASE("gnmt: every operator of the backward pass knows its forward, only the update has none") {
  const OpGraph graph = generate_gnmt({.length = 3});
  for (const OpId op : graph.ops()) {
    const std::string name(graph[op].name);
    CAPTURE(name);
    const bool gradient = name.starts_with("gradients/");
    CHECK(graph[op].forward.has_value() == gradient);
    if (!gradient) continue;
    const Operator& forward = graph[*graph[op].forward];
    CHECK_FALSE(forward.backward);
    CHECK(graph[op].group == forward.group);  // TensorFlow's colocate_gradients_with_ops
    CHECK(graph[op].group.has_value());
  }
}

TEST_CASE("gnmt: a variable, its initialiser's assignment, slots and update are colocated") {
  const OpGraph graph = generate_gnmt({.length = 2});
  const std::string kernel = "dec/cell_3/kernel";
  const auto group = graph[graph.find(kernel).value()].group;
  REQUIRE(group.has_value());
  for (const char* part : {"/read", "/Assign", "/Adam", "/Adam_1", "/Adam/Assign"})
    CHECK(graph[graph.find(kernel + part).value()].group == group);
  CHECK(graph[graph.find("Adam/update_" + kernel + "/AssignSub").value()].group == group);
  // Not with another variable, nor with the operators that read it.
  CHECK(graph[graph.find("dec/cell_2/kernel").value()].group != group);
  CHECK(graph[graph.find("dec/cell_3/t0/MatMul").value()].group != group);
}

// In bytes of the projection's gradients alone 40 steps of 60 MB fill 2.4 GiB.
TEST_CASE("gnmt: where all steps are projected at once, the projection has one gradient") {
  for (const bool at_once : {false, true}) {
    const OpGraph graph = generate_gnmt({.length = 3, .project_at_once = at_once});
    std::size_t products = 0, sums = 0;
    for (const OpId op : graph.ops()) {
      const std::string_view name = graph[op].name;
      products += name.starts_with("projection/") && graph[op].kind == "MatMul";
      sums += name.starts_with("gradients/projection/kernel/read/AddN");
    }
    CHECK(products == (at_once ? 1 : 3));
    CHECK(sums == (at_once ? 0 : 1));
  }
}

TEST_CASE("gnmt: arithmetic is six FLOPs per weight of a product and per token, forward and back") {
  const GnmtOptions options{.batch = 256, .length = 10};
  const std::int64_t h = options.hidden;
  const std::int64_t products_per_token =  // source and target tokens of one position together
      options.layers * (2 * h * 4 * h + 3 * h * 4 * h) + 2 * h * h + h * options.vocabulary;
  const double expected = 6.0 * 256 * 10 * static_cast<double>(products_per_token);
  const double found = testing::compute_flops(generate_gnmt(options), "MatMul");
  CHECK(found > expected * 0.98);
  CHECK(found < expected * 1.02);
}

TEST_CASE("gnmt: times and outputs grow with the batch and the length, the path stays below work") {
  GraphSums previous;
  for (const std::int64_t batch : {32, 64, 128}) {
    const GraphSums sums = sums_of(generate_gnmt({.batch = batch, .length = 4}));
    CHECK(sums.one_device > previous.one_device);
    CHECK(sums.longest_path > previous.longest_path);
    CHECK(sums.outputs > previous.outputs);
    CHECK(sums.longest_path < sums.one_device);
    previous = sums;
  }
  const GraphSums longer = sums_of(generate_gnmt({.length = 5}));
  CHECK(longer.longest_path > previous.longest_path);
}

TEST_CASE(
    "gnmt: what nobody reads is next to nothing, so it does not fill the memory of the step") {
  CHECK(sums_of(generate_gnmt({.length = 3})).unread < kibibytes(64));
}

TEST_CASE("gnmt: sizes must be positive") {
  CHECK_THROWS_WITH_AS(generate_gnmt({.batch = 0}), "batch must be positive, not 0", InputError);
  CHECK_THROWS_AS(generate_gnmt({.length = -1}), InputError);
  CHECK_THROWS_AS(generate_gnmt({.layers = 1}), InputError);
  CHECK_THROWS_AS(generate_gnmt({.batch = 1'000'000'000'000'000, .length = 1}), InputError);
}

}  // namespace
}  // namespace baechi
