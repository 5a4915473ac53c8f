// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/picture/plan_dot.h"

#include "baechi/base/short_text.h"
#include "baechi/io/graph/write_dot.h"
#include "baechi/report/picture/plan_picture.h"

namespace baechi {
namespace {

std::string number(std::size_t node) { return "n" + std::to_string(node); }

std::string parts_dot(const OpGraph& graph, const Plan& plan, const PlanPicture& picture) {
  std::string text = "digraph " + dot_text(graph.name()) +
                     " {\n  rankdir=TB;\n  node [shape=box, style=\"rounded,filled\"];\n";
  for (std::size_t d = 0; d < plan.cluster.devices.size(); ++d) {
    text += "  subgraph cluster_" + std::to_string(d) +
            " {\n    label=" + dot_text(plan.cluster.devices[d].name) + ";\n";
    for (std::size_t i = 0; i < picture.nodes.size(); ++i) {
      const PictureNode& node = picture.nodes[i];
      if (node.device.index() != d) continue;
      text += "    " + number(i) + " [label=" +
              dot_text(node.name + "\n" + std::to_string(node.operators) + " operators, " +
                       short_text(node.time)) +
              ", fillcolor=" + dot_text(dot_fill(node.device)) + "];\n";
    }
    text += "  }\n";
  }
  for (const PictureEdge& edge : picture.edges)
    text += "  " + number(edge.from) + " -> " + number(edge.to) +
            (edge.bytes > Bytes(0) ? " [label=" + dot_text(short_text(edge.bytes)) + "];\n"
                                   : " [style=dotted];\n");
  return text + "}\n";
}

}  // namespace

std::string plan_dot(const OpGraph& graph, const Plan& plan, std::size_t max_nodes) {
  if (graph.num_ops() > max_nodes)
    return parts_dot(graph, plan, plan_parts(graph, plan, max_nodes));
  const Placement placement = placement_of(plan.schedule);
  return graph_to_dot(graph, {.placement = &placement, .cluster = &plan.cluster});
}

}  // namespace baechi
