// SPDX-License-Identifier: Apache-2.0
// The files of report/html/, which the build turns into a source file (cmake/BaechiEmbed.cmake).
// Private to report/.
#pragma once

#include <array>
#include <string_view>

namespace baechi::html {

extern const std::string_view kPage;
extern const std::string_view kStyle;
extern const std::array<std::string_view, 7> kScripts;  // in the order they go into the page

}  // namespace baechi::html
