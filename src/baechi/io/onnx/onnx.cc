// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/onnx/onnx.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/io/onnx/onnx_dimensions.h"
#include "baechi/io/onnx/onnx_nested_graph.h"
#include "baechi/io/onnx/onnx_shapes.h"
#include "baechi/io/onnx/onnx_work.h"
#include "baechi/io/text/source_place.h"

namespace baechi {
namespace {

using Names = std::vector<std::string_view>;

// Every reader holds its own copy of a shared initializer up to this size: constants such as an
// epsilon must not keep half the model on one device.
constexpr Bytes kReplicated{64 * 1024};

std::string quoted_name(std::string_view name) { return in_quotes(printable(name, 120)); }

// A size in bytes follows from it.
void check_element(const OnnxValue& value, std::string_view name) {
  if (element_bits(value.element) != 0 || value.element == OnnxElement::kText ||
      onnx_elements(*value.shape) == 0)
    return;
  throw InputError(value.element == OnnxElement::kNone
                       ? "the element type of " + quoted_name(name) +
                             " is not in the file and does not follow from its inputs"
                       : quoted_name(name) + " has the unknown element type " +
                             std::to_string(static_cast<std::int64_t>(value.element)));
}

class OnnxReader {
 public:
  OnnxReader(OnnxGraph graph, const std::string& place, std::string_view graph_name,
             const ModelCosts& costs)
      : graph_(std::move(graph)),
        place_(place),
        costs_(costs),
        builder_(graph_name.empty() ? graph_.name : graph_name),
        names_(onnx_operator_names(graph_)),
        batch_(batch_of(costs)),
        dimensions_(graph_, place, costs),
        unestimated_(unestimated_kinds(costs)),
        stored_(graph_.nodes.size(), false) {}

  OpGraph read() {
    for (const OnnxValueType& value : graph_.values) declared_.emplace(value.name, &value);
    for (const OnnxValueType& value : graph_.outputs) declared_.emplace(value.name, &value);
    add_initializers();
    add_inputs();
    store_constants();
    count_readers();
    check_computed();
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) at_node(i, [&] { add_node(i); });
    builder_.set_memory_mode(MemoryMode::kDataflow);
    if (batch_.has_value()) builder_.set_batch_size(*batch_);
    try {
      return std::move(builder_).build();
    } catch (const InputError& error) {
      throw InputError(place_, printable(error.what()));
    }
  }

 private:
  struct Value {
    OnnxValue known;
    std::string_view name = {};
    std::optional<TensorId> tensor = {};  // absent: stored, an initializer or a constant
    std::size_t readers = 0;              // nodes, of a stored value
    std::optional<OpId> holder = {};
  };

  void add_initializers();
  void add_inputs();
  void store_constants();
  void count_readers();
  void check_computed() const;
  void add_node(std::size_t index);
  std::vector<const OnnxValue*> known_inputs(const OnnxNode& node);
  Names inputs_of(const OnnxNode& node, const OnnxNestedGraph& nested) const;
  void hold(OpId op, Value& value, Bytes& permanent);
  void set_times(OpId op, const std::optional<Work>& work);
  void settle(OnnxValue& value, const OnnxValueType* declared, std::string_view name) const;
  const OnnxValueType* nested_type(const OnnxNode& node, std::size_t output) const;
  const OnnxValueType* declared_type(const OnnxNode& node, std::size_t output) const;
  void carry_loop_values(OnnxOperands& operands) const;
  void define(std::string_view name, Value value);
  void name_again(std::string_view name, std::string_view also);
  Value* find(std::string_view name);
  template <class Action>
  void at_node(std::size_t node, const Action& action) const;

