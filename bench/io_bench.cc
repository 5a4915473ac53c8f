// SPDX-License-Identifier: Apache-2.0
// Building a graph of a million operators, writing it as graph.json and reading it back: time, and
// the memory that each takes. "io_large" reads a file of a gigabyte.

#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/io/graph/read_graph.h"
#include "baechi/io/graph/write_graph.h"
#include "baechi/io/text/text_file.h"
#include "bench.h"

namespace baechi::bench {
namespace {

constexpr std::size_t kOpsInMillion = 1'000'000;

// Names like a framework's, three inputs each, one output, a group for every tenth operator.
OpGraph build_graph(std::size_t num_ops) {
  OpGraphBuilder builder("million");
  builder.reserve(num_ops, 3 * num_ops);
  Random random(1);
  std::string name;
  for (std::size_t i = 0; i < num_ops; ++i) {
    name = "model/layer_" + std::to_string(i / 100) + "/block/op_" + std::to_string(i);
    const OpId op =
        builder.add_operator({.name = name,
                              .kind = i % 3 == 0 ? "MatMul" : "Add",
                              .permanent = Bytes(static_cast<std::int64_t>(i % 7) * 4096),
                              .backward = i % 2 == 1});
    builder.set_time(op, "gpu", Time(1000 + static_cast<std::int64_t>(random.below(100'000))));
    builder.add_output(op, Bytes(static_cast<std::int64_t>(random.below(1 << 20))));
    if (i % 10 == 0) builder.add_to_group(op, "group_" + std::to_string(i / 100));
    if (i < 3) continue;
    const std::size_t window = std::min<std::size_t>(i, 200);
    std::size_t last = i;
    for (int input = 0; input < 3; ++input) {
      std::size_t from = i - 1 - random.below(window);
      if (from == last) from = from == 0 ? 1 : from - 1;
      last = from;
      builder.connect(*builder.output(OpId(from), 0), op);
    }
  }
  return std::move(builder).build();
}

std::uint64_t checksum(const OpGraph& graph) {
  Checksum sum;
  sum.add(static_cast<std::int64_t>(graph.num_edges()));
  for (const OpId op : graph.topological_order()) sum.add(static_cast<std::int64_t>(op.value()));
  for (const TensorId tensor : graph.tensors()) sum.add(graph.size(tensor).count());
  return sum.value();
}

}  // namespace

void bench_io() {
  constexpr std::size_t kItems = 4 * kOpsInMillion;
  const double build_memory = peak_memory([] { build_graph(kOpsInMillion); });
  print_memory("build 1M ops 3M edges: peak memory", build_memory, kItems, "bytes per op + edge");
  report({.name = "build 1M ops 3M edges", .work = kItems, .repeats = 3},
         [] { return checksum(build_graph(kOpsInMillion)); });

  std::string text;
  std::uint64_t expected = 0;
  {
    const OpGraph graph = build_graph(kOpsInMillion);
    expected = checksum(graph);
    report({.name = "write graph.json, 1M ops", .work = kItems, .repeats = 3}, [&] {
      text = graph_to_json(graph);
      return static_cast<std::uint64_t>(text.size());
    });
  }
  const std::string megabytes = std::to_string(text.size() / 1'000'000) + " MB";
  // The time is per byte: 5 ns each is 200 MB/s.
  report({.name = "read graph.json, 1M ops, " + megabytes, .work = text.size(), .repeats = 3}, [&] {
    const std::uint64_t found = checksum(parse_graph(text, "bench"));
    return found == expected ? found : 0;
  });
}

void bench_io_large() {
  const std::string path = "/tmp/baechi_io_bench_" + std::to_string(getpid()) + ".json";
  std::size_t size = 0;
  {
    const std::string text = graph_to_json(build_graph(4'200'000));
    size = text.size();
    write_text_file(path, text);
  }
  const std::string name = "read_graph, " + std::to_string(size / 1'000'000) + " MB file";
  double seconds = 0;
  const double memory = peak_memory([&] { read_graph(path); });
  const double before = cpu_seconds();
  const std::uint64_t found = checksum(read_graph(path));
  seconds = cpu_seconds() - before;
  print_memory(name + ": peak memory", memory, static_cast<double>(size), "times the file");
  std::printf("%-58s %10.0f MB/s  %016llx\n", name.c_str(),
              static_cast<double>(size) / seconds / 1e6, static_cast<unsigned long long>(found));
  std::remove(path.c_str());
}

}  // namespace baechi::bench
