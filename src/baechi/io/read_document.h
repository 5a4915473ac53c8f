// SPDX-License-Identifier: Apache-2.0
// Which of our documents a text is, before one of the readers reads it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace baechi {

enum class DocumentType : std::uint8_t { kGraph, kCluster, kPlan, kPlacement, kProfile };

// By the "format" field of a JSON document; graphs of other formats are recognised too. Throws
// InputError when it is none of them.
DocumentType detect_document(std::string_view text, const std::string& place);

}  // namespace baechi
