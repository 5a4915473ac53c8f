// SPDX-License-Identifier: Apache-2.0
#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "bindings.h"

namespace nb = nanobind;

namespace baechi::python {

void bind_errors(nb::module_& m) {
  nb::exception<InputError>(m, "InputError", PyExc_ValueError);
  nb::exception<InternalError>(m, "InternalError", PyExc_RuntimeError);
}

}  // namespace baechi::python
