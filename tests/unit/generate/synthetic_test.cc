// SPDX-License-Identifier: Apache-2.0
#include "baechi/generate/synthetic.h"

#include <doctest/doctest.h>

#include "baechi/base/error.h"
#include "unit/generate/graph_sums.h"

namespace baechi {
namespace {

TEST_CASE("synthetic: chain, fork-join and layered have the number of operators asked for") {
  for (const std::int64_t operators : {3, 4, 10, 1000}) {
    CAPTURE(operators);
    const auto n = static_cast<std::size_t>(operators);
    const OpGraph chain = generate_chain({.operators = operators});
    CHECK(chain.num_ops() == n);
    CHECK(chain.num_edges() == n - 1);
    CHECK(testing::sums_of(chain).longest_path == testing::sums_of(chain).one_device);
    const OpGraph fork = generate_fork_join({.operators = operators});
    CHECK(fork.num_ops() == n);
    CHECK(fork.num_edges() == 2 * (n - 2));
    CHECK(fork.consumers(fork.in_edges(OpId(1)).front().tensor.value()).size() == n - 2);
    CHECK(generate_layered({.operators = operators}).num_ops() == n);
  }
  CHECK(generate_layered({.operators = 1}).num_ops() == 1);
  CHECK(generate_chain({.operators = 1}).num_ops() == 1);
}

TEST_CASE("synthetic: a layered graph is wide and has about three edges per operator") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = generate_layered({.operators = 5000, .seed = seed});
    CHECK(graph.num_edges() > 5000 * 5 / 2);
    CHECK(graph.num_edges() < 5000 * 7 / 2);
    const testing::GraphSums sums = testing::sums_of(graph);
    CHECK(sums.one_device > 8 * sums.longest_path);
    std::size_t sources = 0;
    for (const OpId op : graph.ops()) sources += graph.in_edges(op).empty() ? 1U : 0U;
    CHECK(sources <= 141);  // the first layer only: 2 sqrt(5000)
  }
}

TEST_CASE("synthetic: the seed decides everything, and nothing else does") {
  for (auto* generate : {generate_chain, generate_fork_join, generate_layered}) {
    const SyntheticOptions one{.operators = 300, .seed = 1}, two{.operators = 300, .seed = 2};
    CHECK(testing::checksum(generate(one)) == testing::checksum(generate(one)));
    CHECK(testing::checksum(generate(one)) != testing::checksum(generate(two)));
  }
}

TEST_CASE("synthetic: too few operators and too many are refused") {
  CHECK_THROWS_AS(generate_chain({.operators = 0}), InputError);
  CHECK_THROWS_AS(generate_fork_join({.operators = 2}), InputError);
  CHECK_THROWS_AS(generate_layered({.operators = 1'000'000'000}), InputError);
}

}  // namespace
}  // namespace baechi
