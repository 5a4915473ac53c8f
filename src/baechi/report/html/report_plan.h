// SPDX-License-Identifier: Apache-2.0
// A plan as a report shows it.
#pragma once

#include <string>

#include "baechi/schedule/plan.h"

namespace baechi {

struct ReportPlan {
  const Plan* plan = nullptr;  // borrowed
  std::string label;           // what the page calls it: "A", a file's name
};

}  // namespace baechi
