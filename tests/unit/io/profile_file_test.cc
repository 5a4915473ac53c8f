// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/profile/profile_file.h"

#include <doctest/doctest.h>

#include <string>

#include "baechi/base/error.h"
#include "baechi/io/graph/read_graph.h"
#include "baechi/io/profile/model_costs.h"
#include "unit/graphs.h"
#include "unit/test_paths.h"

namespace baechi {
namespace {

const std::string kData = BAECHI_TEST_DATA_DIR;
const std::string kStep = kData + "/tensorflow/cnn_step.pb";

TEST_CASE("profile file: what is in it is read, and nothing else") {
  const Profile profile = read_profile(kData + "/good/profile_small.json");
  CHECK(profile.source == "one step, by hand");
  CHECK(profile.batch_size == 32);
  REQUIRE(profile.operators.size() == 4);
  const OperatorProfile& first = profile.operators[0];
  CHECK(first.name == "fc1");
  CHECK(first.times == std::vector<KindTime>{{"gpu", Time(13'000)}, {"tpu", Time(700)}});
  CHECK(first.permanent == Bytes(9 << 20));
  CHECK(first.temporary == Bytes(0));
  CHECK(first.transferred == std::vector<std::optional<Bytes>>{Bytes(131072), std::nullopt});
  CHECK(first.allocated == std::vector<std::optional<Bytes>>{Bytes(131328)});
  const OperatorProfile& second = profile.operators[1];
  CHECK(second.times == std::vector<KindTime>{{"*", Time(8'500)}});
  CHECK(!second.permanent.has_value());
  CHECK(profile.operators[3] == OperatorProfile{.name = "fc2/grad",
                                                .times = {},
                                                .permanent = {},
                                                .temporary = {},
                                                .transferred = {},
                                                .allocated = {}});
  CHECK(parse_profile(profile_to_json(profile), "again") == profile);
}

TEST_CASE("profile file: another document says what it is") {
  CHECK_THROWS_WITH_AS(parse_profile(R"({"format": "baechi-graph"})", "f.json"),
                       "f.json: this is a graph, expected a profile", InputError);
  CHECK_THROWS_WITH_AS(parse_profile(R"({"format": "baechi-a\nb"})", "f.json"),
                       "f.json: this is a a\\nb, expected a profile", InputError);
}

ModelCosts costs_of(std::initializer_list<std::string> texts) {
  ModelCosts costs;
  for (const std::string& text : texts) add_model_costs(text, costs);
  return costs;
}

TEST_CASE("model costs: presets and profiles, in any order") {
  const ModelCosts costs = costs_of({"gpu=rtx3090", kData + "/good/profile_small.json", "cpu=cpu"});
  CHECK(costs.kinds.size() == 2);
  REQUIRE(costs.profiles.size() == 1);
  CHECK(costs.profiles[0].place == kData + "/good/profile_small.json");
  CHECK_THROWS_AS(costs_of({"gpu=rtx3090", "gpu=t4"}), InputError);
  CHECK_THROWS_AS(costs_of({"no/such=profile.json"}), InputError);
  CHECK_THROWS_WITH_AS(costs_of({"rtx3090"}),
                       "--costs: for which kind of device is the preset? as in gpu=rtx3090",
                       InputError);
}

TEST_CASE("model costs: notes say which times are estimates") {
  const OpGraph graph = read_graph(kData + "/good/graph_small.json",
                                   {.costs = costs_of({kData + "/good/profile_small.json"})});
  CHECK(graph.times(*graph.find_kind("gpu"))[*graph.find("fc2")] == Time(8'500));
  Profile profile;
  profile.operators.emplace_back().name = "fc1";
  profile.operators[0].times = {{"gpu", Time(1)}};
  const auto notes =
      profile_notes(graph, {.kinds = {}, .batch = {}, .profiles = {{"p.json", profile}}});
  REQUIRE(notes.size() == 4);  // 6 of 7 are missing; *, cpu, tpu
  CHECK(notes[1] == "p.json: has no times for other device kinds: those are estimates");
  CHECK(notes[2] == "p.json: has no times for device kind 'cpu': those are estimates");
}

Profile measured_step(Time time) {
  const OpGraph graph = read_graph(
      kStep, {.costs = {.kinds = parse_costed_kinds("gpu=rtx2080"), .batch = 4, .profiles = {}},
              .cancel = nullptr});
  Profile profile;
  profile.batch_size = 4;
  for (const OpId op : graph.ops()) {
    OperatorProfile& measured = profile.operators.emplace_back();
    measured.name = graph[op].name;
    measured.times = {{"cpu", time}};
    for (const TensorId tensor : graph.outputs(op))
      measured.transferred.emplace_back(graph.size(tensor));
  }
  return profile;
}

TEST_CASE(
    "model costs: a profile alone costs a GraphDef, and fills in what its shapes leave open") {
  const auto read = [](Profile profile, std::vector<CostedKind> kinds = {}) {
    return read_graph(
        kStep, {.costs = {.kinds = std::move(kinds), .batch = {}, .profiles = {{"p", profile}}},
                .cancel = nullptr});
  };
  const Profile profile = measured_step(Time(77));
  const OpGraph graph = read(profile);
  CHECK(graph.num_kinds() == 1);
  CHECK(graph.batch_size() == 4);
  for (const OpId op : graph.ops()) CHECK(graph.times(KindId(0))[op] == Time(77));

  // Without a batch size only the measured outputs say how large they are.
  Profile without_batch = profile;
  without_batch.batch_size.reset();
  const OpGraph same = read(without_batch);
  for (const TensorId tensor : graph.tensors()) CHECK(same.size(tensor) == graph.size(tensor));
  for (OperatorProfile& op : without_batch.operators) op.transferred.clear();
  CHECK_THROWS_WITH_AS(read(without_batch), doctest::Contains("--batch"), InputError);

  Profile part = profile;
  part.operators.resize(200);
  const OpGraph partly = read(part);
  CHECK(partly.times(KindId(0))[OpId(269)] == Time(0));
  part.operators.resize(100);
  CHECK_THROWS_WITH_AS(read(part), doctest::Contains("only 100 of 270 operators are in p"),
                       InputError);
  const OpGraph estimated = read(part, parse_costed_kinds("gpu=rtx2080"));
  CHECK(estimated.times(*estimated.find_kind("gpu"))[OpId(100)].has_value());
}

}  // namespace
}  // namespace baechi
