// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/section_cut.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "baechi/bounds/components.h"
#include "baechi/bounds/cut.h"
#include "baechi/graph/op_graph_builder.h"

namespace baechi::bounds {
namespace {

// Names and sizes do not matter: a relaxation has times. `tensors` are those of the whole graph.
OpGraph graph_of(const OpGraph& whole, const std::vector<std::uint32_t>& ops,
                 std::vector<TensorId>& tensors) {
  std::unordered_map<std::uint32_t, OpId> inside;
  OpGraphBuilder builder;
  for (const std::uint32_t op : ops) {
    const OpId added = builder.add_operator({.name = std::to_string(op)});
    builder.set_time(added, kAnyKind, Time(0));
    inside.emplace(op, added);
  }
  for (const std::uint32_t op : ops) {
    std::optional<TensorId> added;
    for (const Edge& edge : whole.out_edges(OpId(op))) {  // by tensor
      const auto to = inside.find(edge.to.value());
      if (to == inside.end()) continue;
      if (!edge.tensor.has_value()) {
        builder.add_control_edge(inside.at(op), to->second);
        continue;
      }
      if (!added.has_value() || tensors.back() != *edge.tensor) {
        added = builder.add_output(inside.at(op), Bytes(0));
        tensors.push_back(*edge.tensor);
      }
      builder.connect(*added, to->second);
    }
  }
  return std::move(builder).build();
}

// What is known of these operators in the whole; the first and the last one take no time.
Relaxation part_of(const Relaxation& whole, const OpGraph& graph,
                   const std::vector<std::uint32_t>& ops, const std::vector<TensorId>& tensors) {
  Relaxation part;
  part.graph = &graph;
  part.num_devices = whole.num_devices;
  part.transfers_queue = whole.transfers_queue;
  part.types = whole.types;
  part.num_links = whole.num_links;
  part.link = whole.link;
  std::unordered_map<std::uint32_t, UnitId> unit;
  for (const std::uint32_t op : ops) {
    const bool end = op == ops.front() || op == ops.back();
    for (std::size_t type = 0; type < whole.num_types(); ++type) {
      const Ns k = whole.time(OpId(op), type);
      part.k.push_back(end && k < kNever ? 0 : k);
    }
    part.k_min.push_back(end ? 0 : whole.k_min[op]);
    const UnitId of_op = whole.unit[OpId(op)];
    const auto [known, added] = unit.emplace(of_op.value(), UnitId(unit.size()));
    part.unit.push_back(known->second);
    if (!added) continue;
    part.held.push_back(whole.held[of_op]);
    part.permanent.push_back(whole.permanent[of_op]);
    part.running.push_back(whole.running[of_op]);
  }
  for (const TensorId tensor : tensors) {
    for (std::size_t link = 0; link < whole.num_links; ++link)
      part.c.push_back(whole.c[tensor.index() * whole.num_links + link]);
    part.c_min.push_back(whole.c_min[tensor.index()]);
  }
  return part;
}

}  // namespace

Ns section_cut(const Relaxation& whole, const Section& section, Ns known) {
  constexpr std::size_t kMostSteps = 8;
  std::vector<std::uint32_t> ops{section.from};
  ops.insert(ops.end(), section.inside.begin(), section.inside.end());
  ops.push_back(section.to);
  std::vector<TensorId> tensors;
  const OpGraph graph = graph_of(*whole.graph, ops, tensors);
  const Relaxation part = part_of(whole, graph, ops, tensors);
  UnionFind forced = forced_together(part);
  const HeadsTails ends = star(part, number(part, forced).of);
  return cut(part, ends, std::max(known, longest(part, ends)), {}, kMostSteps);
}

}  // namespace baechi::bounds
