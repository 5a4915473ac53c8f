// SPDX-License-Identifier: Apache-2.0
// Values that several of our formats share: a bare number in the smallest unit, or text with one.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"
#include "baechi/io/json/json_reader.h"

namespace baechi {

Time read_time(JsonReader& json);            // 12500 or "12.5us"
Bytes read_bytes(JsonReader& json);          // 4194304 or "4MiB"
Bandwidth read_bandwidth(JsonReader& json);  // 6000000000 or "6GB/s"
Speed read_speed(JsonReader& json);          // 0.6, as a number
MemoryMode read_memory_mode(JsonReader& json);
CommunicationMode read_communication(JsonReader& json);
Sends read_sends(JsonReader& json);
bool read_per_step(JsonReader& json);  // "step" or "micro-batch"

std::string_view memory_mode_name(MemoryMode mode);           // "dataflow", "retain"
std::string_view communication_name(CommunicationMode mode);  // "parallel", "sequential", "duplex"
std::string_view sends_name(Sends sends);                     // "free", "blocking"

// Fails unless the value is exactly `format`.
void read_format(JsonReader& json, std::string_view format);
// Fails unless the value is 1.
void read_version(JsonReader& json);

// What a JSON document claims to be: its "format" field, wherever that is, and its field names up
// to there. Checks no more than it must read.
struct DocumentKind {
  std::optional<std::string> format;
  std::vector<std::string> fields;
};
DocumentKind document_kind(std::string_view text, const std::string& place);

}  // namespace baechi
