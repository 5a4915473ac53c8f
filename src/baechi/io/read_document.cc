// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/read_document.h"

#include "baechi/base/error.h"
#include "baechi/io/graph/read_graph.h"
#include "baechi/io/json/json_values.h"
#include "baechi/io/profile/onnx_runtime_profile.h"

namespace baechi {

DocumentType detect_document(std::string_view text, const std::string& place) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin != text.npos && text[begin] == '{') {
    const DocumentKind kind = document_kind(text, place);
    if (kind.format == "baechi-cluster") return DocumentType::kCluster;
    if (kind.format == "baechi-plan") return DocumentType::kPlan;
    if (kind.format == "baechi-placement") return DocumentType::kPlacement;
    if (kind.format == "baechi-profile") return DocumentType::kProfile;
    if (kind.format.has_value() && kind.format != "baechi-graph")
      throw InputError(place,
                       "the \"format\" is neither \"baechi-graph\", \"baechi-cluster\", "
                       "\"baechi-plan\", \"baechi-placement\" nor \"baechi-profile\"");
  }
  if (looks_like_onnx_runtime_profile(text)) return DocumentType::kProfile;
  detect_graph_format(text, place);
  return DocumentType::kGraph;
}

}  // namespace baechi
