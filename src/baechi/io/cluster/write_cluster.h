// SPDX-License-Identifier: Apache-2.0
// cluster.json out (docs/reference/file_formats.md).
#pragma once

#include <string>

#include "baechi/cluster/cluster.h"

namespace baechi {

// read_cluster() gives an equal spec back.
std::string cluster_to_json(const ClusterSpec& spec);

}  // namespace baechi
