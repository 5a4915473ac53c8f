// SPDX-License-Identifier: Apache-2.0
#include "baechi/verify/check_micro_batches.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/graph/unroll.h"
#include "unit/graph_draft.h"
#include "unit/graph_sketch.h"
#include "unit/graphs.h"

namespace baechi::testing {
namespace {

// w is of the step; f, g and b are of a micro-batch; u reads b's gradient and the second output of
// f, which b reads, too.
//
//   w --5--> f --4--> g --2--> b --6--> u
//            +---3-------------^--------^
OpGraph layer() {
  OpGraphBuilder builder("layer");
  const OpId w = timed(builder, {.name = "w", .permanent = Bytes(10), .per_step = true}, Time(2));
  const OpId f =
      timed(builder, {.name = "f", .permanent = Bytes(1), .temporary = Bytes(1)}, Time(2));
  const OpId g = timed(builder, {.name = "g"}, Time(2));
  const OpId b = timed(builder, {.name = "b", .forward = f}, Time(2));
  const OpId u = timed(builder, {.name = "u", .backward = true, .per_step = true}, Time(2));
  for (const OpId op : {w, f}) builder.add_to_group(op, "one");
  builder.connect(builder.add_output(w, Bytes(5)), f);
  builder.connect(builder.add_output(f, Bytes(4)), g);
  const TensorId kept = builder.add_output(f, Bytes(3));
  builder.connect(kept, b);
  builder.connect(kept, u);
  builder.connect(builder.add_output(g, Bytes(2)), b);
  builder.connect(builder.add_output(b, Bytes(6)), u);
  return std::move(builder).build();
}

// What the verifier says of the step with one thing changed.
std::vector<std::string> after(const std::function<void(Draft&, const Unrolled&)>& change) {
  const OpGraph one = layer();
  const Unrolled step = unroll(one, 3);
  Draft draft(step.graph);
  change(draft, step);
  return check_micro_batches(one, draft.build(), 3);
}

Draft::Op& named(Draft& draft, const std::string& name) {
  for (Draft::Op& op : draft.ops)
    if (op.name == name) return op;
  FAIL("no operator " << name);
  return draft.ops.front();
}

std::vector<std::string> sentence(const std::string& name, const std::string& words) {
  return {"micro-batches: operator '" + name + "' " + words};
}

using Change = std::function<void(Draft&)>;
std::vector<std::string> with(const Change& change) {
  return after([&](Draft& draft, const Unrolled&) { change(draft); });
}

TEST_CASE("verify: a step of micro-batches as unroll() makes it keeps every rule") {
  CHECK(after([](Draft&, const Unrolled&) {}).empty());
}

TEST_CASE("verify: what a copy or a sum holds, takes and is called is the graph's") {
  CHECK(with([](Draft& d) { named(d, "f@1").spec.permanent = Bytes(1); }) ==
        sentence("f@1", "holds other permanent memory than it should"));
  CHECK(with([](Draft& d) { named(d, "f@0").spec.permanent = Bytes(0); }) ==
        sentence("f@0", "holds other permanent memory than it should"));
  CHECK(with([](Draft& d) { named(d, "f@2").spec.temporary = Bytes(0); }) ==
        sentence("f@2", "holds other temporary memory than it should"));
  CHECK(with([](Draft& d) { named(d, "b@2").times[0].second = Time(1); }) ==
        sentence("b@2", "takes another time than it should"));
  CHECK(with([](Draft& d) { named(d, "b@sum").times[0].second = Time(1); }) ==
        sentence("b@sum", "takes another time than it should"));
  CHECK(with([](Draft& d) { named(d, "g@1").name = "g@3"; }) == sentence("g@3", "should be 'g@1'"));
  CHECK(with([](Draft& d) { named(d, "g@1").spec.backward = true; }) ==
        sentence("g@1", "is of another pass than it should"));
  CHECK(with([](Draft& d) { named(d, "g@1").spec.pin = "gpu:0"; }) ==
        sentence("g@1", "is pinned elsewhere"));
  CHECK(with([](Draft& d) { d.memory_mode = MemoryMode::kRetain; }) ==
        std::vector<std::string>{"micro-batches: the step has another memory mode than the graph"});
}

TEST_CASE("verify: one buffer is held of what the step reads, and every copy's own tensors") {
  CHECK(with([](Draft& d) { named(d, "b@1").outputs[0] = Bytes(6); }) ==
        sentence("b@1", "has other outputs than it should"));
  CHECK(with([](Draft& d) { named(d, "b@0").outputs[0] = Bytes(0); }) ==
        sentence("b@0", "has other outputs than it should"));
  CHECK(with([](Draft& d) { named(d, "f@1").outputs[0] = Bytes(0); }) ==
        sentence("f@1", "has other outputs than it should"));
  CHECK(with([](Draft& d) { named(d, "f@0").outputs[2] = Bytes(0); }) ==
        sentence("f@0", "has other outputs than it should"));
  CHECK(with([](Draft& d) { named(d, "f@sum").outputs[0] = Bytes(4); }) ==
        sentence("f@sum", "has other outputs than it should"));
}

// The wires that `which` picks go.
std::vector<std::string> without(const std::string& from, const std::string& to) {
  return after([&](Draft& draft, const Unrolled& step) {
    const OpId a = op_named(step.graph, from), b = op_named(step.graph, to);
    const std::size_t gone = std::erase_if(
        draft.wires, [&](const Draft::Wire& wire) { return wire.from == a && wire.to == b; });
    CHECK(gone > 0);
  });
}

TEST_CASE("verify: copies read of their micro-batch, sums wait for all, buffers come first") {
  for (const auto& edge : std::vector<std::pair<std::string, std::string>>{{"w", "f@2"},
                                                                           {"f@1", "g@1"},
                                                                           {"f@1", "b@1"},
                                                                           {"f@1", "f@sum"},
                                                                           {"b@2", "b@sum"},
                                                                           {"b@0", "b@sum"},
                                                                           {"b@0", "b@1"},
                                                                           {"f@0", "f@2"},
                                                                           {"b@sum", "u"},
                                                                           {"f@sum", "u"}}) {
    const std::string& from = edge.first;  // Clang 14 captures no bindings
    const std::string& to = edge.second;
    CAPTURE(from);
    CAPTURE(to);
    CHECK(without(from, to) == sentence(to, "reads or waits for what it should not"));
  }
  CHECK(after([](Draft& draft, const Unrolled& step) {
          for (Draft::Wire& wire : draft.wires)
            if (wire.to == op_named(step.graph, "b@2") && wire.from == op_named(step.graph, "g@2"))
              wire.from = op_named(step.graph, "g@1");
        }) == sentence("b@2", "reads or waits for what it should not"));
  CHECK(after([](Draft& draft, const Unrolled& step) {
          draft.wires.push_back(
              {op_named(step.graph, "b@0"), op_named(step.graph, "g@2"), std::nullopt});
        }) == sentence("g@2", "reads or waits for what it should not"));
}

TEST_CASE("verify: copies and their sum share a device, as the graph's groups do") {
  CHECK(with([](Draft& d) { named(d, "g@2").groups.clear(); }) ==
        sentence("g@2", "may be on another device than its colocation group or its other copies"));
  CHECK(
      with([](Draft& d) { named(d, "b@sum").groups = {"alone"}; }) ==
      sentence("b@sum", "may be on another device than its colocation group or its other copies"));
  CHECK(with([](Draft& d) { named(d, "w").groups.clear(); }) ==
        sentence("w", "may be on another device than its colocation group or its other copies"));
  CHECK(with([](Draft& d) { named(d, "u").groups = {"one"}; }) ==
        sentence("u", "is in a colocation group, and should be in none"));
}

TEST_CASE("verify: a step has all of its micro-batches and no more") {
  const OpGraph one = layer();
  CHECK(check_micro_batches(one, unroll(one, 4).graph, 3) ==
        std::vector<std::string>{"micro-batches: the step has 16 operators, not 13: one of every "
                                 "operator and micro-batch"});
  CHECK(check_micro_batches(one, unroll(one, 2).graph, 3).size() == 1);
}

// Every micro-batch reads a running mean and writes it anew, and draws random numbers.
//
//   x --> f --> drop --> g        mean --> f, g writes mean
OpGraph with_mean() {
  OpGraphBuilder builder("mean");
  const OpId mean = builder.add_operator({.name = "mean", .variable = true});
  const OpId x = timed(builder, {.name = "x"}, Time(2));
  const OpId f = timed(builder, {.name = "f"}, Time(2));
  const OpId drop = timed(builder, {.name = "drop", .random = true}, Time(2));
  const OpId g = timed(builder, {.name = "g"}, Time(2));
  builder.set_time(mean, "gpu", Time(0));
  builder.connect(builder.add_output(mean, Bytes(5)), f);
  builder.connect(builder.add_output(x, Bytes(4)), f);
  builder.connect(builder.add_output(f, Bytes(4)), drop);
  builder.connect(builder.add_output(drop, Bytes(4)), g);
  builder.add_write(g, mean);
  return std::move(builder).build();
}

TEST_CASE("verify: what micro-batches change is read behind who changed it in the one before") {
  const OpGraph one = with_mean();
  const Unrolled step = unroll(one, 3);
  REQUIRE(check_micro_batches(one, step.graph, 3) == std::vector<std::string>{});
  const auto faults = [&](const char* from, const char* to) {
    Draft draft(step.graph);
    const OpId a = op_named(step.graph, from), b = op_named(step.graph, to);
    CHECK(std::erase_if(draft.wires, [&](const Draft::Wire& wire) {
            return wire.from == a && wire.to == b;
          }) == 1);
    return check_micro_batches(one, draft.build(), 3);
  };
  CHECK(faults("g@0", "f@1") == sentence("f@1", "reads or waits for what it should not"));
  CHECK(faults("g@1", "g@2") == sentence("g@2", "reads or waits for what it should not"));
  CHECK(faults("drop@0", "drop@1") == sentence("drop@1", "reads or waits for what it should not"));
  Draft apart(step.graph);
  for (Draft::Op& op : apart.ops)
    if (op.name.starts_with("g@")) op.groups = {"elsewhere"};
  CHECK(check_micro_batches(one, apart.build(), 3).size() == 3);
}

// One change anywhere in the step of a random graph; nothing where it changes none of the rules.
bool changed(Random& random, Draft& draft) {
  const auto one_of = [&](std::size_t size) {
    return static_cast<std::size_t>(random.below(size));
  };
  Draft::Op& op = draft.ops[one_of(draft.ops.size())];
  switch (random.below(8)) {
    case 0:
      op.spec.permanent += Bytes(1);
      return true;
    case 1:
      op.spec.temporary += Bytes(1);
      return true;
    case 2:
      op.times[one_of(op.times.size())].second += Time(1);
      return true;
    case 3:
      if (op.outputs.empty()) return false;
      op.outputs[one_of(op.outputs.size())] += Bytes(1);
      return true;
    case 4:
      op.outputs.push_back(Bytes(0));
      return true;
    case 5:
      if (draft.wires.empty()) return false;
      draft.wires.erase(draft.wires.begin() +
                        static_cast<std::ptrdiff_t>(one_of(draft.wires.size())));
      return true;
    case 6: {
      const auto with_it = std::ranges::count_if(draft.ops, [&](const Draft::Op& other) {
        return std::ranges::any_of(other.groups, [&](const std::string& group) {
          return std::ranges::find(op.groups, group) != op.groups.end();
        });
      });
      op.groups = {"a device of its own"};
      return with_it > 1;
    }
    default:
      op.spec.pin = op.spec.pin.has_value() ? std::nullopt : std::optional("gpu:1");
      return true;
  }
}

TEST_CASE("verify: no change of a step of micro-batches passes") {
  int tried = 0;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    CAPTURE(seed);
    const OpGraph one = random_dag(seed, {.min_ops = 2,
                                          .max_ops = 9,
                                          .group_chance = 0.2,
                                          .backward_chance = 0.4,
                                          .cpu_chance = 0.2,
                                          .max_time = 2,
                                          .variable_chance = 0.2,
                                          .write_chance = 0.5,
                                          .random_chance = 0.2});
    const auto number = static_cast<std::uint32_t>(2 + seed % 3);
    const Unrolled step = unroll(one, number);
    REQUIRE(check_micro_batches(one, step.graph, number) == std::vector<std::string>{});
    Random random(seed);
    Draft draft(step.graph);
    if (!changed(random, draft)) continue;
    try {
      const OpGraph other = draft.build();
      CHECK_FALSE(check_micro_batches(one, other, number).empty());
      ++tried;
    } catch (const InputError&) {  // two pins in a group
    }
  }
  CHECK(tried > 400);
}

}  // namespace
}  // namespace baechi::testing
