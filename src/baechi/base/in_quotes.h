// SPDX-License-Identifier: Apache-2.0
// How messages show a name: 'a'.
#pragma once

#include <string>
#include <string_view>

namespace baechi {

inline std::string in_quotes(std::string_view name) { return "'" + std::string(name) + "'"; }

}  // namespace baechi
