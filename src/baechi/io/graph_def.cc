// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/graph_def.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/graph/union_find.h"
#include "baechi/io/graph_def_nodes.h"
#include "baechi/io/source_place.h"

namespace baechi {
namespace {

constexpr std::uint64_t kNodeField = 1;    // of GraphDef
constexpr std::uint64_t kDeviceField = 4;  // of NodeDef

using Shape = std::vector<std::int64_t>;

std::int64_t product(const Shape& shape) {
  Bytes elements(1);
  for (const std::int64_t size : shape) elements = elements * size;
  return elements.count();
}

// One FLOP count that does not fit is as good as another.
std::int64_t saturating_product(std::initializer_list<std::int64_t> factors) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 60;
  std::int64_t result = 1;
  for (const std::int64_t factor : factors)
    if (__builtin_mul_overflow(result, factor, &result) || result > kHuge) return kHuge;
  return result;
}

// Nothing runs on a device: the framework's bookkeeping.
bool is_free(std::string_view op) {
  static constexpr std::array<std::string_view, 17> kOps{"Const",
                                                         "ExpandDims",
                                                         "Identity",
                                                         "IdentityN",
                                                         "NoOp",
                                                         "Placeholder",
                                                         "PlaceholderWithDefault",
                                                         "PreventGradient",
                                                         "ReadVariableOp",
                                                         "Reshape",
                                                         "Shape",
                                                         "ShapeN",
                                                         "Size",
                                                         "Squeeze",
                                                         "StopGradient",
                                                         "VarHandleOp",
                                                         "VariableV2"};
  return std::find(kOps.begin(), kOps.end(), op) != kOps.end();
}

constexpr std::string_view kSymbolicGradient = "_grad";

// TensorFlow names what a tape or tf.gradients() adds after what it is the gradient of: where the
// mark of such a name is, and how long.
struct GradientMark {
  std::size_t at, length;
};
std::optional<GradientMark> gradient_mark(std::string_view name) {
  for (const std::string_view mark : {"gradient_tape/", "gradients/"}) {
    const std::size_t at = name.find(mark);
    if (at != name.npos && (at == 0 || name[at - 1] == '/')) return GradientMark{at, mark.size()};
  }
  return std::nullopt;
}

// The name without the mark: the forward operator, or something inside its scope.
std::string gradient_of(std::string_view name) {
  const GradientMark mark = *gradient_mark(name);
  return std::string(name.substr(0, mark.at)) += name.substr(mark.at + mark.length);
}

// "a/b" of "a/b/c"; empty at the top.
std::string_view parent(std::string_view name) {
  const std::size_t slash = name.rfind('/');
  return slash == name.npos ? std::string_view() : name.substr(0, slash);
}

class GraphDefReader {
 public:
  GraphDefReader(std::string_view bytes, const std::string& place, std::string_view graph_name,
                 const ModelCosts& costs)
      : bytes_(bytes), place_(place), costs_(costs), builder_(graph_name) {
    batch_ = costs.batch;
    for (const ProfileSource& source : costs.profiles) {
      if (!batch_.has_value()) batch_ = source.profile.batch_size;
      for (const OperatorProfile& op : source.profile.operators) measured_[op.name] = &op;
      for (std::string& kind : measured_kinds(source.profile))
        if (std::none_of(costs.kinds.begin(), costs.kinds.end(),
                         [&](const CostedKind& costed) { return costed.kind == kind; }))
          unestimated_.push_back(std::move(kind));
    }
  }

  OpGraph read() {
    read_nodes();
    check_coverage();
    resolve_inputs();
    for (const OpId op : ops()) at_node(op, [&] { set_costs(op); });
    for (const OpId op : ops()) at_node(op, [&] { connect(op); });
    colocate();
    mark_backward();
    pair_gradients();
    builder_.set_memory_mode(MemoryMode::kDataflow);
    if (batch_.has_value()) builder_.set_batch_size(*batch_);
    try {
      return std::move(builder_).build();
    } catch (const InputError& error) {
      throw InputError(place_, error.what());
    }
  }