  const OnnxGraph graph_;
  const std::string& place_;
  const ModelCosts& costs_;
  OpGraphBuilder builder_;
  const OnnxOperatorNames names_;
  const std::optional<std::int64_t> batch_;
  const OnnxDimensions dimensions_;
  const std::vector<std::string> unestimated_;  // kinds that only profiles have times for
  std::deque<Value> values_;                    // operands point into it
  std::unordered_map<std::string_view, std::size_t> index_;  // some have two names
  std::vector<bool> stored_;                                 // by node: nothing to compute
  std::unordered_map<std::string_view, const OnnxValueType*> declared_;
};

template <class Action>
void OnnxReader::at_node(std::size_t node, const Action& action) const {
  try {
    action();
  } catch (const InputError& error) {
    throw InputError(place_ + ": node " + quoted_name(names_.nodes[node]) + " (" +
                         printable(graph_.nodes[node].op, 60) + ")",
                     printable(error.what()));
  }
}

void OnnxReader::define(std::string_view name, Value value) {
  if (!index_.emplace(name, values_.size()).second)
    throw InputError("there are two values named " + quoted_name(name));
  value.name = name;
  values_.push_back(std::move(value));
}

void OnnxReader::name_again(std::string_view name, std::string_view also) {
  if (!index_.emplace(also, index_.at(name)).second)
    throw InputError("there are two values named " + quoted_name(also));
}

OnnxReader::Value* OnnxReader::find(std::string_view name) {
  const auto at = index_.find(name);
  return at == index_.end() ? nullptr : &values_[at->second];
}

void OnnxReader::add_initializers() {
  for (const OnnxTensor& tensor : graph_.initializers) {
    try {
      OnnxValue known{tensor.element, tensor.shape, tensor.integers, tensor.numbers};
      check_element(known, tensor.name);
      define(tensor.name, {.known = std::move(known)});
    } catch (const InputError& error) {
      throw InputError(place_ + ": initializer " + quoted_name(tensor.name),
                       printable(error.what()));
    }
  }
}

void OnnxReader::add_inputs() {
  for (std::size_t i = 0; i < graph_.inputs.size(); ++i) {
    const OnnxValueType& input = graph_.inputs[i];
    if (names_.inputs[i].empty()) continue;  // an initializer: its default value
    try {
      OnnxValue known{.element = input.element, .shape = {}, .integers = {}, .numbers = {}};
      if (input.is_tensor && input.dimensions.has_value())
        known.shape = dimensions_.of_input(*input.dimensions);
      settle(known, &input, input.name);
      const OpId op = builder_.add_operator({.name = names_.inputs[i], .kind = "Input"});
      const TensorId tensor = builder_.add_output(op, onnx_bytes(known));
      set_times(op, Work{.kernel = false});
      define(input.name, {.known = std::move(known), .tensor = tensor, .readers = 0, .holder = {}});
    } catch (const InputError& error) {
      throw InputError(place_ + ": input " + quoted_name(input.name), printable(error.what()));
    }
  }
}

// Constants are stored like initializers, and an Identity of a stored value is that value: runtimes
// compute neither in a step.
void OnnxReader::store_constants() {
  for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
    const OnnxNode& node = graph_.nodes[i];
    if (node.outputs.size() != 1 || !node.domain.empty()) continue;
    if (node.op == "Constant") {
      at_node(i, [&] {
        OnnxOperands operands(node, {});
        infer_onnx_outputs(operands);
        settle(operands.outputs()[0], nullptr, node.outputs[0]);
        define(node.outputs[0], {.known = std::move(operands.outputs()[0])});
      });
      stored_[i] = true;
    } else if (node.op == "Identity" && node.inputs.size() == 1) {
      const Value* const source = find(node.inputs[0]);
      if (source == nullptr || source->tensor.has_value()) continue;
      at_node(i, [&] { name_again(node.inputs[0], node.outputs[0]); });
      stored_[i] = true;
    }
  }
}

void OnnxReader::count_readers() {
  for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
    if (stored_[i]) continue;
    for (const std::string_view input :
         inputs_of(graph_.nodes[i], OnnxNestedGraph(graph_.nodes[i])))
      if (Value* const value = find(input)) ++value->readers;
  }
}

void OnnxReader::check_computed() const {
  Names computed;
  for (std::size_t i = 0; i < graph_.nodes.size(); ++i)
    if (!stored_[i]) computed.push_back(names_.nodes[i]);
  check_coverage(computed, place_, costs_);
}

// Each once; what graphs inside the node read comes last.
Names OnnxReader::inputs_of(const OnnxNode& node, const OnnxNestedGraph& nested) const {
  Names inputs;
  std::unordered_set<std::string_view> seen;
  for (const Names* const names : {&node.inputs, &nested.captured()})
    for (const std::string_view name : *names)
      if (!name.empty() && seen.insert(name).second) inputs.push_back(name);
  return inputs;
}

// Without work there is nothing to compute.
void OnnxReader::set_times(OpId op, const std::optional<Work>& work) {
  for (const CostedKind& kind : costs_.kinds)
    builder_.set_time(op, kind.kind,
                      work.has_value() ? roofline_time(*kind.preset, *work) : Time(0));
  for (const std::string& kind : unestimated_) builder_.set_time(op, kind, Time(0));
}

// What the file says without open dimensions comes first, then what follows from the inputs, then
// the file again with our sizes for its open dimensions.
void OnnxReader::settle(OnnxValue& value, const OnnxValueType* declared,
                        std::string_view name) const {
  if (declared != nullptr && !declared->is_tensor) {
    value = {.element = OnnxElement::kNone, .shape = OnnxShape{0}, .integers = {}, .numbers = {}};
    return;  // a sequence or a map: nothing is known of its size
  }
  if (declared != nullptr && declared->element != OnnxElement::kNone)
    value.element = declared->element;
  if (declared != nullptr && declared->dimensions.has_value()) {
    const bool closed = std::ranges::all_of(
        *declared->dimensions, [](const OnnxDimension& d) { return d.size.has_value(); });
    if (closed || !value.shape.has_value())
      value.shape = dimensions_.of_value(*declared->dimensions);
  }
  if (!value.shape.has_value())
    throw InputError("the shape of " + quoted_name(name) +
                     " is not in the file and does not follow from its inputs: run "
                     "onnx.shape_inference on the model first");
  check_element(value, name);
  value.drop_wrong_lists();
}

