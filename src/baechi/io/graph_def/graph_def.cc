// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/graph_def/graph_def.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/graph/union_find.h"
#include "baechi/io/graph_def/graph_def_gradients.h"
#include "baechi/io/graph_def/graph_def_loops.h"
#include "baechi/io/graph_def/graph_def_nodes.h"
#include "baechi/io/graph_def/graph_def_operators.h"
#include "baechi/io/graph_def/graph_def_state.h"
#include "baechi/io/text/source_place.h"

namespace baechi {
namespace {

constexpr std::uint64_t kNodeField = 1;    // of GraphDef
constexpr std::uint64_t kDeviceField = 4;  // of NodeDef

class GraphDefReader {
 public:
  GraphDefReader(std::string_view bytes, const std::string& place, std::string_view graph_name,
                 const ModelCosts& costs)
      : bytes_(bytes), place_(place), costs_(costs), builder_(graph_name) {
    batch_ = batch_of(costs);
    unestimated_ = unestimated_kinds(costs);
    for (const ProfileSource& source : costs.profiles)
      for (const OperatorProfile& op : source.profile.operators) measured_[op.name] = &op;
  }

  OpGraph read() {
    read_nodes();
    check_measured();
    resolve_inputs();
    for (const OpId op : ops()) at_node(op, [&] { set_costs(op); });
    for (const OpId op : ops()) at_node(op, [&] { connect(op); });
    colocate();
    pair_gradients(operators_, builder_);
    builder_.set_memory_mode(MemoryMode::kDataflow);
    if (batch_.has_value()) builder_.set_batch_size(*batch_);
    try {
      return std::move(builder_).build();
    } catch (const InputError& error) {
      throw InputError(place_, error.what());
    }
  }

 private:
  using Input = GraphDefInput;
  using Operator = GraphDefOperator;
  using Shape = GraphDefSizes;
  struct Assumed {  // outputs that count as large as the largest input
    OpId op;
    std::vector<std::uint32_t> ports;
  };

  IdRange<OpId> ops() const { return operators_.keys(); }

  template <class Action>
  void at_node(OpId op, const Action& action) const {
    try {
      action();
    } catch (const InputError& error) {
      throw InputError(place_ + ": node '" + printable(operators_[op].node.name, 120) + "'",
                       printable(error.what()));
    }
  }

  void read_nodes();
  void check_measured() const;
  void resolve_inputs();
  Input resolve(std::string_view input) const;
  void set_costs(OpId op);
  Shape known(const GraphDefShape& shape) const;
  std::optional<Shape> measured_shape(const GraphDefNode& node, std::size_t port) const;
  void find_shapes(OpId op);
  void assume_shapes();
  bool assume_shapes(const Assumed& assumed);
  void set_shapes(const Assumed& assumed, std::int64_t elements);
  bool reads_elements(const Operator& op) const;
  Bytes output_size(const Operator& op, std::size_t port) const;
  Bytes variable_size(OpId op) const;
  void connect(OpId op);
  void colocate();