 private:
  struct Input {
    OpId from;
    std::uint32_t port;
    bool control;
  };
  struct Operator {
    GraphDefNode node;
    std::vector<Input> inputs;
    std::vector<Shape> shapes;  // of the outputs
    bool backward = false;
    std::optional<OpId> forward;
    std::int64_t flops = 0;
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
  void check_coverage() const;
  void resolve_inputs();
  Input resolve(std::string_view input) const;
  void set_costs(OpId op);
  Shape known(const GraphDefShape& shape) const;
  std::optional<Shape> measured_shape(const GraphDefNode& node, std::size_t port) const;
  void find_shapes(Operator& op) const;
  const Shape* input_shape(const Operator& op, std::size_t index) const;
  std::int64_t flops(const Operator& op) const;
  std::int64_t einsum_flops(const Operator& op) const;
  Bytes output_size(const Operator& op, std::size_t port) const;
  Bytes variable_size(OpId op) const;
  void connect(OpId op);
  void colocate();
  void find_consumers();
  void mark_backward();
  void pair_gradients();
  void pair_by_neighbours(std::vector<OpId> unnamed);
  std::span<const OpId> consumers(OpId op) const {
    return std::span<const OpId>(consumers_)
        .subspan(first_consumer_[op.index()],
                 first_consumer_[op.index() + 1] - first_consumer_[op.index()]);
  }

  std::string_view bytes_;
  const std::string& place_;
  const ModelCosts& costs_;
  OpGraphBuilder builder_;
  IdVector<OpId, Operator> operators_;
  std::vector<OpId> gradients_;  // by their names
  std::vector<std::uint32_t> first_consumer_;
  std::vector<OpId> consumers_;
  IdVector<OpId, Bytes> variable_;  // what readers and writers say of a captured variable
  std::optional<std::int64_t> batch_;
  std::unordered_map<std::string_view, const OperatorProfile*> measured_;
  std::vector<std::string> unestimated_;  // kinds that only profiles have times for
};

void GraphDefReader::read_nodes() {
  for (WireReader graph(bytes_, bytes_, place_); graph.next();) {
    if (graph.field() != kNodeField) continue;
    Operator op;
    op.node = read_graph_def_node(graph.message());
    try {
      builder_.add_operator({.name = op.node.name, .kind = op.node.op});
    } catch (const InputError& error) {
      graph.fail(printable(error.what()));
    }
    const bool is_gradient = gradient_mark(op.node.name).has_value();
    const OpId id = operators_.push_back(std::move(op));
    if (is_gradient) gradients_.push_back(id);
  }
  if (operators_.empty()) throw InputError(place_, "the GraphDef has no nodes");
}

// What has neither estimates nor measurements takes no time: that must be little.
void GraphDefReader::check_coverage() const {
  if (!costs_.kinds.empty()) return;
  std::size_t measured = 0;
  for (const Operator& op : operators_) measured += measured_.contains(op.node.name) ? 1U : 0U;
  if (2 * measured < operators_.size())
    throw InputError(place_, "only " + std::to_string(measured) + " of " +
                                 std::to_string(operators_.size()) + " operators are in " +
                                 costs_.profiles.front().place +
                                 ": estimate the others, as with --costs gpu=rtx3090");
}

GraphDefReader::Input GraphDefReader::resolve(std::string_view input) const {
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
      find_shapes(operators_[op]);
    });
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

Shape GraphDefReader::known(const GraphDefShape& shape) const {
  if (shape.unknown_rank) throw InputError("an output has no known shape, not even a rank");
  Shape sizes = shape.sizes;
  for (std::int64_t& size : sizes) {
    if (size >= 0) continue;
    if (!batch_.has_value())
      throw InputError("the shape of an output has an open dimension: give it with --batch");
    size = *batch_;
  }
  return sizes;
}

// The elements in a row: what is left of a shape that only a measured size tells.
std::optional<Shape> GraphDefReader::measured_shape(const GraphDefNode& node,
                                                    std::size_t port) const {
  const auto found = measured_.find(node.name);
  if (found == measured_.end()) return std::nullopt;
  const std::optional<Bytes> size = measured_output(*found->second, port);
  if (!size.has_value()) return std::nullopt;
  const std::int64_t element = element_bytes(output_type(node, port));
  return Shape{size->count() / element + (size->count() % element != 0 ? 1 : 0)};
}

void GraphDefReader::find_shapes(Operator& op) const {
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
    op.shapes.push_back(sizes.has_value() ? *std::move(sizes) : known(shape));
  }
  if (op.shapes.empty() && attributes.shape.has_value())
    op.shapes.push_back(known(*attributes.shape));
}

