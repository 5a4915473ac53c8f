// SPDX-License-Identifier: Apache-2.0
// A graph taken apart, so that tests can plant faults in it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "baechi/graph/op_graph.h"
#include "baechi/graph/op_graph_builder.h"

namespace baechi::testing {

// A graph taken apart, to be changed and put together again.
struct Draft {
  struct Op {
    std::string name, kind;
    OperatorSpec spec;
    std::vector<std::pair<std::string, Time>> times;
    std::vector<std::string> groups;
    std::vector<Bytes> outputs;
  };
  struct Wire {
    OpId from, to;
    std::optional<std::size_t> port;
  };
  MemoryMode memory_mode;
  std::vector<Op> ops;
  std::vector<Wire> wires;

  explicit Draft(const OpGraph& graph) : memory_mode(graph.memory_mode()) {
    for (const OpId op : graph.ops()) {
      const Operator& old = graph[op];
      Op& draft = ops.emplace_back();
      draft.name = old.name;
      draft.kind = old.kind;
      draft.spec = spec_of(old);
      for (const KindId kind : graph.kinds())
        if (const auto time = graph.times(kind)[op]; time.has_value())
          draft.times.emplace_back(graph.kind_name(kind), *time);
      for (const std::string_view group : graph.colocation_names(op))
        draft.groups.emplace_back(group);
      for (const TensorId tensor : graph.outputs(op)) draft.outputs.push_back(graph.size(tensor));
      for (const Edge& edge : graph.out_edges(op)) {
        std::optional<std::size_t> port;
        if (edge.tensor.has_value())
          port = edge.tensor->index() - (*graph.outputs(op).begin()).index();
        wires.push_back({op, edge.to, port});
      }
    }
  }

  OpGraph build() const {
    OpGraphBuilder builder;
    builder.set_memory_mode(memory_mode);
    for (const Op& op : ops) {
      OperatorSpec spec = op.spec;
      spec.name = op.name;
      spec.kind = op.kind;
      const OpId added = builder.add_operator(spec);
      for (const auto& [kind, time] : op.times) builder.set_time(added, kind, time);
      for (const std::string& group : op.groups) builder.add_to_group(added, group);
      for (const Bytes size : op.outputs) builder.add_output(added, size);
    }
    for (const Wire& wire : wires)
      if (wire.port.has_value())
        builder.connect(*builder.output(wire.from, *wire.port), wire.to);
      else
        builder.add_control_edge(wire.from, wire.to);
    return std::move(builder).build();
  }
};

}  // namespace baechi::testing
