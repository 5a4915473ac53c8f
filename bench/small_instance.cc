// SPDX-License-Identifier: Apache-2.0
#include "small_instance.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"

namespace baechi::bench {
namespace {

constexpr std::array kKinds{
    InstanceKind{.name = "short transfers", .transfer_percent = 10},
    InstanceKind{.name = "transfers like operators"},
    InstanceKind{.name = "long transfers", .transfer_percent = 800},
    InstanceKind{.name = "tight memory", .tight = true},
    InstanceKind{.name = "unequal devices", .unequal = true},
};
constexpr std::int64_t kLongest = 1000;   // nanoseconds of an operator
constexpr std::int64_t kLargest = 1'000;  // bytes of a tensor

OpGraph draw_graph(std::size_t num_ops, Random& random) {
  OpGraphBuilder builder("small");
  for (std::size_t i = 0; i < num_ops; ++i) {
    const OpId op = builder.add_operator({.name = "op" + std::to_string(i),
                                          .permanent = Bytes(random.between(0, 4 * kLargest)),
                                          .temporary = Bytes(random.between(0, kLargest))});
    builder.set_time(op, "gpu", Time(random.between(kLongest / 20, kLongest)));
    const TensorId output = builder.add_output(op, Bytes(random.between(1, kLargest)));
    static_cast<void>(output);
    std::vector<std::size_t> parents;
    const std::size_t near = std::min<std::size_t>(i, 4);
    for (std::size_t k = 0; i > 0 && k < 1 + random.below(2); ++k)
      parents.push_back(i - 1 - random.below(near));
    std::ranges::sort(parents);
    parents.erase(std::unique(parents.begin(), parents.end()), parents.end());
    for (const std::size_t parent : parents) builder.connect(*builder.output(OpId(parent), 0), op);
  }
  return std::move(builder).build();
}

}  // namespace

std::span<const InstanceKind> instance_kinds() { return kKinds; }

SmallInstance small_instance(const InstanceKind& kind, std::size_t num_ops, std::size_t num_devices,
                             std::uint64_t seed) {
  Random random(seed * 1'000'003 + num_ops * 64 + num_devices);
  OpGraph graph = draw_graph(num_ops, random);
  Bytes need;
  for (const OpId op : graph.ops())
    need += graph[op].permanent + graph[op].temporary + graph.output_bytes(op);
  const std::int64_t transfer = kLongest * kind.transfer_percent / 100;
  ClusterSpec spec =
      uniform_cluster({.count = num_devices,
                       .capacity = Bytes(1 + need.count() * 2),
                       .latency = Time(transfer / 5),
                       .bandwidth = Bandwidth(kLargest * 1'000'000'000 / (transfer * 4 / 5)),
                       .communication = static_cast<CommunicationMode>(seed % 3)});
  for (std::size_t i = 0; i < num_devices; ++i) {
    if (kind.tight)
      spec.devices[i].capacity = Bytes(need.count() * random.between(110, 150) /
                                       (100 * static_cast<std::int64_t>(num_devices)));
    if (kind.unequal) spec.devices[i].speed = Speed(kFullSpeed.count() >> (i % 3));
  }
  return {std::move(graph), Cluster(std::move(spec))};
}

}  // namespace baechi::bench
