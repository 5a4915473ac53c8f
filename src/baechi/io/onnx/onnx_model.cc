// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/onnx/onnx_model.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "baechi/base/overflow.h"

namespace baechi {
namespace {

namespace graph_field {
enum : std::uint64_t {
  kNode = 1,
  kName = 2,
  kInitializer = 5,
  kInput = 11,
  kOutput = 12,
  kValue = 13,
  kSparseInitializer = 15
};
}
namespace node_field {
enum : std::uint64_t { kInput = 1, kOutput = 2, kName = 3, kOp = 4, kAttribute = 5, kDomain = 7 };
}
namespace attribute_field {
enum : std::uint64_t {
  kName = 1,
  kFloat = 2,
  kInteger = 3,
  kText = 4,
  kTensor = 5,
  kGraph = 6,
  kFloats = 7,
  kIntegers = 8,
  kTexts = 9,
  kGraphs = 11
};
}
namespace tensor_field {
enum : std::uint64_t {
  kDims = 1,
  kElement = 2,
  kFloatData = 4,
  kInt32Data = 5,
  kInt64Data = 7,
  kName = 8,
  kRawData = 9
};
}
namespace sparse_field {
enum : std::uint64_t { kValues = 1, kDims = 3 };
}

constexpr std::size_t kMostNestedGraphs = 24;
// Lists of so many whole numbers are shapes, axes, sizes: longer ones are data.
constexpr std::size_t kMostIntegers = 64;

// Defined where messages recur: a graph in an attribute of a node in a graph.
OnnxGraph read_graph_at(WireReader message, std::size_t depth);

OnnxElement read_element(const WireReader& field) {
  const std::int64_t value = field.integer();
  if (value < 0 || value > 255) field.fail("unknown element type " + std::to_string(value));
  return static_cast<OnnxElement>(value);
}

template <class Dimensions>
void check_rank(const WireReader& field, const Dimensions& dimensions) {
  if (dimensions.size() >= kMostOnnxDimensions) field.fail("more than 64 dimensions");
}

std::int64_t read_size(const WireReader& field, std::int64_t size) {
  if (size < 0 || size > kMostOnnxSize) field.fail("a dimension of " + std::to_string(size));
  return size;
}

// Little-endian, whatever the machine.
template <class Word>
std::vector<Word> read_raw(std::string_view raw) {
  std::vector<Word> words;
  for (std::size_t at = 0; at + sizeof(Word) <= raw.size(); at += sizeof(Word)) {
    Word word = 0;
    for (std::size_t i = 0; i < sizeof(Word); ++i)
      word |= Word{static_cast<unsigned char>(raw[at + i])} << (8 * i);
    words.push_back(word);
  }
  return words;
}

// What the fields of a tensor hold of its values.
struct TensorContent {
  OnnxIntegers integers;
  std::vector<float> numbers;
  std::string_view raw;
};

// Keeps the values of a small tensor of whole numbers or floats.
void keep_values(OnnxTensor& tensor, TensorContent content) {
  std::size_t count = 1;
  for (const std::int64_t size : tensor.shape)
    if (multiply_overflows(count, static_cast<std::size_t>(size), count)) return;
  if (count > kMostIntegers || content.raw.size() > 8 * kMostIntegers) return;
  const bool has_raw = !content.raw.empty();
  if (tensor.element == OnnxElement::kInt64) {
    if (has_raw) {
      content.integers.clear();
      for (const std::uint64_t word : read_raw<std::uint64_t>(content.raw))
        content.integers.push_back(static_cast<std::int64_t>(word));
    }
    if (content.integers.size() == count) tensor.integers = std::move(content.integers);
  } else if (tensor.element == OnnxElement::kInt32) {
    if (has_raw) {
      content.integers.clear();
      for (const std::uint32_t word : read_raw<std::uint32_t>(content.raw))
        content.integers.push_back(static_cast<std::int32_t>(word));
    }
    if (content.integers.size() == count) tensor.integers = std::move(content.integers);
  } else if (tensor.element == OnnxElement::kFloat) {
    if (has_raw) {
      content.numbers.clear();
      for (const std::uint32_t word : read_raw<std::uint32_t>(content.raw))
        content.numbers.push_back(std::bit_cast<float>(word));
    }
    if (content.numbers.size() == count) tensor.numbers = std::move(content.numbers);
  }
}

OnnxTensor read_tensor(WireReader message) {
  OnnxTensor tensor;
  TensorContent content;
  while (message.next()) {
    switch (message.field()) {
      case tensor_field::kDims:
        message.integers([&](std::int64_t size) {
          check_rank(message, tensor.shape);
          tensor.shape.push_back(read_size(message, size));
        });
        break;
      case tensor_field::kElement:
        tensor.element = read_element(message);
        break;
      case tensor_field::kFloatData:
        if (message.type() == WireReader::Type::kFixed32)
          content.numbers.push_back(message.number());
        else
          content.raw = message.bytes();  // packed floats are laid out as raw ones
        break;
      case tensor_field::kInt32Data:
      case tensor_field::kInt64Data:
        message.integers([&](std::int64_t value) {
          if (content.integers.size() <= kMostIntegers) content.integers.push_back(value);
        });
        break;
      case tensor_field::kName:
        tensor.name = message.bytes();
        break;
      case tensor_field::kRawData:
        content.raw = message.bytes();
        break;
      default:
        break;
    }
  }
  keep_values(tensor, std::move(content));
  return tensor;
}

// A sparse one counts as the dense one that it stands for.
OnnxTensor read_sparse_tensor(WireReader message) {
  OnnxTensor tensor;
  OnnxShape shape;
  while (message.next()) {
    if (message.field() == sparse_field::kValues) tensor = read_tensor(message.message());
    if (message.field() == sparse_field::kDims)
      message.integers([&](std::int64_t size) {
        check_rank(message, shape);
        shape.push_back(read_size(message, size));
      });
  }
  tensor.shape = std::move(shape);
  tensor.integers.reset();
  tensor.numbers.reset();
  return tensor;
}

std::vector<OnnxDimension> read_dimensions(WireReader shape) {
  std::vector<OnnxDimension> dimensions;
  while (shape.next()) {
    if (shape.field() != 1) continue;
    check_rank(shape, dimensions);
    OnnxDimension dimension;
    for (WireReader dim = shape.message(); dim.next();) {
      // Some exporters write -1 for what is not known.
      if (dim.field() == 1 && dim.integer() >= 0) dimension.size = read_size(dim, dim.integer());
      if (dim.field() == 2) dimension.name = dim.bytes();
    }
    dimensions.push_back(dimension);
  }
  return dimensions;
}

OnnxValueType read_value(WireReader message) {
  OnnxValueType value;
  while (message.next()) {
    if (message.field() == 1) value.name = message.bytes();
    if (message.field() != 2) continue;
    for (WireReader type = message.message(); type.next();) {
      const bool is_name = type.field() == 6;
      value.is_tensor = is_name ? value.is_tensor : type.field() == 1 || type.field() == 8;
      if (is_name || !value.is_tensor) continue;
      for (WireReader tensor = type.message(); tensor.next();) {
        if (tensor.field() == 1) value.element = read_element(tensor);
        if (tensor.field() == 2) value.dimensions = read_dimensions(tensor.message());
      }
    }
  }
  return value;
}

OnnxAttribute read_attribute(WireReader message, std::size_t depth) {
  OnnxAttribute attribute;
  while (message.next()) {
    switch (message.field()) {
      case attribute_field::kName:
        attribute.name = message.bytes();
        break;
      case attribute_field::kFloat:
        attribute.number = message.number();
        break;
      case attribute_field::kInteger:
        attribute.integer = message.integer();
        break;
      case attribute_field::kText:
        attribute.text = message.bytes();
        break;
      case attribute_field::kTensor:
        attribute.tensor = read_tensor(message.message());
        break;
      case attribute_field::kGraph:
      case attribute_field::kGraphs:
        attribute.graphs.push_back(read_graph_at(message.message(), depth + 1));
        break;
      case attribute_field::kFloats:
        attribute.list_length +=
            message.type() == WireReader::Type::kBytes ? message.bytes().size() / sizeof(float) : 1;
        break;
      case attribute_field::kTexts:
        ++attribute.list_length;
        break;
      case attribute_field::kIntegers:
        message.integers([&](std::int64_t value) { attribute.integers.push_back(value); });
        break;
      default:
        break;
    }
  }
  return attribute;
}

OnnxNode read_node_at(WireReader message, std::size_t depth) {
  OnnxNode node;
  while (message.next()) {
    switch (message.field()) {
      case node_field::kInput:
        node.inputs.push_back(message.bytes());
        break;
      case node_field::kOutput:
        node.outputs.push_back(message.bytes());
        break;
      case node_field::kName:
        node.name = message.bytes();
        break;
      case node_field::kOp:
        node.op = message.bytes();
        break;
      case node_field::kAttribute:
        node.attributes.push_back(read_attribute(message.message(), depth));
        break;
      case node_field::kDomain:
        node.domain = message.bytes();
        break;
      default:
        break;
    }
  }
  if (node.op.empty()) message.fail("a node without an operation: is this an ONNX model?");
  if (node.domain == "ai.onnx") node.domain = "";
  return node;
}

OnnxGraph read_graph_at(WireReader message, std::size_t depth) {
  if (depth > kMostNestedGraphs) message.fail("graphs are nested more than 24 deep");
  OnnxGraph graph;
  while (message.next()) {
    switch (message.field()) {
      case graph_field::kNode:
        graph.nodes.push_back(read_node_at(message.message(), depth));
        break;
      case graph_field::kName:
        graph.name = message.bytes();
        break;
      case graph_field::kInitializer:
        graph.initializers.push_back(read_tensor(message.message()));
        break;
      case graph_field::kSparseInitializer:
        graph.initializers.push_back(read_sparse_tensor(message.message()));
        break;
      case graph_field::kInput:
        graph.inputs.push_back(read_value(message.message()));
        break;
      case graph_field::kOutput:
        graph.outputs.push_back(read_value(message.message()));
        break;
      case graph_field::kValue:
        graph.values.push_back(read_value(message.message()));
        break;
      default:
        break;
    }
  }
  return graph;
}

}  // namespace

std::int64_t element_bits(OnnxElement element) {
  switch (static_cast<std::uint8_t>(element)) {
    case 25:
    case 26:  // 2 bits
      return 2;
    case 21:
    case 22:
    case 23:  // 4 bits
      return 4;
    case 27:
    case 28:  // 6 bits
      return 6;
    case 2:
    case 3:
    case 9:
    case 17:
    case 18:
    case 19:
    case 20:
    case 24:  // one byte: integers, truth, 8-bit floats
      return 8;
    case 4:
    case 5:
    case 10:
    case 16:
      return 16;
    case 1:
    case 6:
    case 12:
      return 32;
    case 7:
    case 11:
    case 13:
    case 14:
      return 64;
    case 15:
      return 128;
    default:
      return 0;
  }
}

const OnnxAttribute* OnnxNode::find(std::string_view attribute) const {
  const auto at = std::ranges::find(attributes, attribute, &OnnxAttribute::name);
  return at == attributes.end() ? nullptr : &*at;
}

OnnxGraph read_onnx_graph(WireReader graph) { return read_graph_at(graph, 0); }
OnnxNode read_onnx_node(WireReader node) { return read_node_at(node, 0); }

std::optional<WireReader> find_onnx_graph(std::string_view bytes, const std::string& place) {
  std::optional<WireReader> graph;
  for (WireReader model(bytes, bytes, place); model.next();) {
    if (model.field() != onnx_field::kModelGraph) continue;
    if (graph.has_value()) model.fail("a second graph");
    graph = model.message();
  }
  return graph;
}

}  // namespace baechi
