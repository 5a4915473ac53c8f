// SPDX-License-Identifier: Apache-2.0
// The reader of graph.json, our own format. Private to io/: callers use read_graph.h.
#pragma once

#include <string>
#include <string_view>

#include "baechi/base/cancel.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

OpGraph parse_graph_json(std::string_view text, const std::string& place, const CancelFlag* cancel);

}  // namespace baechi