// What a conditional gives out is said inside its branches: the larger one counts.
const OnnxValueType* OnnxReader::nested_type(const OnnxNode& node, std::size_t output) const {
  if (node.op != "If") return nullptr;
  const OnnxValueType* largest = nullptr;
  std::int64_t most = -1;
  for (const OnnxAttribute& attribute : node.attributes)
    for (const OnnxGraph& graph : attribute.graphs) {
      if (output >= graph.outputs.size() || !graph.outputs[output].dimensions.has_value()) continue;
      const OnnxValueType& type = graph.outputs[output];
      const std::int64_t elements = onnx_elements(dimensions_.of_value(*type.dimensions));
      if (elements <= most) continue;
      most = elements;
      largest = &type;
    }
  return largest;
}

// The file's word on an output, at the node or, where it says no shape there, inside the node.
const OnnxValueType* OnnxReader::declared_type(const OnnxNode& node, std::size_t output) const {
  const auto at = declared_.find(node.outputs[output]);
  const OnnxValueType* const declared = at != declared_.end() ? at->second : nullptr;
  if (declared != nullptr && (!declared->is_tensor || declared->dimensions.has_value()))
    return declared;
  const OnnxValueType* const nested = nested_type(node, output);
  return nested != nullptr ? nested : declared;
}

// A loop's values keep their shapes from turn to turn: they are its inputs behind the first two.
void OnnxReader::carry_loop_values(OnnxOperands& operands) const {
  if (operands.node().op != "Loop") return;
  for (std::size_t i = 0; i + 2 < operands.node().inputs.size(); ++i) operands.like(i, i + 2);
}

void OnnxReader::hold(OpId op, Value& value, Bytes& permanent) {
  const Bytes bytes = onnx_bytes(value.known);
  if (value.readers <= 1 || bytes <= kReplicated) {
    permanent += bytes;
    return;
  }
  if (!value.holder.has_value()) {
    value.holder = op;
    permanent += bytes;
  }
  builder_.add_to_group(op, value.name);
}

std::vector<const OnnxValue*> OnnxReader::known_inputs(const OnnxNode& node) {
  std::vector<const OnnxValue*> known;
  for (const std::string_view input : node.inputs) {
    const Value* const value = find(input);
    if (!input.empty() && value == nullptr)
      throw InputError("its input " + quoted_name(input) + " is made by no node before it");
    known.push_back(input.empty() ? nullptr : &value->known);
  }
  return known;
}

void OnnxReader::add_node(std::size_t index) {
  const OnnxNode& node = graph_.nodes[index];
  const OpId op = builder_.add_operator({.name = names_.nodes[index], .kind = node.op});
  if (stored_[index]) return set_times(op, std::nullopt);
  const std::vector<const OnnxValue*> known = known_inputs(node);
  OnnxOperands operands(node, known);
  infer_onnx_outputs(operands);
  carry_loop_values(operands);

  const OnnxNestedGraph nested(node);
  Bytes permanent = nested.held();
  for (const std::string_view input : inputs_of(node, nested)) {
    Value* const value = find(input);
    if (value == nullptr)
      throw InputError("a graph in it reads " + quoted_name(input) +
                       ", which no node before it makes");
    if (value->tensor.has_value())
      builder_.connect(*value->tensor, op);
    else
      hold(op, *value, permanent);
  }
  builder_.set_permanent(op, permanent);

  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i].empty()) continue;
    settle(operands.outputs()[i], declared_type(node, i), node.outputs[i]);
  }
  set_times(op, onnx_work(operands));
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i].empty()) continue;
    OnnxValue& value = operands.outputs()[i];
    const TensorId tensor = builder_.add_output(op, onnx_bytes(value));
    define(node.outputs[i], {.known = std::move(value), .tensor = tensor});
  }
}

}  // namespace

bool looks_like_onnx(std::string_view bytes) {
  const std::string place;
  try {
    WireReader model(bytes, bytes, place);
    if (!model.next() || model.field() != onnx_field::kModelIrVersion ||
        model.type() != WireReader::Type::kVarint || bytes.size() < 3)
      return false;
    // The second field by its tag alone: its end may be cut off.
    const std::size_t at = model.raw().size();
    if (at == bytes.size()) return false;
    switch (static_cast<unsigned char>(bytes[at])) {
      case 0x12:  // producer_name
      case 0x1A:  // producer_version
      case 0x22:  // domain
      case 0x28:  // model_version
      case 0x32:  // doc_string
      case 0x3A:  // graph
      case 0x42:  // opset_import
        return true;
      default:
        return false;
    }
  } catch (const InputError&) {
    return false;
  }
}

OpGraph parse_onnx(std::string_view bytes, const std::string& place, std::string_view graph_name,
                   const ModelCosts& costs) {
  if (costs.empty())
    throw InputError(place,
                     "an ONNX model has no costs: name devices to estimate them for, as in " +
                         costs_to_give(costs.in_python) + ", or the file of a profile");
  const std::optional<WireReader> message = find_onnx_graph(bytes, place);
  if (!message.has_value()) throw InputError(place, "the model has no graph");
  OnnxGraph graph = read_onnx_graph(*message);
  if (graph.nodes.empty()) throw InputError(place, "the model's graph has no nodes");
  return OnnxReader(std::move(graph), place, graph_name, costs).read();
}

}  // namespace baechi
