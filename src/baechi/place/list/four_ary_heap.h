// SPDX-License-Identifier: Apache-2.0
// A binary heap's flatter cousin: half the levels, and the four children of a node lie together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace baechi {

template <class Entry>  // ordered by operator<, the smallest is on top
class FourAryHeap {
 public:
  bool empty() const { return entries_.empty(); }
  const Entry& top() const { return entries_.front(); }

  void push(const Entry& entry) {
    std::size_t at = entries_.size();
    entries_.push_back(entry);
    while (at > 0) {
      const std::size_t parent = (at - 1) / 4;
      if (!(entry < entries_[parent])) break;
      entries_[at] = entries_[parent];
      at = parent;
    }
    entries_[at] = entry;
  }

  void pop() {
    const Entry last = entries_.back();
    entries_.pop_back();
    const std::size_t size = entries_.size();
    if (size == 0) return;
    std::size_t at = 0;
    for (std::size_t first = 1; first < size; first = 4 * at + 1) {
      std::size_t least = first;
      for (std::size_t child = first + 1; child < std::min(first + 4, size); ++child)
        if (entries_[child] < entries_[least]) least = child;
      if (!(entries_[least] < last)) break;
      entries_[at] = entries_[least];
      at = least;
    }
    entries_[at] = last;
  }

  // All entries, in no useful order; the heap is empty afterwards.
  std::vector<Entry> take() { return std::exchange(entries_, {}); }

 private:
  std::vector<Entry> entries_;
};

}  // namespace baechi
