// SPDX-License-Identifier: Apache-2.0
// How much a device holds while each operator of its order runs. Beyond the paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "baechi/base/units.h"

namespace baechi {

// A tree over positions, made at the first question. `to` is never included.
class HeldOverTime {
 public:
  explicit HeldOverTime(std::size_t positions = 1);

  std::size_t size() const { return size_; }
  void add(std::size_t from, std::size_t to, Bytes bytes);  // negative: takes away
  // Whether so much more would nowhere there be more than `limit`.
  bool fits(std::size_t from, std::size_t to, Bytes more, Bytes limit);
  // The smallest position, not below `from`, from which on it fits up to `to`.
  std::size_t start_fitting(std::size_t from, std::size_t to, Bytes more, Bytes limit);

 private:
  struct Node {
    std::int64_t added = 0;  // to all below
    std::int64_t most = 0;   // below, with what was added here
    void add(std::int64_t bytes) { added += bytes, most += bytes; }
  };
  void make_tree();
  void update(std::size_t node);

  std::size_t size_, leaves_ = 1;
  bool made_ = false;
  std::vector<std::int64_t>
      steps_;                // before that: what every position has more than the one before
  std::vector<Node> nodes_;  // the root at 1; a leaf at both ends that is no position
};

}  // namespace baechi
