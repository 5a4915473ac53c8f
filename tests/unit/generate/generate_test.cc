// SPDX-License-Identifier: Apache-2.0
#include "baechi/generate/generate.h"

#include <doctest/doctest.h>

#include <string>

#include "baechi/base/error.h"
#include "unit/generate/graph_sums.h"
#include "unit/refusal.h"

namespace baechi {
namespace {

std::string error_of(std::string_view name, const GenerateRequest& request) {
  return testing::refusal_of([&] { generate_graph(name, request); });
}

TEST_CASE("generate: unknown graphs and options that a graph does not have are named") {
  CHECK(error_of("resnet", {}).starts_with("unknown graph 'resnet'; known: chain, fork-join, "));
  CHECK(error_of("chain", {.batch = 3}) ==
        "'chain' has no option batch; it has: operators seed precision");
  CHECK(error_of("inception-v3", {.length = 3}) ==
        "'inception-v3' has no option length; it has: batch micro-batches precision");
  CHECK(error_of("gnmt", {.layers = 1}) == "gnmt: layers must be at least 2, not 1");
}

TEST_CASE("generate: the size that is known beforehand is at most the graph's, and close to it") {
  for (const GeneratorEntry& generator : all_generators()) {
    if (generator.least_operators == nullptr) continue;
    CAPTURE(generator.name);
    for (const std::int64_t layers : {4, 9}) {
      const GenerateRequest request{.layers = layers};
      const auto operators = static_cast<double>(generate_graph(generator.name, request).num_ops());
      CHECK(generator.least_operators(request) <= operators);
      CHECK(generator.least_operators(request) >= operators * (layers == 9 ? 0.9 : 0.8));
    }
  }
  CHECK(error_of("gnmt", {.length = 50'000}) ==
        "gnmt: the graph would have more than 20000000 operators");
}

TEST_CASE("generate: variables, learning rates and updates of training graphs run once per step") {
  for (const char* name : {"gnmt", "inception-v3", "transformer", "llama", "unet", "two-tower"}) {
    CAPTURE(name);
    GenerateRequest request{.batch = 2};
    if (std::string(name) == "gnmt" || std::string(name) == "llama") request.layers = 2;
    if (std::string(name) == "gnmt") request.length = 2;
    if (std::string(name) != "gnmt" && std::string(name) != "inception-v3" &&
        std::string(name) != "transformer")
      request.training = true;
    const OpGraph graph = generate_graph(name, request);
    CHECK(graph.marks_steps());
    std::size_t once = 0;
    for (const OpId op : graph.ops()) {
      const Operator& data = graph[op];
      CAPTURE(data.name);
      if (data.per_step) ++once;
      const bool of_step = data.kind == "VarHandleOp" || data.kind == "ReadVariableOp" ||
                           data.kind == "AdamStep" || data.kind.starts_with("ResourceApply") ||
                           data.name.find("learning_rate") != std::string_view::npos ||
                           data.name.find("global_norm") != std::string_view::npos;
      CHECK((!of_step || data.per_step));
      CHECK_FALSE((data.per_step && data.forward.has_value()));
    }
    CHECK(once > 0);
    CHECK(once < graph.num_ops());
  }
}

TEST_CASE("generate: every graph listens to the options it lists, and has costs for every kind") {
  const std::vector<CostedKind> kinds = parse_costed_kinds("gpu=rtx2080,cpu");
  for (const GeneratorEntry& generator : all_generators()) {
    CAPTURE(generator.name);
    GenerateRequest request{.kinds = kinds};
    const std::string options = " " + std::string(generator.options) + " ";
    const auto listens = [&](const char* option) {
      return options.find(" " + std::string(option) + " ") != std::string::npos;
    };
    if (listens("operators")) request.operators = 40;
    if (listens("layers")) request.layers = 2;
    if (listens("length")) request.length = 8;
    if (listens("batch")) request.batch = 2;
    const OpGraph graph = generate_graph(generator.name, request);
    CHECK(graph.name() == generator.name);
    CHECK(graph.num_kinds() == 2);
    CHECK(testing::sums_of(graph, "cpu").one_device > testing::sums_of(graph, "gpu").one_device);
    CHECK(graph.batch_size().has_value() == listens("batch"));
    const std::uint64_t before = testing::checksum(graph);
    CHECK(testing::checksum(generate_graph(generator.name, request)) == before);
    const auto changed = [&](const GenerateRequest& other) {
      return testing::checksum(generate_graph(generator.name, other)) != before;
    };
    GenerateRequest other = request;
    if (listens("operators")) CHECK(changed((other.operators = 50, other)));
    other = request;
    if (listens("layers")) CHECK(changed((other.layers = 3, other)));
    other = request;
    if (listens("length")) CHECK(changed((other.length = 9, other)));
    other = request;
    if (listens("batch")) CHECK(changed((other.batch = 3, other)));
    other = request;
    if (listens("micro-batches")) CHECK(changed((other.micro_batches = 2, other)));
    other = request;
    if (listens("project-at-once")) CHECK(changed((other.project_at_once = true, other)));
    other = request;
    if (listens("seed")) CHECK(changed((other.seed = 7, other)));
    other = request;
    const bool trains = graph.find_kind("gpu").has_value() && testing::sums_of(graph).backward > 0;
    if (listens("training")) CHECK(changed((other.training = !trains, other)));
    GenerateRequest wide = request, narrow = request;  // one of them is the default
    wide.precision = Precision::kFp32;
    narrow.precision = Precision::kFp16;
    CHECK((changed(wide) || changed(narrow)));
  }
}

// A changed sum here means that a graph changed: say so in CHANGELOG.md, since figures that were
// measured on it no longer hold. The sums are the same with every compiler and in every build.
TEST_CASE("generate: graphs are the same, bit for bit, on every platform") {
  const std::pair<std::string_view, std::uint64_t> expected[] = {
      {"chain", 0x462bbe7e46dae88bULL},        {"fork-join", 0xb8e6efd40a1342a4ULL},
      {"layered", 0x81866024cb3a63c0ULL},      {"gnmt", 0xa873d28cb381c134ULL},
      {"inception-v3", 0xbaaebbd20b417b43ULL}, {"transformer", 0x6a5960177be730c5ULL},
      {"llama", 0x5f67724ca46dc213ULL},        {"moe", 0x3fd582d26a27c7bcULL},
      {"unet", 0x7fb5caf43be6013ULL},          {"two-tower", 0x6478b8897c3cb4d5ULL},
  };
  REQUIRE(std::size(expected) == all_generators().size());
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    CHECK(all_generators()[i].name == expected[i].first);
    CAPTURE(expected[i].first);
    CHECK(testing::checksum(generate_graph(expected[i].first)) == expected[i].second);
  }
}

TEST_CASE("generate: devices are kinds and presets, or presets alone") {
  const std::vector<CostedKind> kinds = parse_costed_kinds("gpu=rtx2080,a100");
  REQUIRE(kinds.size() == 2);
  CHECK(kinds[0].kind == "gpu");
  CHECK(kinds[1].kind == "a100");
  CHECK(kinds[1].preset == &device_preset("a100"));
  for (const char* wrong : {"", "gpu=", "=a100", "gpu=rtx2080,", "gpu=a100,gpu=t4", "gpu=rtx1"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(parse_costed_kinds(wrong), InputError);
  }
}

}  // namespace
}  // namespace baechi
