// SPDX-License-Identifier: Apache-2.0
#include "apps/model_output.h"

#include "baechi/base/error.h"
#include "baechi/io/graph_def/write_graph_def.h"
#include "baechi/io/onnx/write_onnx.h"

namespace baechi::cli {

std::optional<ModelFormat> model_format(const std::string& path) {
  if (path.ends_with(".pb")) return ModelFormat::kGraphDef;
  if (path.ends_with(".onnx")) return ModelFormat::kOnnx;
  return std::nullopt;
}

SourceText read_model(const std::string& path, ModelFormat format) {
  const bool onnx = format == ModelFormat::kOnnx;
  if (path == "-")
    throw InputError(path, std::string(onnx ? "an ONNX model" : "a GraphDef") +
                               " is written from one in a file, not from standard input");
  SourceText model = read_text_file(path);
  if (onnx)
    check_onnx(model.text, model.name);
  else
    check_graph_def(model.text, model.name);
  return model;
}

std::string placed_model(const SourceText& model, ModelFormat format, const OpGraph& graph,
                         const Plan& plan) {
  return format == ModelFormat::kOnnx ? placed_onnx(model.text, model.name, graph, plan)
                                      : placed_graph_def(model.text, model.name, graph, plan);
}

}  // namespace baechi::cli
