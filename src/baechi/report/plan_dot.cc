// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/plan_dot.h"

#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "baechi/base/short_text.h"
#include "baechi/io/write_dot.h"

namespace baechi {
namespace {

constexpr std::size_t kMostParts = 16;  // of a name

// The first `parts` parts of a name; all of it when it has no more.
std::string_view beginning(std::string_view name, std::size_t parts) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < parts; ++i) {
    at = name.find_first_of("/.", at);
    if (at == std::string_view::npos) return name;
    ++at;
  }
  return at == 0 ? std::string_view("all") : name.substr(0, at - 1);
}

struct Part {  // operators of one device whose names begin alike
  std::size_t operators = 0;
  Time time;
};
using PartKey = std::pair<DeviceId, std::string_view>;

class PartsDot {
 public:
  PartsDot(const OpGraph& graph, const Plan& plan, std::size_t parts)
      : graph_(graph), plan_(plan), parts_(parts) {
    for (const OpId op : graph.ops()) {
      const OpSlot& slot = plan.schedule.slots[op];
      Part& part = nodes_[key(op)];
      ++part.operators;
      part.time += slot.end - slot.start;
    }
  }

  std::size_t size() const { return nodes_.size(); }

  std::string write() {
    std::string text = "digraph " + dot_text(graph_.name()) +
                       " {\n  rankdir=TB;\n  node [shape=box, style=\"rounded,filled\"];\n";
    std::map<PartKey, std::size_t> number;
    for (std::size_t d = 0; d < plan_.cluster.devices.size(); ++d) {
      text += "  subgraph cluster_" + std::to_string(d) +
              " {\n    label=" + dot_text(plan_.cluster.devices[d].name) + ";\n";
      for (const auto& [key, part] : nodes_)
        if (key.first.index() == d) text += node(key, part, number);
      text += "  }\n";
    }
    return text + edges(number) + "}\n";
  }

 private:
  PartKey key(OpId op) const {
    return {plan_.schedule.slots[op].device, beginning(graph_[op].name, parts_)};
  }

  static std::string node(const PartKey& key, const Part& part,
                          std::map<PartKey, std::size_t>& number) {
    const std::size_t n = number.size();
    number.emplace(key, n);
    return "    n" + std::to_string(n) + " [label=" +
           dot_text(std::string(key.second) + "\n" + std::to_string(part.operators) +
                    " operators, " + short_text(part.time)) +
           ", fillcolor=" + dot_text(dot_fill(key.first)) + "];\n";
  }

  // A tensor with several readers in one part counts once.
  std::string edges(const std::map<PartKey, std::size_t>& number) const {
    std::map<std::pair<std::size_t, std::size_t>, Bytes> carried;
    for (const OpId op : graph_.ops()) {
      const std::size_t from = number.at(key(op));
      std::map<std::pair<TensorId, std::size_t>, bool> seen;
      for (const Edge& edge : graph_.out_edges(op)) {
        const std::size_t to = number.at(key(edge.to));
        if (to == from) continue;
        Bytes& bytes = carried[{from, to}];
        if (edge.tensor.has_value() && seen.emplace(std::pair(*edge.tensor, to), true).second)
          bytes += graph_.size(*edge.tensor);
      }
    }
    std::string text;
    for (const auto& [ends, bytes] : carried)
      text += "  n" + std::to_string(ends.first) + " -> n" + std::to_string(ends.second) +
              (bytes > Bytes(0) ? " [label=" + dot_text(short_text(bytes)) + "];\n"
                                : " [style=dotted];\n");
    return text;
  }

  const OpGraph& graph_;
  const Plan& plan_;
  std::size_t parts_;
  std::map<PartKey, Part> nodes_;
};

}  // namespace

std::string plan_dot(const OpGraph& graph, const Plan& plan, std::size_t max_nodes) {
  if (graph.num_ops() <= max_nodes) {
    const Placement placement = placement_of(plan.schedule);
    return graph_to_dot(graph, {.placement = &placement, .cluster = &plan.cluster});
  }
  for (std::size_t parts = kMostParts; parts > 0; --parts)
    if (PartsDot dot(graph, plan, parts); dot.size() <= max_nodes) return dot.write();
  return PartsDot(graph, plan, 0).write();
}

}  // namespace baechi
