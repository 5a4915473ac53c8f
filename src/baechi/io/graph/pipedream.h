// SPDX-License-Identifier: Apache-2.0
// PipeDream's graph.txt, the profile of a PyTorch model. Private to io/: callers use read_graph.h.
#pragma once

#include <string>
#include <string_view>

#include "baechi/graph/op_graph.h"

namespace baechi {

// Text that is no JSON, with a separator of the format in it.
bool looks_like_pipedream(std::string_view text);

// Every node becomes a forward operator and its backward (docs/reference/file_formats.md). Throws
// InputError "file:line:column: reason".
OpGraph parse_pipedream(std::string_view text, const std::string& place);

}  // namespace baechi
