// SPDX-License-Identifier: Apache-2.0
// Which part every group is on, with the parts' loads kept up to date as groups move. Beyond the
// paper. Internal to place/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "baechi/dnn_partitioning/dnnp_instance.h"

namespace baechi::dnnp {

// Refers to the instance, which must outlive it.
class Assignment {
 public:
  // All groups on one part, whether they may run there or not.
  Assignment(const Instance& instance, std::size_t part);

  std::size_t part(std::size_t group) const { return part_[group]; }
  const std::vector<Index>& parts() const { return part_; }
  Ns load(std::size_t part) const { return load_[part]; }
  const std::vector<Ns>& loads() const { return load_; }
  std::int64_t bytes(std::size_t part) const { return bytes_[part]; }
  bool has_room(std::size_t group, std::size_t part) const {
    return bytes_[part] + in_.groups[group].bytes <= in_.capacity[part];
  }

  // O(nets and neighbors of the group).
  void move(std::size_t group, std::size_t to);

  // Largest load of a part.
  Ns max_load() const;
  // When the last call ends, every accelerator being one call; nothing when calls wait for each
  // other. O(accelerators^2 + edges of what is on the host).
  std::optional<Ns> latency();

 private:
  void move_source(std::size_t net, std::size_t from, std::size_t to);
  void move_reader(std::size_t net, std::size_t from, std::size_t to);
  bool is_host(std::size_t part) const { return part >= in_.num_accelerators; }
  void add_host_ops();
  void release(std::size_t node, Ns end);

  const Instance& in_;
  std::vector<Index> part_;          // [group]
  std::vector<Ns> load_;             // [part]
  std::vector<std::int64_t> bytes_;  // [part]
  std::vector<Index> readers_;       // [net * parts + part]: its reading groups there
  std::vector<Index> arcs_;          // [from * parts + to]: edges between groups on them
  // For latency(): accelerators are the first nodes, operators on the host the others.
  std::vector<Index> host_ops_;
  std::vector<std::optional<Index>> node_of_;     // [op]: on the host
  std::vector<std::vector<Index>> host_readers_;  // [part]: nodes, one for every edge
  std::vector<Index> waits_, ready_list_;
  std::vector<Ns> ready_;
};

}  // namespace baechi::dnnp
