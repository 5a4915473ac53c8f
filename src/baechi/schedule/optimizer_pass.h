// SPDX-License-Identifier: Apache-2.0
// What one pass of the Graph Optimizer did (Paper 3.1.1 - 3.1.3), as a plan keeps it.
#pragma once

#include <cstddef>
#include <string>

namespace baechi {

struct OptimizerPass {
  struct Size {  // of a graph
    std::size_t ops = 0;
    std::size_t edges = 0;
    std::size_t groups = 0;  // of two or more operators that must share a device
    friend bool operator==(const Size&, const Size&) = default;
  };
  std::string pass;  // "colocate", "coplace", "fuse", "forward"
  Size before, after;
  std::string note;  // for people: what it did, or why it did nothing; may be empty

  friend bool operator==(const OptimizerPass&, const OptimizerPass&) = default;
};

}  // namespace baechi
