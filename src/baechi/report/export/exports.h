// SPDX-License-Identifier: Apache-2.0
// Plans as the settings of programs that run models: which part goes on which device, in their
// words (docs/how_to/exports.md).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "baechi/graph/op_graph.h"
#include "baechi/graph/unroll.h"
#include "baechi/schedule/plan.h"

namespace baechi {

struct ExportFormat {
  std::string_view name;  // on the command line and in Python
  std::string_view summary;
  std::string (*write)(const OpGraph&, const Plan&);  // throws InputError when it cannot say it
  bool placement_alone = false;  // for a program that runs the model in an order of its own
  // Of a step of several micro-batches, where `write` would not do.
  std::string (*write_step)(const Unrolled&, const Plan&) = nullptr;
  bool of_micro_batch = false;  // `write` takes the graph of one micro-batch, and finds its copies
  std::string_view form = {};   // of several under one name, the first of which is the default
};
std::span<const ExportFormat> export_formats();

// What an earlier version had, and what says it now.
std::span<const std::pair<std::string_view, std::string_view>> gone_export_formats();

// A plan of a step of micro-batches, whose ids are those of `step`. Formats of the placement alone
// know the operators of one micro-batch: they come first in a step, under their ids, and all copies
// of one are on its device. The other formats know all copies.
std::string write_export(const ExportFormat& format, const Unrolled& step,
                         const OpGraph& micro_batch, const Plan& plan);

// Throws InputError when the plan has second runs or a host's memory, and the format no words for
// them.
void check_can_tell(const ExportFormat& format, const Plan& plan);

// Throws InputError that lists the known names, or the forms of that name.
const ExportFormat& find_export_format(std::string_view name, std::string_view form = {});

}  // namespace baechi
