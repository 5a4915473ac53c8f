// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/graph_def/graph_def_nodes.h"

#include <algorithm>
#include <array>

namespace baechi {
namespace {

// Field numbers of graph.proto, node_def.proto, attr_value.proto and tensor_shape.proto.
namespace node_def {
enum : std::uint64_t { kName = 1, kOp = 2, kInput = 3, kAttribute = 5 };
}
namespace map_entry {
enum : std::uint64_t { kKey = 1, kValue = 2 };
}
namespace attr_value {
enum : std::uint64_t { kList = 1, kText = 2, kBool = 5, kType = 6, kShape = 7, kTensor = 8 };
}
namespace tensor_shape {
enum : std::uint64_t { kDim = 2, kUnknownRank = 3 };
}
namespace tensor {
enum : std::uint64_t { kShape = 2 };
}

constexpr std::string_view kSamePlace = "loc:@";
constexpr std::size_t kMostDimensions = 254;  // TensorFlow's own limit

DataType read_type(const WireReader& field) {
  const std::int64_t value = field.integer();
  if (value < 0 || value > 255) field.fail("unknown data type " + std::to_string(value));
  return static_cast<DataType>(value);
}

GraphDefShape read_shape(WireReader message) {
  GraphDefShape shape;
  while (message.next()) {
    if (message.field() == tensor_shape::kUnknownRank) shape.unknown_rank = message.integer() != 0;
    if (message.field() != tensor_shape::kDim) continue;
    std::int64_t size = 0;  // proto3 leaves zeros out
    for (WireReader dim = message.message(); dim.next();)
      if (dim.field() == 1) size = dim.integer();
    if (size < -1) message.fail("a dimension of " + std::to_string(size));
    if (shape.sizes.size() == kMostDimensions) message.fail("more than 254 dimensions");
    shape.sizes.push_back(size);
  }
  return shape;
}

std::vector<GraphDefShape> read_shapes(WireReader value) {
  std::vector<GraphDefShape> shapes;
  while (value.next())
    if (value.field() == attr_value::kList)
      for (WireReader list = value.message(); list.next();)
        if (list.field() == attr_value::kShape) shapes.push_back(read_shape(list.message()));
  return shapes;
}

// One type, or a list of them.
void read_types(WireReader value, DataType& one, std::vector<DataType>& many) {
  while (value.next()) {
    if (value.field() == attr_value::kType) one = read_type(value);
    if (value.field() != attr_value::kList) continue;
    for (WireReader list = value.message(); list.next();)
      if (list.field() == attr_value::kType)
        list.integers([&](std::int64_t type) {
          if (type < 0 || type > 255) list.fail("unknown data type " + std::to_string(type));
          many.push_back(static_cast<DataType>(type));
        });
  }
}

bool read_bool(WireReader value) {
  bool result = false;
  while (value.next())
    if (value.field() == attr_value::kBool) result = value.integer() != 0;
  return result;
}

std::string_view read_text(WireReader value) {
  std::string_view text;
  while (value.next())
    if (value.field() == attr_value::kText) text = value.bytes();
  return text;
}

// The shape itself, or that of a constant's value.
std::optional<GraphDefShape> read_one_shape(WireReader value) {
  while (value.next()) {
    if (value.field() == attr_value::kShape) return read_shape(value.message());
    if (value.field() == attr_value::kTensor) {
      for (WireReader content = value.message(); content.next();)
        if (content.field() == tensor::kShape) return read_shape(content.message());
      return GraphDefShape{};
    }
  }
  return std::nullopt;
}

void read_colocation(WireReader value, std::vector<std::string_view>& names) {
  while (value.next()) {
    if (value.field() != attr_value::kList) continue;
    for (WireReader list = value.message(); list.next();)
      if (list.field() == attr_value::kText && list.bytes().starts_with(kSamePlace))
        names.push_back(list.bytes().substr(kSamePlace.size()));
  }
}

// Attributes that say what the outputs are, the strongest first; "T" is last, since for some
// operations it is the type of the inputs only.
constexpr std::array<std::string_view, 9> kOutputTypes{"Tout",     "output_types",    "DstT",
                                                       "out_type", "output_type",     "dtype",
                                                       "Tparams",  "component_types", "T"};

struct TypeRank {  // of the attribute that set the output type so far
  std::size_t rank = kOutputTypes.size();
};

void read_attribute(WireReader entry, GraphDefAttributes& attributes, TypeRank& best) {
  std::string_view key;
  std::optional<WireReader> value;
  while (entry.next()) {
    if (entry.field() == map_entry::kKey) key = entry.bytes();
    if (entry.field() == map_entry::kValue) value = entry.message();
  }
  if (!value.has_value()) return;
  const auto type = std::find(kOutputTypes.begin(), kOutputTypes.end(), key);
  if (type != kOutputTypes.end()) {
    DataType one = DataType::kNone;
    std::vector<DataType> many;
    read_types(*value, one, many);
    if (key == "T") attributes.index_type = one;
    const auto rank = static_cast<std::size_t>(type - kOutputTypes.begin());
    if (rank < best.rank && (one != DataType::kNone || !many.empty())) {
      best.rank = rank;
      attributes.type = one;
      attributes.types = std::move(many);
    }
  } else if (key == "_output_shapes") {
    attributes.output_shapes = read_shapes(*value);
  } else if (key == "_class") {
    read_colocation(*value, attributes.colocated_with);
  } else if (key == "shape" || key == "value") {
    if (auto shape = read_one_shape(*value)) attributes.shape = std::move(shape);
  } else if (key == "equation") {
    attributes.equation = read_text(*value);
  } else if (key == "transpose_a" || key == "adj_x") {
    attributes.transpose_a = read_bool(*value);
  }
}

bool gives_truth(std::string_view op) {
  static constexpr std::array<std::string_view, 15> kOps{
      "All",        "Any",          "ApproximateEqual", "Equal",
      "Greater",    "GreaterEqual", "IsFinite",         "IsInf",
      "IsNan",      "Less",         "LessEqual",        "LogicalAnd",
      "LogicalNot", "LogicalOr",    "NotEqual"};
  return std::binary_search(kOps.begin(), kOps.end(), op) || op == "VarIsInitializedOp";
}

}  // namespace

std::int64_t element_bytes(DataType type) {
  switch (static_cast<std::uint8_t>(type) % kFirstReferenceType) {
    case 1:
    case 3:
    case 13:
    case 22:  // float, int32, qint32, uint32
      return 4;
    case 2:
    case 8:
    case 9:
    case 23:  // double, complex64, int64, uint64
      return 8;
    case 4:
    case 6:
    case 10:
    case 11:
    case 12:
    case 24:
    case 25:
    case 29:
    case 30:  // <= 8 bits
      return 1;
    case 5:
    case 14:
    case 15:
    case 16:
    case 17:
    case 19:  // int16, bfloat16, ..., half
      return 2;
    case 18:  // complex128
      return 16;
    default:  // strings, handles, variants
      return 0;
  }
}

GraphDefNode read_graph_def_node(WireReader message) {
  GraphDefNode node;
  TypeRank best;
  while (message.next()) {
    if (message.field() == node_def::kName) node.name = message.bytes();
    if (message.field() == node_def::kOp) node.op = message.bytes();
    if (message.field() == node_def::kInput) node.inputs.push_back(message.bytes());
    if (message.field() == node_def::kAttribute)
      read_attribute(message.message(), node.attributes, best);
  }
  if (node.name.empty()) message.fail("a node without a name: is this a GraphDef?");
  if (node.op.empty()) message.fail("a node without an operation: is this a GraphDef?");
  return node;
}

DataType output_type(const GraphDefNode& node, std::size_t port) {
  const GraphDefAttributes& attributes = node.attributes;
  if (node.op == "VarHandleOp") return DataType::kResource;  // its dtype is the variable's
  if (gives_truth(node.op)) return DataType::kBool;
  if (port < attributes.types.size()) return attributes.types[port];
  return attributes.type;
}

}  // namespace baechi
