// SPDX-License-Identifier: Apache-2.0
// Text and numbers in an SVG file.
#pragma once

#include <string>
#include <string_view>

namespace baechi {

// With what XML reserves escaped, and control characters as spaces.
std::string xml_text(std::string_view text);

}  // namespace baechi
