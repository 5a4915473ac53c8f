// SPDX-License-Identifier: Apache-2.0
// Plans as the settings of programs that run models: which part goes on which device, in their
// words (docs/how_to/exports.md).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "baechi/graph/op_graph.h"
#include "baechi/schedule/plan.h"

namespace baechi {

struct ExportFormat {
  std::string_view name;  // on the command line and in Python
  std::string_view summary;
  std::string (*write)(const OpGraph&, const Plan&);  // throws InputError when it cannot say it
  bool placement_alone = false;  // for a program that runs the model in an order of its own
};
std::span<const ExportFormat> export_formats();

// Throws InputError that lists the known names.
const ExportFormat& find_export_format(std::string_view name);

}  // namespace baechi
