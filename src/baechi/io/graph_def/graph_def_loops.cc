// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/graph_def/graph_def_loops.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "baechi/io/graph_def/graph_def_nodes.h"
#include "baechi/io/protobuf/wire_reader.h"

namespace baechi {
namespace {

constexpr std::uint64_t kNode = 1;                                       // of GraphDef
constexpr std::uint64_t kName = 1, kOp = 2, kInput = 3, kAttribute = 5;  // of NodeDef
constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

// "node", "node:2" or "^node" in parts.
struct Input {
  std::string_view name, port;
  bool control;
};
Input parts_of(std::string_view text) {
  const bool control = text.starts_with('^');
  if (control) text.remove_prefix(1);
  const std::size_t colon = control ? text.npos : text.rfind(':');
  if (colon == text.npos) return {text, "0", control};
  return {text.substr(0, colon), text.substr(colon + 1), control};
}

// The nodes by index, and what each reads.
struct Nodes {
  std::vector<GraphDefNode> all;
  std::vector<std::vector<std::size_t>> inputs;
};

Nodes read_nodes(std::string_view bytes, const std::string& place) {
  Nodes nodes;
  std::unordered_map<std::string_view, std::size_t> index;
  for (WireReader graph(bytes, bytes, place); graph.next();)
    if (graph.field() == kNode) {
      nodes.all.push_back(read_graph_def_node(graph.message()));
      index.emplace(nodes.all.back().name, nodes.all.size() - 1);
    }
  for (const GraphDefNode& node : nodes.all) {
    std::vector<std::size_t>& inputs = nodes.inputs.emplace_back();
    for (const std::string_view text : node.inputs)
      if (const auto from = index.find(parts_of(text).name); from != index.end())
        inputs.push_back(from->second);
  }
  return nodes;
}

// What a loop carries without asking for it in its condition is a cycle of its own. It turns when
// the condition says so, and only together with the others: let the condition wait for it.
void join_variables(Nodes& nodes) {
  for (std::size_t node = 0; node < nodes.all.size(); ++node) {
    const std::vector<std::size_t> inputs = nodes.inputs[node];  // the value, whether to go on
    if (!nodes.all[node].op.ends_with("Switch") || inputs.size() < 2) continue;
    if (nodes.all[inputs[0]].op.ends_with("Merge") && nodes.all[inputs[1]].op == "LoopCond")
      nodes.inputs[inputs[1]].push_back(inputs[0]);
  }
}

// Strongly connected components, after Tarjan, without recursion. Calls use(members) for each that
// has several.
template <class Use>
void each_cycle(const std::vector<std::vector<std::size_t>>& inputs, const Use& use) {
  std::vector<std::size_t> order(inputs.size(), kNone), low(inputs.size()), open;
  std::vector<bool> is_open(inputs.size(), false);
  std::vector<std::pair<std::size_t, std::size_t>> path;  // a node, and its next input
  std::size_t count = 0;
  for (std::size_t root = 0; root < inputs.size(); ++root) {
    if (order[root] != kNone) continue;
    path.emplace_back(root, 0);
    while (!path.empty()) {
      const std::size_t node = path.back().first;
      if (order[node] == kNone) {
        order[node] = low[node] = count++;
        open.push_back(node);
        is_open[node] = true;
      }
      if (path.back().second < inputs[node].size()) {
        const std::size_t next = inputs[node][path.back().second++];
        if (order[next] == kNone)
          path.emplace_back(next, 0);
        else if (is_open[next])
          low[node] = std::min(low[node], order[next]);
        continue;
      }
      path.pop_back();
      if (!path.empty()) low[path.back().first] = std::min(low[path.back().first], low[node]);
      if (low[node] != order[node]) continue;
      const auto first = std::find(open.rbegin(), open.rend(), node).base() - 1;
      const std::vector<std::size_t> members(first, open.end());
      open.erase(first, open.end());
      for (const std::size_t member : members) is_open[member] = false;
      if (members.size() > 1) use(members);
    }
  }
}

// The name of a cycle as a loop; none for one that TensorFlow would not run.
std::string_view name_of(const Nodes& nodes, const std::vector<std::size_t>& members) {
  std::string_view name;
  bool repeats = false;
  std::size_t first = kNone;
  for (const std::size_t member : members) {
    const GraphDefNode& node = nodes.all[member];
    repeats |= node.op.ends_with("NextIteration");  // RefNextIteration too
    if (node.op == "LoopCond" && member < first) {
      first = member;
      name = node.name;
    }
  }
  return repeats ? name : std::string_view();
}

// Enters that only their loop reads, and the Exits, are part of it.
void add_gates(const Nodes& nodes, std::vector<std::string_view>& loop) {
  constexpr std::string_view kSeveral;  // no node has this name
  std::vector<std::string_view> reader(nodes.all.size());
  std::vector<bool> is_read(nodes.all.size(), false);
  for (std::size_t node = 0; node < nodes.all.size(); ++node)
    for (const std::size_t input : nodes.inputs[node]) {
      reader[input] = is_read[input] && reader[input] != loop[node] ? kSeveral : loop[node];
      is_read[input] = true;
    }
  for (std::size_t node = 0; node < nodes.all.size(); ++node) {
    if (!loop[node].empty()) continue;
    const std::string_view op = nodes.all[node].op;
    if (op.ends_with("Enter")) loop[node] = reader[node];
    if (op.ends_with("Exit") && !nodes.inputs[node].empty())
      loop[node] = loop[nodes.inputs[node].front()];
  }
}

// What others read of a loop: a port for each output of a member.
struct Folded {
  std::vector<std::string> data, controls;  // inputs
  std::unordered_set<std::string> inputs;   // both
  std::unordered_map<std::string, std::size_t> ports;
  std::string shapes, types;  // of the ports, encoded as AttrValue has them
};

std::string encoded(const GraphDefShape& shape) {
  std::string text;
  for (const std::int64_t size : shape.sizes) {
    std::string dimension;
    append_varint(dimension, 1 << 3);
    append_varint(dimension, static_cast<std::uint64_t>(size));
    append_bytes_field(text, 2, dimension);
  }
  if (shape.unknown_rank) {
    append_varint(text, 3 << 3);
    append_varint(text, 1);
  }
  return text;
}

using NodesByName = std::unordered_map<std::string_view, const GraphDefNode*>;

std::size_t number_of(std::string_view port) {
  std::size_t number = 0;
  for (const char digit : port.substr(0, 6))
    if (digit >= '0' && digit <= '9') number = 10 * number + static_cast<std::size_t>(digit - '0');
  return number;
}

// The shape of an output. What a loop carries often has none in the file: it has that of the value
// before the first step, which an Exit finds behind its Switch, Merge and Enter.
GraphDefShape shape_of(const NodesByName& by_name, const GraphDefNode* node, std::size_t port) {
  constexpr int kToTheOutside = 4;
  for (int step = 0; step <= kToTheOutside; ++step) {
    const std::vector<GraphDefShape>& shapes = node->attributes.output_shapes;
    if (port < shapes.size() && !shapes[port].unknown_rank) return shapes[port];
    if (node->inputs.empty()) break;
    const Input input = parts_of(node->inputs.front());
    const auto before = by_name.find(input.name);
    if (input.control || before == by_name.end()) break;
    node = before->second;
    port = number_of(input.port);
  }
  return {.sizes = {}, .unknown_rank = true};
}

std::size_t port_of(Folded& loop, const NodesByName& by_name, const Input& input) {
  const GraphDefNode* const node = by_name.at(input.name);
  const auto [place, is_new] = loop.ports.try_emplace(
      std::string(input.name) + ":" + std::string(input.port), loop.ports.size());
  if (!is_new) return place->second;
  const std::size_t port = number_of(input.port);
  append_bytes_field(loop.shapes, 7, encoded(shape_of(by_name, node, port)));
  append_varint(loop.types, 6 << 3);
  append_varint(loop.types, static_cast<std::uint64_t>(output_type(*node, port)));
  return place->second;
}

void append_list(std::string& node, std::string_view key, const std::string& list) {
  std::string value, entry;
  append_bytes_field(value, 1, list);
  append_bytes_field(entry, 1, key);
  append_bytes_field(entry, 2, value);
  append_bytes_field(node, kAttribute, entry);
}

std::string while_node(std::string_view name, const Folded& loop) {
  std::string node;
  append_bytes_field(node, kName, name);
  append_bytes_field(node, kOp, "While");
  for (const std::string& input : loop.data) append_bytes_field(node, kInput, input);
  for (const std::string& input : loop.controls) append_bytes_field(node, kInput, input);
  if (!loop.ports.empty()) append_list(node, "_output_shapes", loop.shapes);
  if (!loop.ports.empty()) append_list(node, "output_types", loop.types);
  return node;
}

}  // namespace

GraphDefLoops loops_of_graph_def(std::string_view bytes, const std::string& place) {
  GraphDefLoops loops;
  if (bytes.find("NextIteration") == bytes.npos) return loops;
  Nodes nodes = read_nodes(bytes, place);
  join_variables(nodes);
  std::vector<std::string_view> loop(nodes.all.size());
  each_cycle(nodes.inputs, [&](const std::vector<std::size_t>& members) {
    const std::string_view name = name_of(nodes, members);
    for (const std::size_t member : members) loop[member] = name;
  });
  add_gates(nodes, loop);
  for (std::size_t node = 0; node < nodes.all.size(); ++node)
    if (!loop[node].empty()) loops.emplace(nodes.all[node].name, loop[node]);
  return loops;
}

std::string fold_loops(std::string_view bytes, const std::string& place,
                       const GraphDefLoops& loops) {
  const Nodes nodes = read_nodes(bytes, place);
  NodesByName by_name;
  for (const GraphDefNode& node : nodes.all) by_name.emplace(node.name, &node);
  std::unordered_map<std::string_view, Folded> folded;
  // An input as it is once loops are nodes; empty within one loop.
  const auto renamed = [&](std::string_view text, std::string_view reader) {
    const Input input = parts_of(text);
    const auto from = loops.find(input.name);
    if (from == loops.end()) return std::string(text);
    if (from->second == reader) return std::string();
    if (input.control) return "^" + std::string(from->second);
    const std::size_t port = port_of(folded[from->second], by_name, input);
    return std::string(from->second) + ":" + std::to_string(port);
  };
  std::vector<std::string> others;
  std::size_t index = 0;
  for (WireReader graph(bytes, bytes, place); graph.next();) {
    if (graph.field() != kNode) continue;
    const GraphDefNode& node = nodes.all[index++];
    if (const auto loop = loops.find(node.name); loop != loops.end()) {
      for (const std::string_view text : node.inputs)
        if (const std::string input = renamed(text, loop->second); !input.empty()) {
          Folded& made = folded[loop->second];
          if (made.inputs.insert(input).second)
            (text.starts_with('^') ? made.controls : made.data).push_back(input);
        }
      continue;
    }
    std::string& kept = others.emplace_back();
    for (WireReader message = graph.message(); message.next();) {
      if (message.field() == kInput)
        append_bytes_field(kept, kInput, renamed(message.bytes(), {}));
      else
        kept += message.raw();
    }
  }
  std::string result;
  std::size_t next = 0;
  for (const GraphDefNode& node : nodes.all) {
    const auto loop = loops.find(node.name);
    if (loop == loops.end())
      append_bytes_field(result, kNode, others[next++]);
    else if (loop->second == node.name)
      append_bytes_field(result, kNode, while_node(node.name, folded[node.name]));
  }
  return result;
}

}  // namespace baechi
