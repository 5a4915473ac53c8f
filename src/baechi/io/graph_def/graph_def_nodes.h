// SPDX-License-Identifier: Apache-2.0
// The nodes of a TensorFlow GraphDef as its bytes have them. Private to io/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/io/protobuf/wire_reader.h"

namespace baechi {

// Values of TensorFlow's enum DataType, as far as anything depends on them.
enum class DataType : std::uint8_t {
  kNone = 0,
  kFloat = 1,
  kInt32 = 3,
  kBool = 10,
  kResource = 20
};
inline constexpr std::uint8_t kFirstReferenceType = 100;  // what TF1 variables give out

// Bytes of one element; 0 for handles and for types whose elements have no fixed size.
std::int64_t element_bytes(DataType type);

struct GraphDefShape {
  std::vector<std::int64_t> sizes;  // -1: unknown
  bool unknown_rank = false;
};

// What matters of the attributes.
struct GraphDefAttributes {
  DataType type = DataType::kNone;        // of the outputs, as the operation's rules have it
  DataType index_type = DataType::kNone;  // "T"
  std::vector<DataType> types;            // of each output, where they are listed
  std::optional<GraphDefShape> shape;     // of a variable or placeholder
  std::vector<GraphDefShape> output_shapes;
  std::vector<std::string_view> colocated_with;
  std::string_view equation;  // of Einsum
  bool transpose_a = false;
};

struct GraphDefNode {
  std::string_view name, op;
  std::vector<std::string_view> inputs;  // "node", "node:2", "^node"
  GraphDefAttributes attributes;
};

// Reads one NodeDef. Throws InputError.
GraphDefNode read_graph_def_node(WireReader message);

// The type of output `port`.
DataType output_type(const GraphDefNode& node, std::size_t port);

}  // namespace baechi
