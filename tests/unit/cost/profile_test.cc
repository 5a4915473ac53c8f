// SPDX-License-Identifier: Apache-2.0
#include "baechi/cost/profile.h"

#include <doctest/doctest.h>

#include <string>

#include "baechi/graph/op_graph_builder.h"
#include "unit/graphs.h"
#include "unit/io/same_graph.h"
#include "unit/refusal.h"

namespace baechi {
namespace {

// read(gpu: 10; 3 kept; 100 and 7 bytes) --> use(gpu: 20, cpu: 40; 5 while it runs; 50 bytes)
OpGraph estimated() {
  OpGraphBuilder builder("estimated");
  const OpId read = builder.add_operator({.name = "read", .kind = "Read", .permanent = Bytes(3)});
  const OpId use = builder.add_operator({.name = "use", .temporary = Bytes(5)});
  builder.set_time(read, "gpu", Time(10));
  builder.set_time(use, "gpu", Time(20));
  builder.set_time(use, "cpu", Time(40));
  builder.connect(builder.add_output(read, Bytes(100)), use);
  builder.add_output(read, Bytes(7));
  builder.add_output(use, Bytes(50));
  builder.add_to_group(use, "together");
  builder.set_pin(use, "gpu:1");
  builder.set_batch_size(32);
  return std::move(builder).build();
}

Time time_of(const OpGraph& graph, const char* op, std::string_view kind) {
  return graph.times(*graph.find_kind(kind))[*graph.find(op)].value();
}
Bytes size_of(const OpGraph& graph, const char* op, std::ptrdiff_t port) {
  return graph.size(graph.outputs(*graph.find(op)).begin()[port]);
}
std::string refusal(const Profile& profile) {
  return testing::refusal_of([&] { with_profile(estimated(), profile); });
}

TEST_CASE("profile: what was measured replaces the estimate, what was not keeps it") {
  const OpGraph graph =
      with_profile(estimated(), {.source = "test",
                                 .batch_size = 32,
                                 .operators = {{.name = "read",
                                                .times = {{"gpu", Time(11)}, {"tpu", Time(2)}},
                                                .permanent = Bytes(4),
                                                .temporary = Bytes(1),
                                                .transferred = {std::nullopt, Bytes(8)},
                                                .allocated = {}},
                                               {.name = "use",
                                                .times = {{"cpu", Time(41)}},
                                                .permanent = std::nullopt,
                                                .temporary = std::nullopt,
                                                .transferred = {Bytes(49)},
                                                .allocated = {}}}});
  CHECK(time_of(graph, "read", "gpu") == Time(11));
  CHECK(time_of(graph, "read", "tpu") == Time(2));
  CHECK(!graph.times(*graph.find_kind("cpu"))[OpId(0)].has_value());
  CHECK(time_of(graph, "use", "gpu") == Time(20));
  CHECK(time_of(graph, "use", "cpu") == Time(41));
  CHECK(graph[OpId(0)].permanent == Bytes(4));
  CHECK(graph[OpId(0)].temporary == Bytes(1));
  CHECK(graph[OpId(1)].permanent == Bytes(0));
  CHECK(graph[OpId(1)].temporary == Bytes(5));
  CHECK(size_of(graph, "read", 0) == Bytes(100));
  CHECK(size_of(graph, "read", 1) == Bytes(8));
  CHECK(size_of(graph, "use", 0) == Bytes(49));
  CHECK(graph[OpId(0)].kind == "Read");
  CHECK(graph[OpId(1)].pin == "gpu:1");
  CHECK(graph.colocation_names(OpId(1)).size() == 1);
}

TEST_CASE("profile: an empty one changes nothing") {
  CHECK(testing::graph_difference(with_profile(estimated(), {}), estimated()).empty());
  const OpGraph graph = testing::random_dag(7, {.backward_chance = 0.5, .cpu_chance = 0.5});
  CHECK(testing::graph_difference(with_profile(graph, {}), graph).empty());
}

// A tensor in a graph has one size. With what was allocated alone, the copy of an alias on another
// device would be free.
TEST_CASE("profile: an output counts what is sent or what was allocated, whichever is more") {
  const auto sizes = [](std::vector<std::optional<Bytes>> sent,
                        std::vector<std::optional<Bytes>> allocated) {
    const OpGraph graph = with_profile(estimated(), {.source = {},
                                                     .batch_size = {},
                                                     .operators = {{.name = "read",
                                                                    .times = {},
                                                                    .permanent = {},
                                                                    .temporary = {},
                                                                    .transferred = sent,
                                                                    .allocated = allocated}}});
    return std::pair(size_of(graph, "read", 0), size_of(graph, "read", 1));
  };
  CHECK(sizes({Bytes(90), Bytes(6)}, {Bytes(0), Bytes(256)}) == std::pair(Bytes(90), Bytes(256)));
  CHECK(sizes({}, {Bytes(0), Bytes(256)}) == std::pair(Bytes(100), Bytes(256)));
  CHECK(sizes({Bytes(90)}, {}) == std::pair(Bytes(90), Bytes(7)));
}

TEST_CASE("profile: a time for any kind holds on all that the profile does not list") {
  const OpGraph graph =
      with_profile(estimated(), {.source = {},
                                 .batch_size = {},
                                 .operators = {{.name = "use",
                                                .times = {{"*", Time(5)}, {"cpu", Time(6)}},
                                                .permanent = {},
                                                .temporary = {},
                                                .transferred = {},
                                                .allocated = {}}}});
  CHECK(time_of(graph, "use", "gpu") == Time(5));
  CHECK(time_of(graph, "use", "cpu") == Time(6));
  CHECK(time_of(graph, "use", "*") == Time(5));
  CHECK(time_of(graph, "read", "gpu") == Time(10));
}

Profile of(std::vector<std::string> names) {
  Profile profile;
  for (std::string& name : names) profile.operators.emplace_back().name = std::move(name);
  return profile;
}

TEST_CASE("profile: that of another graph is refused") {
  CHECK(refusal(of({"read", "a", "b"})) ==
        "it is the profile of another graph: 2 of 3 operators are unknown here, the first is 'a'");
  CHECK(refusal(of({"read", "a"})) == "");
  Profile ports = of({"use"});
  ports.operators[0].allocated = {Bytes(1), Bytes(2)};
  CHECK(refusal(ports) ==
        "it is the profile of another graph: operator 'use' has 2 outputs there and 1 here");
  Profile batch = of({"use"});
  batch.batch_size = 8;
  CHECK(refusal(batch) == "it was measured with batch size 8, the graph is for 32");
}

TEST_CASE("profile: notes name what only one of the two has") {
  CHECK(coverage_notes(estimated(), of({"read", "use"})).empty());
  const auto notes = coverage_notes(estimated(), of({"use", "gone"}));
  REQUIRE(notes.size() == 2);
  CHECK(notes[0] == "1 of 2 operators of the profile are not in the graph, the first is 'gone'");
  CHECK(notes[1].starts_with("1 of 2 operators of the graph are not in the profile"));
  CHECK(notes[1].ends_with("'read'"));
}

}  // namespace
}  // namespace baechi
