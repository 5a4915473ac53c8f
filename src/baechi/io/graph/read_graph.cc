// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/graph/read_graph.h"

#include <algorithm>
#include <array>

#include "baechi/base/error.h"
#include "baechi/io/graph/dnn_partitioning.h"
#include "baechi/io/graph/graph_json.h"
#include "baechi/io/graph_def/graph_def.h"
#include "baechi/io/json/json_values.h"
#include "baechi/io/onnx/onnx.h"
#include "baechi/io/text/text_file.h"

namespace baechi {
namespace {

OpGraph read_baechi(std::string_view text, const std::string& place, const ReadOptions& options) {
  return parse_graph_json(text, place, options.cancel);
}

OpGraph read_dnn_partitioning(std::string_view text, const std::string& place, const ReadOptions&) {
  return graph_of(parse_dnn_partitioning(text, place), place);
}

OpGraph read_onnx(std::string_view text, const std::string& place, const ReadOptions& options) {
  return parse_onnx(text, place, {}, options.costs);
}

OpGraph read_graph_def(std::string_view text, const std::string& place,
                       const ReadOptions& options) {
  return parse_graph_def(text, place, {}, options.costs);
}

// A format of another version, too: its reader says what it knows.
bool is_baechi(const DocumentKind& document) { return document.format.has_value(); }

bool is_dnn_partitioning(const DocumentKind& document) {
  const auto has = [&](const char* field) {
    return std::find(document.fields.begin(), document.fields.end(), field) !=
           document.fields.end();
  };
  return has("nodes") && has("edges");
}

// In the order of help and errors; of several that may recognise a file, the first one reads it.
constexpr std::array<GraphFormat, 4> kFormats{{
    {.name = "graph.json",
     .known = "a JSON object with \"format\": \"baechi-graph\"",
     .by_document = is_baechi,
     .read = read_baechi},
    {.name = "dnn-partitioning JSON",
     .known = "an object with \"nodes\" and \"edges\"",
     .by_document = is_dnn_partitioning,
     .read = read_dnn_partitioning},
    {.name = "TensorFlow GraphDef",
     .known = ".pb, a node comes first",
     .by_bytes = looks_like_graph_def,
     .estimated = true,
     .read = read_graph_def},
    {.name = "ONNX model",
     .known = "the version of a model comes first",
     .by_bytes = looks_like_onnx,
     .estimated = true,
     .named_dimensions = true,
     .read = read_onnx},
}};

// "graph.json, ... or ONNX model", with what each is recognised by or without.
std::string listed(bool known) {
  std::string text;
  for (const GraphFormat& format : kFormats) {
    if (&format != &kFormats.front()) text += &format != &kFormats.back() ? ", " : " or ";
    text += format.name;
    if (known) text += " (" + std::string(format.known) + ")";
  }
  return text;
}

void refuse_saved_model(std::string_view text, const std::string& place) {
  if (looks_like_saved_model(text))
    throw InputError(
        place,
        "this is a TensorFlow SavedModel, whose functions are not inlined: in Python, "
        "baechi.tensorflow.capture(FOLDER, signature=...).save(\"step.pb\") writes the "
        "graph to place");
}

// Models in files that hold no graph which could be read here; each is placed in Python.
void refuse_model_file(std::string_view text, const std::string& place) {
  const std::string in_python =
      ": load the model in Python, and baechi.torch.place or "
      "baechi.tensorflow.place places it";
  if (text.starts_with("PK\x03\x04"))
    throw InputError(place,
                     "this is a zip archive, as torch.save and Keras write" + in_python +
                         " (of what torch.export.save wrote: torch.export.load(path).module())");
  if (text.size() > 1 && text[0] == '\x80' && text[1] >= 2 && text[1] <= 5)
    throw InputError(place, "this is a Python pickle" + in_python);
  if (text.starts_with("\x89HDF"))
    throw InputError(place, "this is an HDF5 file, as Keras writes" + in_python);
}

// What an earlier version read.
void refuse_gone(std::string_view text, const std::string& place) {
  const std::string instead =
      " no longer read: write a graph.json (docs/reference/file_formats.md)";
  if (place.ends_with(".et")) throw InputError(place, "Chakra traces are" + instead);
  if (text.substr(0, text.find('\n')).find(" -- ") != text.npos)
    throw InputError(place, "PipeDream's profiles are" + instead);
}

// Costs that would have no effect.
void refuse_unread(const GraphFormat& format, const std::string& place, const ModelCosts& costs) {
  const auto refuse = [&](std::string_view option, const std::string& reason) {
    throw InputError(place, std::string(option) + " has no effect on a " +
                                std::string(format.name) + ", " + reason);
  };
  const std::string own = "which has costs of its own: leave it out";
  if (!format.estimated && !costs.kinds.empty())
    refuse(costs.in_python ? "a preset in costs=" : "a preset in --costs", own);
  if (!format.estimated && costs.batch.has_value())
    refuse(costs.in_python ? "batch=" : "--batch",
           own + ", or make the graph for that batch size; what-if scales the costs");
  if (!format.named_dimensions && !costs.dimensions.empty())
    refuse(costs.in_python ? "dimensions=" : "--dim",
           format.estimated ? "whose dimensions have no names: " + batch_to_give(costs.in_python) +
                                  " is for those that it leaves open"
                            : own);
}

// Byte order marks and compressed files are JsonReader's to explain.
bool may_be_json(std::string_view text, std::size_t begin) {
  return static_cast<unsigned char>(text[begin]) >= 0x80 || text[begin] == 0x1F ||
         text[begin] == '{';
}

}  // namespace

std::span<const GraphFormat> graph_formats() { return kFormats; }

std::string graph_format_names() { return listed(false); }

const GraphFormat& detect_graph_format(std::string_view text, const std::string& place) {
  refuse_saved_model(text, place);  // which looks like an ONNX model
  for (const GraphFormat& format : kFormats)
    if (format.by_bytes != nullptr && format.by_bytes(text)) return format;
  refuse_model_file(text, place);
  refuse_gone(text, place);
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == text.npos) throw InputError(place, "the file is empty");
  if (!may_be_json(text, begin)) throw InputError(place, "not a graph: expected " + listed(true));
  const DocumentKind document = document_kind(text, place);
  for (const char* other : {"baechi-cluster", "baechi-plan", "baechi-placement", "baechi-profile"})
    if (document.format == other)
      throw InputError(place, "this is a " + document.format->substr(7) + ", expected a graph");
  for (const GraphFormat& format : kFormats)
    if (format.by_document != nullptr && format.by_document(document)) return format;
  throw InputError(place, "not a graph: expected " + listed(true));
}

OpGraph parse_graph(std::string_view text, const std::string& place, const ReadOptions& options) {
  return with_profiles(detect_graph_format(text, place).read(text, place, options), options.costs);
}

OpGraph read_graph(const std::filesystem::path& path, const ReadOptions& options) {
  const SourceText source = read_text_file(path);
  return reading(source.name, [&] {
    refuse_unread(detect_graph_format(source.text, source.name), source.name, options.costs);
    return parse_graph(source.text, source.name, options);
  });
}

}  // namespace baechi
