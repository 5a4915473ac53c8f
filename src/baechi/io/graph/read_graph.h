// SPDX-License-Identifier: Apache-2.0
// ML graphs in, from every format that the core reads (docs/file_formats.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "baechi/base/cancel.h"
#include "baechi/graph/op_graph.h"
#include "baechi/io/profile/model_costs.h"

namespace baechi {

enum class GraphFormat : std::uint8_t {
  kBaechi,
  kDnnPartitioning,
  kPipeDream,
  kGraphDef,
  kOnnx,
  kChakra
};

// Tells the format by the content, not by the file's name. Throws InputError when it is none.
GraphFormat detect_graph_format(std::string_view text, const std::string& place);

// Every fault is an InputError of one line: "file:line:column: $.json.path: reason".
// The presets of `costs` are for formats that have no costs of their own; its profiles hold for
// all.
struct ReadOptions {
  ModelCosts costs = {};
  const CancelFlag* cancel = nullptr;
};
OpGraph read_graph(const std::filesystem::path& path, const ReadOptions& options = {});

// `place` stands for the file name in errors.
OpGraph parse_graph(std::string_view text, const std::string& place,
                    const ReadOptions& options = {});

}  // namespace baechi