  std::string_view bytes_;
  const std::string& place_;
  const ModelCosts& costs_;
  OpGraphBuilder builder_;
  GraphDefOperators operators_;
  std::set<std::pair<OpId, std::uint32_t>> read_;  // outputs
  IdVector<OpId, Bytes> variable_;  // what readers and writers say of a captured variable
  std::optional<std::int64_t> batch_;
  std::unordered_map<std::string_view, const OperatorProfile*> measured_;
  std::vector<std::string> unestimated_;  // kinds that only profiles have times for
  std::vector<Assumed> assumed_;
  std::set<std::pair<OpId, std::uint32_t>> waiting_;  // outputs whose assumed size is not set yet
};

void GraphDefReader::read_nodes() {
  for (WireReader graph(bytes_, bytes_, place_); graph.next();) {
    if (graph.field() != kNodeField) continue;
    Operator op;
    op.node = read_graph_def_node(graph.message());
    try {
      builder_.add_operator({.name = op.node.name,
                             .kind = op.node.op,
                             .recompute = !has_state_or_chance(op.node.op)});
    } catch (const InputError& error) {
      graph.fail(printable(error.what()));
    }
    operators_.push_back(std::move(op));
  }
  if (operators_.empty()) throw InputError(place_, "the GraphDef has no nodes");
}

void GraphDefReader::check_measured() const {
  std::vector<std::string_view> names;
  for (const Operator& op : operators_) names.push_back(op.node.name);
  check_coverage(names, place_, costs_);
}

GraphDefInput GraphDefReader::resolve(std::string_view input) const {
  const std::string_view all = input;
  const bool control = input.starts_with('^');
  if (control) input.remove_prefix(1);
  std::uint32_t port = 0;
  if (const std::size_t colon = input.rfind(':'); colon != input.npos && !control) {
    const char* const end = input.data() + input.size();
    const auto [stop, error] = std::from_chars(input.data() + colon + 1, end, port);
    if (error != std::errc() || stop != end || port > 1'000'000)
      throw InputError("bad input '" + printable(all, 120) + "'");
    input = input.substr(0, colon);
  }
  const std::optional<OpId> from = builder_.find(input);
  if (!from.has_value())
    throw InputError("its input '" + printable(all, 120) + "' is no node of this graph");
  return {*from, port, control};
}

void GraphDefReader::resolve_inputs() {
  for (const OpId op : ops())
    at_node(op, [&] {
      for (const std::string_view input : operators_[op].node.inputs)
        operators_[op].inputs.push_back(resolve(input));
    });
  for (const OpId op : ops())
    for (const Input& input : operators_[op].inputs)
      if (!input.control) read_.insert({input.from, input.port});
  for (const OpId op : ops()) at_node(op, [&] { find_shapes(op); });
  assume_shapes();
  variable_.assign(operators_.size(), Bytes(0));
  for (const OpId op : ops()) {
    const Operator& user = operators_[op];
    const bool reads = user.node.op == "ReadVariableOp";
    const bool writes = user.node.op.starts_with("Assign") && user.inputs.size() >= 2;
    if (user.inputs.empty() || (!reads && !writes)) continue;
    const Input& value = writes ? user.inputs[1] : Input{op, 0, false};
    if (value.control || operators_[value.from].shapes.size() <= value.port) continue;
    Bytes& size = variable_[user.inputs[0].from];
    at_node(op, [&] { size = std::max(size, output_size(operators_[value.from], value.port)); });
  }
}

GraphDefSizes GraphDefReader::known(const GraphDefShape& shape) const {
  if (shape.unknown_rank)
    throw InputError(
        "an output has no known shape, not even a rank: say it where the output is made, with "
        "tf.ensure_shape, or give measured costs");
  Shape sizes = shape.sizes;
  for (std::int64_t& size : sizes) {
    if (size >= 0) continue;
    if (!batch_.has_value())
      throw InputError("the shape of an output has an open dimension: give it with " +
                       batch_to_give(costs_.in_python));
    size = *batch_;
  }
  return sizes;
}

// The elements in a row: what is left of a shape that only a measured size tells.
std::optional<GraphDefSizes> GraphDefReader::measured_shape(const GraphDefNode& node,
                                                            std::size_t port) const {
  const auto found = measured_.find(node.name);
  if (found == measured_.end()) return std::nullopt;
  const std::optional<Bytes> size = measured_output(*found->second, port);
  if (!size.has_value()) return std::nullopt;
  const std::int64_t element = element_bytes(output_type(node, port));
  return Shape{size->count() / element + (size->count() % element != 0 ? 1 : 0)};
}

void GraphDefReader::find_shapes(OpId id) {
  Operator& op = operators_[id];
  const GraphDefAttributes& attributes = op.node.attributes;
  for (std::size_t port = 0; port < attributes.output_shapes.size(); ++port) {
    const GraphDefShape& shape = attributes.output_shapes[port];
    const bool is_open = shape.unknown_rank || std::any_of(shape.sizes.begin(), shape.sizes.end(),
                                                           [](auto size) { return size < 0; });
    std::optional<Shape> sizes;
    if (element_bytes(output_type(op.node, port)) == 0)
      sizes = Shape{};  // a handle: nothing is moved, whatever the shape
    else if (is_open)
      sizes = measured_shape(op.node, port);
    if (!sizes.has_value() && shape.unknown_rank &&
        !read_.contains({id, static_cast<std::uint32_t>(port)}))
      sizes = Shape{0};  // nobody reads it
    if (!sizes.has_value() && shape.unknown_rank && reads_elements(op)) {
      if (assumed_.empty() || assumed_.back().op != id) assumed_.push_back({id, {}});
      assumed_.back().ports.push_back(static_cast<std::uint32_t>(port));
      waiting_.insert({id, static_cast<std::uint32_t>(port)});
      sizes = Shape{};
    }
    op.shapes.push_back(sizes.has_value() ? *std::move(sizes) : known(shape));
  }
  if (op.shapes.empty() && attributes.shape.has_value())
    op.shapes.push_back(known(*attributes.shape));
}

// The rank of an output can depend on values, as that of a gradient which is summed over whatever
// was broadcast does. Then it has as many elements as the largest input, which is an upper bound
// for sums and all that goes element by element.
void GraphDefReader::assume_shapes() {
  std::vector<Assumed> open = assumed_;
  while (std::erase_if(open, [&](const Assumed& assumed) { return assume_shapes(assumed); }) > 0) {
  }
  for (const Assumed& assumed : open) set_shapes(assumed, 0);  // a cycle, which build() names
  if (assumed_.empty()) return;
  const std::string first = printable(in_quotes(operators_[assumed_.front().op].node.name), 120);
  const std::size_t more = assumed_.size() - 1;
  builder_.add_note(
      first +
      (more == 0 ? " has an output" : " and " + std::to_string(more) + " more have outputs") +
      " whose rank is unknown until the step runs: each counts as large as the largest input. "
      "Measured costs have the true size");
}

bool GraphDefReader::reads_elements(const Operator& op) const {
  return std::ranges::any_of(op.inputs, [&](const Input& input) {
    return !input.control &&
           element_bytes(output_type(operators_[input.from].node, input.port)) > 0;
  });
}

// False while an input waits for its own.
bool GraphDefReader::assume_shapes(const Assumed& assumed) {
  const Operator& op = operators_[assumed.op];
  std::int64_t most = 0;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    const Shape* const sizes = input_sizes(operators_, op, i);
    if (sizes == nullptr) continue;
    if (waiting_.contains({op.inputs[i].from, op.inputs[i].port})) return false;
    most = std::max(most, element_count(*sizes));
  }
  set_shapes(assumed, most);
  return true;
}

void GraphDefReader::set_shapes(const Assumed& assumed, std::int64_t elements) {
  for (const std::uint32_t port : assumed.ports) {
    operators_[assumed.op].shapes[port] = Shape{elements};
    waiting_.erase({assumed.op, port});
  }
}

Bytes GraphDefReader::output_size(const Operator& op, std::size_t port) const {
  if (op.node.op == "VariableV2" || op.node.op == "Variable") return Bytes(0);  // a reference
  return Bytes(element_bytes(output_type(op.node, port))) * element_count(op.shapes[port]);
}

Bytes GraphDefReader::variable_size(OpId op) const {
  const GraphDefNode& node = operators_[op].node;
  if (node.op != "VarHandleOp" && node.op != "VariableV2" && node.op != "Variable")
    return variable_[op];
  if (!node.attributes.shape.has_value()) return variable_[op];
  return Bytes(element_bytes(node.attributes.type)) * element_count(known(*node.attributes.shape));
}

void GraphDefReader::set_costs(OpId id) {
  Operator& op = operators_[id];
  builder_.set_permanent(id, variable_size(id));
  Bytes moved;
  for (std::size_t port = 0; port < op.shapes.size(); ++port) {
    const Bytes size = output_size(op, port);
    builder_.add_output(id, size);
    moved += size;
  }
  for (std::size_t i = 0; i < op.inputs.size(); ++i)
    if (input_sizes(operators_, op, i) != nullptr)
      moved += output_size(operators_[op.inputs[i].from], op.inputs[i].port);
  const bool runs = runs_a_kernel(op.node.op);
  op.flops = runs ? flops_of(operators_, op) : 0;
  const Work work{.flops = op.flops, .bytes = moved, .kernel = runs};
  for (const CostedKind& kind : costs_.kinds)
    builder_.set_time(id, kind.kind,
                      op.node.op == "NoOp" ? Time(0) : roofline_time(*kind.preset, work));
  for (const std::string& kind : unestimated_) builder_.set_time(id, kind, Time(0));
}

void GraphDefReader::connect(OpId op) {
  for (const Input& input : operators_[op].inputs) {
    if (input.control) {
      builder_.add_control_edge(input.from, op);
      continue;
    }
    const std::optional<TensorId> tensor = builder_.output(input.from, input.port);
    if (!tensor.has_value())
      throw InputError("output " + std::to_string(input.port) + " of '" +
                       std::string(operators_[input.from].node.name) +
                       "' has no shape: export the graph with as_graph_def(add_shapes=True)");
    builder_.connect(*tensor, op);
  }
}

void GraphDefReader::colocate() {
  UnionFind sets(operators_.size());
  std::unordered_map<std::string_view, OpId> other_names;  // that no node has
  for (const OpId op : ops()) {
    for (const std::string_view name : operators_[op].node.attributes.colocated_with) {
      const OpId with = builder_.find(name).value_or(other_names.emplace(name, op).first->second);
      sets.unite(op.value(), with.value());
    }
    for (const Input& input : operators_[op].inputs) {
      if (input.control) continue;
      const GraphDefNode& from = operators_[input.from].node;
      const DataType type = output_type(from, input.port);
      if (type == DataType::kResource || from.op == "VariableV2" || from.op == "Variable")
        sets.unite(op.value(), input.from.value());
    }
  }
  IdVector<OpId, std::uint32_t> members(operators_.size(), 0);
  for (const OpId op : ops()) ++members[OpId(sets.find(op.value()))];
  for (const OpId op : ops()) {
    const OpId root(sets.find(op.value()));
    if (members[root] > 1) builder_.add_to_group(op, operators_[root].node.name);
  }
}

}  // namespace

