// SPDX-License-Identifier: Apache-2.0
// Text storage with stable addresses: a million operator names in a few blocks, not a million
// allocations. Views stay valid when the arena is moved, and die with it.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

namespace baechi {

class NameArena {
 public:
  std::string_view store(std::string_view text);

 private:
  std::vector<std::unique_ptr<char[]>> blocks_;
  char* next_ = nullptr;
  std::size_t left_ = 0;
};

}  // namespace baechi
