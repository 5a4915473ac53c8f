// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/graph/write_dot.h"

#include <array>
#include <vector>

#include "baechi/base/short_text.h"

namespace baechi {
namespace {

// Eight light fills that stay apart in print and for most colour-blind readers.
constexpr std::array<std::string_view, 8> kFills{"#a6cee3", "#fdbf6f", "#b2df8a", "#fb9a99",
                                                 "#cab2d6", "#ffff99", "#c7e9e4", "#e0e0e0"};

class DotWriter {
 public:
  DotWriter(const OpGraph& graph, const PlacementColors& colors) : graph_(graph), colors_(colors) {}

  std::string write() {
    out_ = "digraph " + dot_text(graph_.name()) +
           " {\n  rankdir=TB;\n  node [shape=box, style=\"rounded,filled\", fillcolor=white];\n";
    for (const GroupId group : graph_.groups()) {
      if (graph_.members(group).size() < 2) continue;
      out_ += "  subgraph cluster_" + std::to_string(group.value()) +
              " {\n    style=dashed;\n    label=" +
              dot_text(graph_.colocation_names(graph_.members(group).front()).front()) + ";\n";
      for (const OpId op : graph_.members(group)) out_ += "    " + node(op) + ";\n";
      out_ += "  }\n";
    }
    for (const OpId op : graph_.ops()) write_node(op);
    for (const OpId op : graph_.ops())
      for (const Edge& edge : graph_.out_edges(op)) write_edge(edge);
    return out_ + "}\n";
  }

 private:
  static std::string node(OpId op) { return "n" + std::to_string(op.value()); }

  void write_node(OpId op) {
    std::string label(graph_[op].name);
    if (!graph_[op].kind.empty()) label += "\n" + std::string(graph_[op].kind);
    for (const KindId kind : graph_.kinds())
      if (const auto time = graph_.times(kind)[op]; time.has_value())
        label +=
            "\n" +
            (graph_.kind_name(kind) == kAnyKind ? "" : std::string(graph_.kind_name(kind)) + " ") +
            short_text(*time);
    std::string fill;
    if (colors_.placement != nullptr) {
      const DeviceId device = (*colors_.placement)[op];
      if (colors_.cluster != nullptr) label += "\n" + colors_.cluster->devices[device.index()].name;
      fill = ", fillcolor=" + dot_text(dot_fill(device));
    }
    out_ += "  " + node(op) + " [label=" + dot_text(label) + fill + "];\n";
  }

  void write_edge(const Edge& edge) {
    out_ += "  " + node(edge.from) + " -> " + node(edge.to);
    if (edge.tensor.has_value())
      out_ += " [label=" + dot_text(short_text(graph_.size(*edge.tensor))) + "];\n";
    else
      out_ += " [style=dotted];\n";
  }

  const OpGraph& graph_;
  const PlacementColors& colors_;
  std::string out_;
};

}  // namespace

std::string dot_text(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (c == '\n')
      result += "\\n";
    else
      result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return result + "\"";
}

std::string_view dot_fill(DeviceId device) { return kFills[device.index() % kFills.size()]; }

std::string graph_to_dot(const OpGraph& graph, const PlacementColors& colors) {
  return DotWriter(graph, colors).write();
}

}  // namespace baechi
