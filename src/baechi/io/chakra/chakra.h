// SPDX-License-Identifier: Apache-2.0
// Chakra execution traces (MLCommons), read by their wire format. Private to io/: callers use
// read_graph.h.
#pragma once

#include <string>
#include <string_view>

#include "baechi/graph/op_graph.h"

namespace baechi {

// A sequence of messages with their lengths in front: the trace's metadata, then nodes.
bool looks_like_chakra(std::string_view bytes);

// One operator per node, with the duration that was recorded: on kind "cpu" or "gpu" where the node
// says which, else on any. Data dependencies carry what the producer's outputs take; control
// dependencies carry nothing. Throws InputError "file: node ID 'NAME': reason", or
// "file: byte N: reason" for what is no trace.
OpGraph parse_chakra(std::string_view bytes, const std::string& place);

}  // namespace baechi
