// SPDX-License-Identifier: Apache-2.0
// The fields of a cluster, alone in cluster.json and inside plan.json. Private to io/.
#pragma once

#include "baechi/cluster/cluster.h"
#include "baechi/io/json/json_reader.h"
#include "baechi/io/json/json_writer.h"

namespace baechi {

// With `standalone`, the object must have "format" and "version"; else it must not.
ClusterSpec read_cluster_object(JsonReader& json, bool standalone);
void write_cluster_object(JsonWriter& json, const ClusterSpec& spec, bool standalone);

}  // namespace baechi
