// SPDX-License-Identifier: Apache-2.0
// What it costs to make up a graph, from a model definition to a checked OpGraph.
#include <string>

#include "baechi/generate/generate.h"
#include "bench.h"

namespace baechi::bench {
namespace {

void generate(std::string_view name, const GenerateRequest& request) {
  const std::size_t ops = generate_graph(name, request).num_ops();
  report({.name = std::string(name) + ", " + std::to_string(ops) + " ops", .work = ops}, [&] {
    const OpGraph graph = generate_graph(name, request);
    return Checksum()
        .add(static_cast<std::int64_t>(graph.num_edges()))
        .add(static_cast<std::int64_t>(graph.topological_order().back().value()))
        .value();
  });
}

}  // namespace

void bench_generate() {
  generate("inception-v3", {});
  generate("gnmt", {.length = 40});
  generate("gnmt", {.length = 50});
  generate("transformer", {});
  generate("moe", {.training = true});
  generate("layered", {.operators = 1'000'000});
}

}  // namespace baechi::bench
