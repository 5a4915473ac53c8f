// SPDX-License-Identifier: Apache-2.0
// The one test binary: doctest's main. Filter with -tc="m-etf:*", list with -ltc.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
