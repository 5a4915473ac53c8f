// SPDX-License-Identifier: Apache-2.0
// A placement in, as an expert writes it (docs/reference/file_formats.md).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// What each device runs, a word such as "0F0" for each action; devices without any have no words.
using DeviceWords = IdVector<DeviceId, std::vector<std::string>>;

// A plan file, or {"format": "baechi-placement", "version": 1, "device_of": {operator: device}},
// where a name stands also for all others that have it as a part. Throws InputError when
// an operator or a device is unknown, or an operator is missing. Fills `order` if the file has one;
// without `order`, it may have none.
Placement read_placement(const std::filesystem::path& path, const OpGraph& graph,
                         const Cluster& cluster, std::optional<DeviceWords>* order = nullptr);
Placement parse_placement(std::string_view text, const std::string& place, const OpGraph& graph,
                          const Cluster& cluster, std::optional<DeviceWords>* order = nullptr);

// As far as a placement can be checked without its graph and cluster.
void check_placement_text(std::string_view text, const std::string& place);

}  // namespace baechi
