// SPDX-License-Identifier: Apache-2.0
// The nodes of a Chakra execution trace as its bytes have them. Private to io/.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "baechi/base/units.h"
#include "baechi/io/protobuf/wire_reader.h"

namespace baechi {

struct ChakraNode {
  std::uint64_t id = 0;
  std::string_view name;
  std::string_view kind;                     // "compute", "send", "all-reduce", ...
  std::vector<std::uint64_t> control, data;  // ids of the nodes that it waits for
  Time duration;
  std::optional<Bytes> outputs;
  std::optional<bool> on_cpu;
};

// Throws InputError.
ChakraNode read_chakra_node(WireReader message);

// What tensors written as text take: a list of [id, storage, offset, elements, bytes per element,
// device] for each ("values"), or their shapes beside their types. Nothing where neither tells.
std::optional<Bytes> chakra_tensor_bytes(std::string_view values, std::string_view shapes,
                                         std::string_view types);

}  // namespace baechi
