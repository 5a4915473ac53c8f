// SPDX-License-Identifier: Apache-2.0
// Clusters in: a file, or one line such as "2x24GiB+2x8GiB@0.6" (docs/reference/file_formats.md).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "baechi/cluster/cluster.h"

namespace baechi {

// The link between any two devices when a one-liner comes without one: 50 us, 6 GB/s, what a tensor
// takes between two GPUs of one host through its memory (PCIe 3.0).
inline constexpr std::string_view kDefaultLink = "50us,6GB/s";

// A cluster as the command line gives it, all text as typed.
struct ClusterArgument {
  std::string cluster;                          // a file's path, a named cluster, or a one-liner
  std::optional<std::string> link;              // "50us,6GB/s": replaces every link rule
  std::optional<std::string> communication;     // "parallel", "sequential" or "duplex"
  std::optional<std::string> host_time = {};    // "2us,10us"
  std::optional<std::string> sends = {};        // "free", "blocking" or "100us,150us"
  std::optional<std::string> host_memory = {};  // "256GiB": one more device of kind host
};

// What names an existing file is read as a file. Throws InputError.
ClusterSpec read_cluster(const ClusterArgument& argument);
// The cluster with all else that the argument says.
ClusterSpec changed(ClusterSpec cluster, const ClusterArgument& argument);
ClusterSpec read_cluster_file(const std::filesystem::path& path);

// `place` stands for the file name in errors. The result satisfies Cluster's constructor.
ClusterSpec parse_cluster(std::string_view text, const std::string& place);
// COUNTx[KIND:]MEMORY[@SPEED] or COUNTxPRESET[@SPEED], or "host" or "host:MEMORY", joined by "+".
ClusterSpec parse_cluster_line(std::string_view line);
// "LATENCY,BANDWIDTH", "LATENCY" or "LATENCY,unlimited"; or one of link_names(): "pcie4", "10gbit", ...
LinkRule parse_link(std::string_view text);
std::vector<std::string> link_names();
CommunicationMode parse_communication(std::string_view text);
Sends parse_sends(std::string_view text);
// "SEND,RECEIVE", such as "100us,150us".
MessageTime parse_message_time(std::string_view text);
// "CALL,SEND" or "CALL,SEND,STEP", such as "2us,10us,1ms", or one time for calls and sends.
HostTime parse_host_time(std::string_view text);

}  // namespace baechi
