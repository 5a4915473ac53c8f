// SPDX-License-Identifier: Apache-2.0
// The version of the library, of the command and of the Python package: one number.
#pragma once

#include <string_view>

namespace baechi {

// "major.minor.patch".
std::string_view version();

}  // namespace baechi
