// SPDX-License-Identifier: Apache-2.0
#include "baechi/base/version.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>

TEST_CASE("version: three numbers with dots between them") {
  const std::string_view version = baechi::version();
  CHECK(std::count(version.begin(), version.end(), '.') == 2);
  CHECK(version.find_first_not_of("0123456789.") == std::string_view::npos);
}
