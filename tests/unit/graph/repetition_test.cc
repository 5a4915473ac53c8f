// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/repetition.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "baechi/graph/op_graph_builder.h"
#include "unit/graphs.h"

namespace baechi::testing {
namespace {

constexpr std::size_t kLayers = 16, kExperts = 3;

std::string name(const char* what, std::size_t layer, std::size_t expert = 0) {
  return std::string(what) + "/" + std::to_string(layer) + "/" + std::to_string(expert);
}

class Layered {
 public:
  OpId add(const std::string& name, std::int64_t time, bool backward = false) {
    const OpId op = timed(builder_, {.name = name, .backward = backward}, Time(time));
    builder_.add_output(op, Bytes(time));
    return op;
  }
  void connect(OpId from, OpId to) { builder_.connect(*builder_.output(from, 0), to); }
  void follow(OpId op, OpId forward) { builder_.set_forward(op, forward); }
  OpGraph build() { return std::move(builder_).build(); }

 private:
  OpGraphBuilder builder_;
};

//              +--> expert 0 --+
// attention ---+--> expert 1 --+---> sum ---> attention of the next layer, or head
//   ^          +--> expert 2 --+
//   +-- weight
OpGraph experts() {
  Layered layers;
  OpId before = layers.add("embedding", 50);
  for (std::size_t i = 0; i < kLayers; ++i) {
    const OpId weight = layers.add(name("weight", i), 1);
    const OpId attention = layers.add(name("attention", i), 7);
    const OpId sum = layers.add(name("sum", i), 2);
    layers.connect(before, attention);
    layers.connect(weight, attention);
    for (std::size_t j = 0; j < kExperts; ++j) {
      const OpId expert = layers.add(name("expert", i, j), 20);
      layers.connect(attention, expert);
      layers.connect(expert, sum);
    }
    before = sum;
  }
  layers.connect(before, layers.add("head", 60));
  return layers.build();
}

// The period and slot of the named operator.
Repetition::Position position(const OpGraph& graph, const Repetition& repetition,
                              const std::string& name) {
  CAPTURE(name);
  const auto& at = repetition.at[*graph.find(name)];
  REQUIRE(at.has_value());
  return *at;
}

TEST_CASE("repetition: layers are periods, and their operators images of each other") {
  const OpGraph graph = experts();
  const std::vector<Repetition> found = find_repetitions(graph, 4);
  REQUIRE(found.size() == 1);
  const Repetition& layers = found.front();
  CHECK(layers.slots == 3 + kExperts);
  CHECK(layers.whole.size() >= kLayers - 4);
  for (const char* what : {"weight", "attention", "expert", "sum"}) {
    for (std::size_t j = 0; j < (std::string(what) == "expert" ? kExperts : 1); ++j) {
      const auto first = position(graph, layers, name(what, 4, j));
      const auto second = position(graph, layers, name(what, 5, j));
      CHECK(second.period == first.period + 1);
      CHECK(second.slot == first.slot);
    }
  }
  // The layers at the ends have other surroundings, but the same operators.
  CHECK(position(graph, layers, name("expert", 0, 2)).slot ==
        position(graph, layers, name("expert", 5, 2)).slot);
}

TEST_CASE("repetition: no two operators of a period have the same slot") {
  const OpGraph graph = experts();
  for (const Repetition& repetition : find_repetitions(graph, 4)) {
    std::vector<std::vector<int>> seen(repetition.periods, std::vector<int>(repetition.slots));
    for (const OpId op : graph.ops())
      if (const auto& at = repetition.at[op]) CHECK(++seen[at->period][at->slot] == 1);
    for (const std::uint32_t period : repetition.whole)
      for (const int count : seen[period]) CHECK(count == 1);
  }
}

TEST_CASE("repetition: a layer's backward belongs to the layer's period") {
  Layered layers;
  std::vector<OpId> forward;
  for (std::size_t i = 0; i < kLayers; ++i) {
    forward.push_back(layers.add(name("layer", i), 5));
    if (i > 0) layers.connect(forward[i - 1], forward[i]);
  }
  OpId before = forward.back();
  for (std::size_t i = kLayers; i-- > 0;) {
    const OpId backward = layers.add(name("backward", i), 10, true);
    layers.follow(backward, forward[i]);
    layers.connect(before, backward);
    layers.connect(forward[i], backward);
    const OpId update = layers.add(name("update", i), 1, true);  // names no forward operator
    layers.connect(backward, update);
    before = backward;
  }
  const OpGraph graph = layers.build();
  const std::vector<Repetition> found = find_repetitions(graph, 4);
  REQUIRE(found.size() == 1);
  for (std::size_t i = 6; i < 9; ++i) {
    const std::uint32_t period = position(graph, found.front(), name("layer", i)).period;
    CHECK(position(graph, found.front(), name("backward", i)).period == period);
    CHECK(position(graph, found.front(), name("update", i)).period == period);
  }
}

TEST_CASE("repetition: two stacks behind each other are two repetitions") {
  Layered layers;
  OpId before = layers.add("input", 9);
  for (const char* stack : {"encoder", "decoder"}) {
    for (std::size_t i = 0; i < 20; ++i) {
      const OpId layer = layers.add(name(stack, i), stack[0] == 'e' ? 5 : 8);
      layers.connect(before, layer);
      before = layer;
    }
  }
  const OpGraph graph = layers.build();
  const std::vector<Repetition> found = find_repetitions(graph, 4);
  REQUIRE(found.size() == 2);
  const bool decoder_first = !found[0].at[*graph.find(name("encoder", 8))].has_value();
  const Repetition& encoder = found[decoder_first ? 1 : 0];
  const Repetition& decoder = found[decoder_first ? 0 : 1];
  CHECK(position(graph, encoder, name("encoder", 9)).period ==
        position(graph, encoder, name("encoder", 8)).period + 1);
  CHECK(position(graph, decoder, name("decoder", 9)).period ==
        position(graph, decoder, name("decoder", 8)).period + 1);
  for (const OpId op : graph.ops()) CHECK(!(encoder.at[op] && decoder.at[op]));
}

TEST_CASE("repetition: random graphs have none worth a plan") {
  std::size_t found = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed)
    found += find_repetitions(random_dag(seed, {.min_ops = 30, .max_ops = 60}), 6).size();
  CHECK(found == 0);
}

}  // namespace
}  // namespace baechi::testing
