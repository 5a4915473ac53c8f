// SPDX-License-Identifier: Apache-2.0
// A placement in, as an expert writes it (docs/reference/file_formats.md).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// A plan file, or {"format": "baechi-placement", "version": 1, "device_of": {operator: device}}.
// Throws InputError when an operator or a device is unknown, or an operator is missing.
Placement read_placement(const std::filesystem::path& path, const OpGraph& graph,
                         const Cluster& cluster);
Placement parse_placement(std::string_view text, const std::string& place, const OpGraph& graph,
                          const Cluster& cluster);

// As far as a placement can be checked without its graph and cluster.
void check_placement_text(std::string_view text, const std::string& place);

}  // namespace baechi