const Shape* GraphDefReader::input_shape(const Operator& op, std::size_t index) const {
  if (index >= op.inputs.size() || op.inputs[index].control) return nullptr;
  const std::vector<Shape>& shapes = operators_[op.inputs[index].from].shapes;
  const std::uint32_t port = op.inputs[index].port;
  return port < shapes.size() ? &shapes[port] : nullptr;
}

Bytes GraphDefReader::output_size(const Operator& op, std::size_t port) const {
  if (op.node.op == "VariableV2" || op.node.op == "Variable") return Bytes(0);  // a reference
  return Bytes(element_bytes(output_type(op.node, port))) * product(op.shapes[port]);
}

Bytes GraphDefReader::variable_size(OpId op) const {
  const GraphDefNode& node = operators_[op].node;
  if (node.op != "VarHandleOp" && node.op != "VariableV2" && node.op != "Variable")
    return variable_[op];
  if (!node.attributes.shape.has_value()) return variable_[op];
  return Bytes(element_bytes(node.attributes.type)) * product(known(*node.attributes.shape));
}

// Two per multiply-add; one per element of everything else.
std::int64_t GraphDefReader::flops(const Operator& op) const {
  const std::string_view kind = op.node.op;
  const Shape* const a = input_shape(op, 0);
  const Shape* const b = input_shape(op, 1);
  const Shape* const out = op.shapes.empty() ? nullptr : &op.shapes[0];
  if (kind == "Einsum") return einsum_flops(op);
  if (kind == "MatMul" || kind.starts_with("BatchMatMul")) {
    if (a == nullptr || a->size() < 2 || out == nullptr) return 0;
    const std::int64_t inner = (*a)[a->size() - (op.node.attributes.transpose_a ? 2 : 1)];
    return saturating_product({2, product(*out), inner});
  }
  if (kind.find("Conv") != kind.npos &&
      kind.find('D') != kind.npos) {  // y, its filter, its channels
    const bool to_input = kind.find("BackpropInput") != kind.npos;
    const bool to_filter = kind.find("BackpropFilter") != kind.npos;
    const Shape* const y = to_input || to_filter ? input_shape(op, 2) : out;
    const Shape* const filter = to_filter ? out : b;
    if (y != nullptr && filter != nullptr && !filter->empty() && filter->back() > 0) {
      std::int64_t per_output = product(*filter) / filter->back();
      if (kind.starts_with("Depthwise") && filter->size() >= 3)
        per_output /= std::max<std::int64_t>(1, (*filter)[filter->size() - 2]);
      return saturating_product({2, product(*y), per_output});
    }
  }
  std::int64_t most = 0;
  for (const Shape& shape : op.shapes) most = std::max(most, product(shape));
  for (std::size_t i = 0; i < op.inputs.size(); ++i)
    if (const Shape* shape = input_shape(op, i)) most = std::max(most, product(*shape));
  return most;
}

