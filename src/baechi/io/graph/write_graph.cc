// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/graph/write_graph.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "baechi/io/json/json_values.h"
#include "baechi/io/json/json_writer.h"

namespace baechi {
namespace {

using Layout = JsonWriter::Layout;

class GraphWriter {
 public:
  GraphWriter(const OpGraph& graph, std::string& out) : graph_(graph), json_(out) {}

  void write() {
    json_.begin_object();
    json_.field("format", "baechi-graph");
    json_.field("version", 1);
    json_.field("name", graph_.name());
    json_.field("memory_mode", memory_mode_name(graph_.memory_mode()));
    if (graph_.batch_size().has_value()) json_.field("batch_size", *graph_.batch_size());
    json_.begin_array("operators");
    for (const OpId op : graph_.ops()) write_operator(op);
    json_.end_array();
    json_.end_object();
    json_.finish();
  }

 private:
  void write_operator(OpId op) {
    const Operator& data = graph_[op];
    json_.begin_object(Layout::kInline);
    json_.field("name", data.name);
    if (!data.kind.empty()) json_.field("kind", data.kind);
    if (data.variable) json_.field("variable", true);
    write_times(op);
    write_memory(data);
    write_outputs(op);
    write_inputs(op);
    write_writes(op);
    write_groups(op);
    if (data.forward.has_value())
      json_.field("forward", graph_[*data.forward].name);
    else if (data.backward)
      json_.field("backward", true);
    if (data.pin.has_value()) json_.field("device", *data.pin);
    if (data.per_step && !data.variable) json_.field("per", "step");
    if (data.random) json_.field("random", true);
    if (!data.recompute) json_.field("recompute", false);
    json_.end_object();
  }

  void write_times(OpId op) {
    json_.begin_object("time");
    for (const KindId kind : graph_.kinds())
      if (const auto time = graph_.times(kind)[op]; time.has_value())
        json_.field(graph_.kind_name(kind), time->count());
    json_.end_object();
  }

  void write_memory(const Operator& data) {
    if (data.variable || (data.permanent == Bytes(0) && data.temporary == Bytes(0))) return;
    json_.begin_object("memory");
    if (data.permanent != Bytes(0)) json_.field("permanent", data.permanent.count());
    if (data.temporary != Bytes(0)) json_.field("temporary", data.temporary.count());
    json_.end_object();
  }

  void write_outputs(OpId op) {
    if (graph_.outputs(op).empty()) return;
    json_.values("outputs", graph_.outputs(op),
                 [&](const TensorId tensor) { return graph_.size(tensor).count(); });
  }

  // Edges by (from, tensor): control edges and data edges alternate, so each kind takes one pass.
  void write_inputs(OpId op) {
    const auto write = [&](const char* field, bool data) {
      bool any = false;
      for (const Edge& edge : graph_.in_edges(op)) {
        if (edge.tensor.has_value() != data) continue;
        if (!any) {
          json_.begin_array(field);
          any = true;
        }
        write_reference(edge);
      }
      if (any) json_.end_array();
    };
    write("inputs", true);
    write("after", false);
  }

  void write_writes(OpId op) {
    const std::span<const Write> all = graph_.writes();
    const auto first = std::ranges::lower_bound(all, op, {}, &Write::op);
    const auto last = std::ranges::upper_bound(all, op, {}, &Write::op);
    if (first == last) return;
    json_.begin_array("writes");
    for (auto write = first; write != last; ++write) json_.value(graph_[write->variable].name);
    json_.end_array();
  }

  void write_reference(const Edge& edge) {
    const std::size_t port =
        edge.tensor.has_value()
            ? edge.tensor->index() - (*graph_.outputs(edge.from).begin()).index()
            : 0;
    if (port == 0) return json_.value(graph_[edge.from].name);
    json_.begin_array();
    json_.value(graph_[edge.from].name);
    json_.value(port);
    json_.end_array();
  }

  void write_groups(OpId op) {
    if (graph_.colocation_names(op).empty()) return;
    json_.values("colocate", graph_.colocation_names(op));
  }

  const OpGraph& graph_;
  JsonWriter json_;
};

}  // namespace

std::string graph_to_json(const OpGraph& graph) {
  std::string text;
  text.reserve(graph.num_ops() * 128 + graph.num_edges() * 16);
  GraphWriter(graph, text).write();
  return text;
}

}  // namespace baechi
