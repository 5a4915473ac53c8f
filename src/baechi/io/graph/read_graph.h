// SPDX-License-Identifier: Apache-2.0
// ML graphs in, from every format that the core reads (docs/reference/file_formats.md).
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "baechi/base/cancel.h"
#include "baechi/graph/op_graph.h"
#include "baechi/io/profile/model_costs.h"

namespace baechi {

struct DocumentKind;  // io/json/json_values.h

// Every fault is an InputError of one line: "file:line:column: $.json.path: reason".
// The presets of `costs` are for formats that have no costs of their own; its profiles hold for
// all.
struct ReadOptions {
  ModelCosts costs = {};
  const CancelFlag* cancel = nullptr;
};

// A row for every format; a new one is a row and its reader.
struct GraphFormat {
  std::string_view name;   // "ONNX model"
  std::string_view known;  // what it is recognised by, in words
  // Which of the two a format has: files that are no JSON tell by their bytes, others by what the
  // document says of itself.
  bool (*by_bytes)(std::string_view text) = nullptr;
  bool (*by_document)(const DocumentKind& document) = nullptr;
  // What of ReadOptions::costs it reads beside profiles: estimates, with sizes for open dimensions.
  bool estimated = false;
  bool named_dimensions = false;
  OpGraph (*read)(std::string_view text, const std::string& place, const ReadOptions& options);
};
std::span<const GraphFormat> graph_formats();
std::string graph_format_names();  // "graph.json, ... or ONNX model"

// Tells the format by the content, not by the file's name. Throws InputError when it is none.
const GraphFormat& detect_graph_format(std::string_view text, const std::string& place);

// Refuses costs that the file's format has no use for.
OpGraph read_graph(const std::filesystem::path& path, const ReadOptions& options = {});

// `place` stands for the file name in errors.
OpGraph parse_graph(std::string_view text, const std::string& place,
                    const ReadOptions& options = {});

}  // namespace baechi
