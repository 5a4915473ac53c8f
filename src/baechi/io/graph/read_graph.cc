// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/graph/read_graph.h"

#include <algorithm>

#include "baechi/base/error.h"
#include "baechi/io/chakra/chakra.h"
#include "baechi/io/graph/dnn_partitioning.h"
#include "baechi/io/graph/graph_json.h"
#include "baechi/io/graph/pipedream.h"
#include "baechi/io/graph_def/graph_def.h"
#include "baechi/io/json/json_reader.h"
#include "baechi/io/json/json_values.h"
#include "baechi/io/onnx/onnx.h"
#include "baechi/io/text/text_file.h"

namespace baechi {
namespace {

constexpr const char* kKnownFormats =
    "not a graph: expected graph.json (a JSON object with \"format\": \"baechi-graph\"), "
    "dnn-partitioning JSON, PipeDream's graph.txt, an ONNX model, a TensorFlow GraphDef or a "
    "Chakra trace";

}  // namespace

GraphFormat detect_graph_format(std::string_view text, const std::string& place) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (looks_like_graph_def(text)) return GraphFormat::kGraphDef;
  if (looks_like_saved_model(text))
    throw InputError(
        place,
        "this is a TensorFlow SavedModel, whose functions are not inlined: in Python, "
        "baechi.tensorflow.capture(FOLDER, signature=...).save(\"step.pb\") writes the "
        "graph to place");
  if (looks_like_onnx(text)) return GraphFormat::kOnnx;
  if (looks_like_chakra(text)) return GraphFormat::kChakra;
  if (begin == text.npos) throw InputError(place, "the file is empty");
  // Byte order marks and compressed files are JsonReader's to explain.
  if (static_cast<unsigned char>(text[begin]) < 0x80 && text[begin] != 0x1F && text[begin] != '{') {
    if (text.find(" -- ") != text.npos && text.substr(begin, 4096).find('\0') == text.npos)
      return GraphFormat::kPipeDream;
    throw InputError(place, kKnownFormats);
  }
  const DocumentKind kind = document_kind(text, place);
  if (kind.format.has_value()) {
    if (*kind.format == "baechi-cluster" || *kind.format == "baechi-plan" ||
        *kind.format == "baechi-placement" || *kind.format == "baechi-profile")
      throw InputError(place, "this is a " + kind.format->substr(7) + ", expected a graph");
    return GraphFormat::kBaechi;
  }
  const auto has = [&](const char* field) {
    return std::find(kind.fields.begin(), kind.fields.end(), field) != kind.fields.end();
  };
  if (has("nodes") && has("edges")) return GraphFormat::kDnnPartitioning;
  throw InputError(place, kKnownFormats);
}

namespace {

OpGraph parse_any(std::string_view text, const std::string& place, const ReadOptions& options) {
  switch (detect_graph_format(text, place)) {
    case GraphFormat::kBaechi:
      return parse_graph_json(text, place, options.cancel);
    case GraphFormat::kPipeDream:
      return parse_pipedream(text, place);
    case GraphFormat::kGraphDef:
      return parse_graph_def(text, place, {}, options.costs);
    case GraphFormat::kOnnx:
      return parse_onnx(text, place, {}, options.costs);
    case GraphFormat::kChakra:
      return parse_chakra(text, place);
    case GraphFormat::kDnnPartitioning:
      break;
  }
  return graph_of(parse_dnn_partitioning(text, place), place);
}

}  // namespace

OpGraph parse_graph(std::string_view text, const std::string& place, const ReadOptions& options) {
  return with_profiles(parse_any(text, place, options), options.costs);
}

OpGraph read_graph(const std::filesystem::path& path, const ReadOptions& options) {
  const SourceText source = read_text_file(path);
  return reading(source.name, [&] { return parse_graph(source.text, source.name, options); });
}

}  // namespace baechi
