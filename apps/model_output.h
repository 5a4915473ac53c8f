// SPDX-License-Identifier: Apache-2.0
// Plans written into the model that they are for.
#pragma once

#include <optional>
#include <string>

#include "baechi/graph/op_graph.h"
#include "baechi/io/text/text_file.h"
#include "baechi/schedule/plan.h"

namespace baechi::cli {

enum class ModelFormat { kGraphDef, kOnnx };

// By the name of the file to be written: .pb, .onnx.
std::optional<ModelFormat> model_format(const std::string& path);

// The model at `path`, to be filled with a plan. Throws InputError when it is of another format, or
// standard input, which has been read by then.
SourceText read_model(const std::string& path, ModelFormat format);
std::string placed_model(const SourceText& model, ModelFormat format, const OpGraph& graph,
                         const Plan& plan);

}  // namespace baechi::cli
