// SPDX-License-Identifier: Apache-2.0
// What a plan's file says beside who runs where and when: the bounds it is compared with, the
// methods that were tried, the passes over its graph, and words. Private to io/.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "baechi/io/json/json_reader.h"
#include "baechi/schedule/optimizer_pass.h"
#include "baechi/schedule/plan.h"

namespace baechi {

std::vector<NamedBound> read_bounds(JsonReader& json);
std::vector<MethodOutcome> read_methods(JsonReader& json, std::size_t num_devices);
std::vector<OptimizerPass> read_passes(JsonReader& json);
std::vector<std::string> read_texts(JsonReader& json);

}  // namespace baechi
