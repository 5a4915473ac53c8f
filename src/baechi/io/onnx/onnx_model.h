// SPDX-License-Identifier: Apache-2.0
// An ONNX model as its bytes have it: nodes, initializers, types. Private to io/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/io/protobuf/wire_reader.h"

namespace baechi {

// Values of ONNX's enum TensorProto.DataType, as far as anything depends on them.
enum class OnnxElement : std::uint8_t {
  kNone = 0,  // not told, or no tensor
  kFloat = 1,
  kUint8 = 2,
  kInt8 = 3,
  kInt32 = 6,
  kInt64 = 7,
  kText = 8,
  kBool = 9,
  kHalf = 10,
  kBfloat16 = 16
};

// Bits of one element; 0 for text and for what is no tensor.
std::int64_t element_bits(OnnxElement element);

using OnnxShape = std::vector<std::int64_t>;
using OnnxIntegers = std::vector<std::int64_t>;

inline constexpr std::size_t kMostOnnxDimensions = 64;
inline constexpr std::int64_t kMostOnnxSize = std::int64_t{1} << 40;  // of one dimension

struct OnnxDimension {
  std::optional<std::int64_t> size;
  std::string_view name;  // of an open dimension; may be empty
};

// An input, an output or a value_info.
struct OnnxValueType {
  std::string_view name;
  bool is_tensor = true;  // else: a sequence, a map, an optional
  OnnxElement element = OnnxElement::kNone;
  std::optional<std::vector<OnnxDimension>> dimensions;  // absent: not even a rank
};

// An initializer or a constant. Up to 64 numbers are kept: shapes may depend on them.
struct OnnxTensor {
  std::string_view name;
  OnnxElement element = OnnxElement::kNone;
  OnnxShape shape;
  std::optional<OnnxIntegers> integers;
  std::optional<std::vector<float>> numbers;
};

struct OnnxGraph;
struct OnnxAttribute {
  std::string_view name, text;
  std::optional<std::int64_t> integer;
  std::optional<float> number;
  OnnxIntegers integers;
  std::size_t list_length = 0;  // of numbers or texts
  std::optional<OnnxTensor> tensor;
  std::vector<OnnxGraph> graphs;
};

struct OnnxNode {
  std::string_view name, op, domain;
  std::vector<std::string_view> inputs, outputs;  // empty: left out
  std::vector<OnnxAttribute> attributes;

  const OnnxAttribute* find(std::string_view attribute) const;
};

struct OnnxGraph {
  std::string_view name;
  std::vector<OnnxNode> nodes;
  std::vector<OnnxTensor> initializers;
  std::vector<OnnxValueType> inputs, outputs, values;
};

namespace onnx_field {  // numbers of onnx.proto
inline constexpr std::uint64_t kModelIrVersion = 1, kModelGraph = 7, kModelConfiguration = 26;
inline constexpr std::uint64_t kGraphNode = 1, kGraphInput = 11;
inline constexpr std::uint64_t kNodeOutput = 2, kNodeMetadata = 9, kNodeDevices = 10;
}  // namespace onnx_field

// Throws InputError "file: byte N: reason".
OnnxGraph read_onnx_graph(WireReader graph);
OnnxNode read_onnx_node(WireReader node);

// The model's main graph, still as bytes; nothing when there is none. Throws when there are two.
std::optional<WireReader> find_onnx_graph(std::string_view bytes, const std::string& place);

}  // namespace baechi
