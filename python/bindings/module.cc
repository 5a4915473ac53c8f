// SPDX-License-Identifier: Apache-2.0
// The extension module baechi._core: one bind_<stage>() per stage. It converts, never decides.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>

#include "baechi/base/version.h"
#include "bindings.h"

namespace nb = nanobind;

NB_MODULE(_core, m) {
  m.doc() = "The C++ core of baechi. Import the package `baechi`, not this module.";
  m.def("version", &baechi::version, "The version of the C++ core, 'major.minor.patch'.");
  baechi::python::bind_errors(m);
  baechi::python::bind_profile(m);
  baechi::python::bind_graph(m);
  baechi::python::bind_graph_builder(m);
  baechi::python::bind_graph_arrays(m);
  baechi::python::bind_cluster(m);
  baechi::python::bind_optimize(m);
  baechi::python::bind_plan(m);
  baechi::python::bind_options(m);
  baechi::python::bind_place(m);
  baechi::python::bind_simulator(m);
  baechi::python::bind_generate(m);
  baechi::python::bind_study(m);
  baechi::python::bind_report(m);
}
