// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/interpolated.h"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/io/graph/write_graph.h"
#include "unit/graphs.h"

namespace baechi::testing {
namespace {

// f takes 10 + 5 a sample, keeps 100 whatever the batch, and outputs 8 a sample.
OpGraph sized(std::int64_t batch, const char* reader = "g") {
  OpGraphBuilder builder("sized");
  builder.set_batch_size(batch);
  const OpId f =
      builder.add_operator({.name = "f", .permanent = Bytes(100), .temporary = Bytes(3 * batch)});
  const OpId g = builder.add_operator({.name = reader});
  builder.set_time(f, "gpu", Time(10 + 5 * batch));
  builder.set_time(g, "gpu", Time(7));
  builder.connect(builder.add_output(f, Bytes(8 * batch)), g);
  return std::move(builder).build();
}

std::vector<OpGraph> graphs(std::initializer_list<std::int64_t> batches) {
  std::vector<OpGraph> result;
  for (const std::int64_t batch : batches) result.push_back(sized(batch));
  return result;
}

TEST_CASE("at_batch_size: costs lie on a straight line between two sizes, fixed parts included") {
  for (const std::int64_t batch : {2, 3, 4, 7, 16})
    CHECK(graph_to_json(at_batch_size(graphs({16, 2, 4}), batch)) == graph_to_json(sized(batch)));
  // 10 + 5 * 3 would be 25: rounded up from halves, never down.
  const std::vector<OpGraph> falling = graphs({2, 5});
  CHECK(at_batch_size(falling, 3).output_bytes(OpId(0)) == Bytes(24));
}

TEST_CASE("at_batch_size: sizes outside of those given and graphs that are not one are refused") {
  const std::vector<OpGraph> two = graphs({2, 4});
  CHECK_THROWS_WITH_AS(at_batch_size(two, 5),
                       "a micro-batch of 5 samples is outside of the batch sizes that there are "
                       "costs for, 2 to 4: give the graph at a larger one, too, or take another "
                       "number of micro-batches",
                       InputError);
  CHECK_THROWS_AS(at_batch_size(two, 1), InputError);
  std::vector<OpGraph> other;
  other.push_back(sized(2));
  other.push_back(sized(4, "h"));
  CHECK_THROWS_WITH_AS(at_batch_size(other, 3),
                       "the graphs for batch sizes 2 and 4 are not one graph: they differ in "
                       "operator 'g'",
                       InputError);
  CHECK_THROWS_WITH_AS(at_batch_size(graphs({2, 2}), 2),
                       "two graphs are for the batch size 2: give one of them at another size",
                       InputError);
  std::vector<OpGraph> unsized;
  unsized.push_back(figure_1());
  CHECK_THROWS_WITH_AS(at_batch_size(unsized, 2), doctest::Contains("batch_size"), InputError);
}

}  // namespace
}  // namespace baechi::testing
