// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/name_arena.h"

#include <algorithm>

namespace baechi {

std::string_view NameArena::store(std::string_view text) {
  if (text.empty()) return {};
  if (text.size() > left_) {
    constexpr std::size_t kBlock = std::size_t{64} * 1024;
    const std::size_t size = std::max(kBlock, text.size());
    blocks_.push_back(std::make_unique_for_overwrite<char[]>(size));
    next_ = blocks_.back().get();
    left_ = size;
  }
  char* const at = next_;
  std::copy(text.begin(), text.end(), at);
  next_ += text.size();
  left_ -= text.size();
  return {at, text.size()};
}

}  // namespace baechi
