// SPDX-License-Identifier: Apache-2.0
// The version of the library; CMake passes it in from project().
#include "baechi/base/version.h"

namespace baechi {

std::string_view version() { return BAECHI_VERSION; }

}  // namespace baechi
