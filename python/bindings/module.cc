// SPDX-License-Identifier: Apache-2.0
// The extension module baechi._core: one bind_<stage>() per stage. It converts, never decides.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>

#include "baechi/base/version.h"

namespace nb = nanobind;

NB_MODULE(_core, m) {
  m.doc() = "The C++ core of baechi. Import the package `baechi`, not this module.";
  m.def("version", &baechi::version, "The version of the C++ core, 'major.minor.patch'.");
}