// The product of all labels' sizes. Labels behind "..." are matched from the right.
std::int64_t GraphDefReader::einsum_flops(const Operator& op) const {
  std::unordered_map<char, std::int64_t> sizes;
  std::int64_t ellipsis = 1;
  std::string_view operands =
      op.node.attributes.equation.substr(0, op.node.attributes.equation.find("->"));
  for (std::size_t index = 0; !operands.empty(); ++index) {
    const std::size_t comma = std::min(operands.find(','), operands.size());
    const std::string_view labels = operands.substr(0, comma);
    operands.remove_prefix(std::min(comma + 1, operands.size()));
    const Shape* const shape = input_shape(op, index);
    if (shape == nullptr) return 0;
    const std::size_t dots = std::min(labels.find("..."), labels.size());
    for (std::size_t i = 0; i < dots && i < shape->size(); ++i) sizes[labels[i]] = (*shape)[i];
    if (dots == labels.size()) continue;
    const std::size_t behind = labels.size() - dots - 3;
    if (shape->size() < dots + behind) return 0;
    for (std::size_t i = 0; i < behind; ++i)
      sizes[labels[labels.size() - 1 - i]] = (*shape)[shape->size() - 1 - i];
    ellipsis =
        std::max(ellipsis, product(Shape(shape->begin() + static_cast<std::ptrdiff_t>(dots),
                                         shape->end() - static_cast<std::ptrdiff_t>(behind))));
  }
  std::int64_t result = saturating_product({2, ellipsis});
  for (const auto& [label, size] : sizes) result = saturating_product({result, size});
  return result;
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
    if (input_shape(op, i) != nullptr)
      moved += output_size(operators_[op.inputs[i].from], op.inputs[i].port);
  op.flops = is_free(op.node.op) ? 0 : flops(op);
  const Work work{.flops = op.flops, .bytes = moved, .kernel = !is_free(op.node.op)};
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

// Consumers of data, one row per operator.
void GraphDefReader::find_consumers() {
  first_consumer_.assign(operators_.size() + 1, 0);
  for (const Operator& op : operators_)
    for (const Input& input : op.inputs)
      if (!input.control) ++first_consumer_[input.from.index() + 1];
  for (std::size_t i = 1; i < first_consumer_.size(); ++i)
    first_consumer_[i] += first_consumer_[i - 1];
  consumers_.assign(first_consumer_.back(), OpId(0));
  std::vector<std::uint32_t> next(first_consumer_.begin(), first_consumer_.end() - 1);
  for (const OpId op : ops())
    for (const Input& input : operators_[op].inputs)
      if (!input.control) consumers_[next[input.from.index()]++] = op;
}

// What a tape added, and everything that uses its results: the optimizer too.
void GraphDefReader::mark_backward() {
  if (gradients_.empty()) return;
  find_consumers();
  std::vector<OpId> open;
  const auto mark = [&](OpId op) {
    if (std::exchange(operators_[op].backward, true)) return;
    builder_.set_backward(op);
    open.push_back(op);
  };
  for (const OpId op : gradients_) mark(op);
  while (!open.empty()) {
    const OpId op = open.back();
    open.pop_back();
    for (const OpId consumer : consumers(op)) mark(consumer);
  }
}

// A gradient's forward operator is the one that its name names; where that is a scope, the operator
// in it that computes most.
void GraphDefReader::pair_gradients() {
  if (gradients_.empty()) return;
  std::unordered_map<std::string_view, OpId> heaviest;  // of a scope
  for (const OpId op : ops()) {
    if (operators_[op].backward) continue;
    for (std::string_view scope = parent(operators_[op].node.name); !scope.empty();
         scope = parent(scope)) {
      const auto [at, added] = heaviest.emplace(scope, op);
      if (!added && operators_[at->second].flops < operators_[op].flops) at->second = op;
    }
  }
  const auto named = [&](std::string_view name) -> std::optional<OpId> {
    const std::optional<OpId> exact = builder_.find(name);
    if (exact.has_value() && !operators_[*exact].backward) return exact;
    const auto scope = heaviest.find(name);
    return scope == heaviest.end() ? std::nullopt : std::optional(scope->second);
  };
  std::vector<OpId> unnamed;
  for (const OpId op : gradients_) {
    const std::string name = gradient_of(operators_[op].node.name);
    for (std::string_view of = name; !of.empty() && !operators_[op].forward; of = parent(of)) {
      if (of.ends_with(kSymbolicGradient))  // tf.gradients() says "MatMul_grad" for MatMul's
        operators_[op].forward = named(of.substr(0, of.size() - kSymbolicGradient.size()));
      if (!operators_[op].forward) operators_[op].forward = named(of);
    }
    if (!operators_[op].forward) unnamed.push_back(op);
  }
  for (const OpId op : ops())
    if (operators_[op].backward && operators_[op].node.op == "AddN") unnamed.push_back(op);
  pair_by_neighbours(unnamed);
  for (const OpId op : ops())
    if (operators_[op].forward) builder_.set_forward(op, *operators_[op].forward);
}

// Sums of gradients, and the few gradients whose names tell nothing, go with what uses them, else
// with what they use.
void GraphDefReader::pair_by_neighbours(std::vector<OpId> unnamed) {
  const auto of_neighbour = [&](OpId op) -> std::optional<OpId> {
    for (const OpId consumer : consumers(op))
      if (operators_[consumer].forward) return operators_[consumer].forward;
    for (const Input& input : operators_[op].inputs)
      if (!input.control && operators_[input.from].forward) return operators_[input.from].forward;
    return std::nullopt;
  };
  for (std::size_t before = unnamed.size() + 1; unnamed.size() < before;) {
    before = unnamed.size();
    std::erase_if(unnamed, [&](OpId op) {
      operators_[op].forward = of_neighbour(op);
      return operators_[op].forward.has_value();
    });
  }
}

}  // namespace

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
                     "a TensorFlow graph has no costs: name devices to estimate them for, as in "
                     "--costs gpu=rtx3090, or a profile, as in --costs profile.json");
  return GraphDefReader(bytes, place, graph_name, costs).read();
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