bool looks_like_saved_model(std::string_view bytes) {
  const std::string place;
  try {
    WireReader model(bytes, bytes, place);
    if (!model.next() || model.field() != 1 || model.type() != WireReader::Type::kVarint ||
        model.integer() != 1 || !model.next() || model.field() != 2)
      return false;
    WireReader meta_graph = model.message();  // its meta_info_def, then its graph_def
    return meta_graph.next() && meta_graph.field() == 1 && meta_graph.message().next() &&
           meta_graph.next() && meta_graph.field() == 2;
  } catch (const InputError&) {
    return false;
  }
}

bool looks_like_graph_def(std::string_view bytes) {
  const std::string place;
  try {
    WireReader graph(bytes, bytes, place);
    if (!graph.next() || graph.field() != kNodeField) return false;
    WireReader node = graph.message();
    return node.next() && node.field() == 1 && !node.bytes().empty() && node.next() &&
           node.field() == 2 && !node.bytes().empty();
  } catch (const InputError&) {
    return false;
  }
}

OpGraph parse_graph_def(std::string_view bytes, const std::string& place,
                        std::string_view graph_name, const ModelCosts& costs) {
  if (costs.empty())
    throw InputError(place,
                     "a TensorFlow graph has no costs: name devices to estimate them for, as in " +
                         costs_to_give(costs.in_python) + ", or the file of a profile");
  const GraphDefLoops loops = loops_of_graph_def(bytes, place);
  if (loops.empty()) return GraphDefReader(bytes, place, graph_name, costs).read();
  const std::string folded = fold_loops(bytes, place, loops);
  return GraphDefReader(folded, place, graph_name, costs).read();
}

std::string set_graph_def_devices(
    std::string_view bytes, const std::string& place,
    const std::function<std::string(std::string_view node)>& device_of) {
  std::string result, node;
  result.reserve(bytes.size() + bytes.size() / 8);
  for (WireReader graph(bytes, bytes, place); graph.next();) {
    if (graph.field() != kNodeField) {
      result += graph.raw();
      continue;
    }
    node.clear();
    std::string_view name;
    for (WireReader message = graph.message(); message.next();) {
      if (message.field() == 1) name = message.bytes();
      if (message.field() != kDeviceField) node += message.raw();
    }
    append_bytes_field(node, kDeviceField, device_of(name));
    append_bytes_field(result, kNodeField, node);
  }
  return result;
}

}  // namespace baechi
