// SPDX-License-Identifier: Apache-2.0
// A priority queue for values that mostly come in order already: those wait in line, and only the
// others go through a heap.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

namespace baechi::simulation {

template <class T>
class SortedLane {
 public:
  void clear() {
    line_.clear();
    next_ = 0;
    heap_.clear();
  }
  void push(const T& value) {
    if (next_ == line_.size() || !(value < line_.back())) {
      line_.push_back(value);
    } else {
      heap_.push_back(value);
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    }
  }
  // The least value; nullptr when there is none.
  const T* first() const {
    const T* in_line = next_ < line_.size() ? &line_[next_] : nullptr;
    if (heap_.empty()) return in_line;
    return in_line == nullptr || heap_.front() < *in_line ? &heap_.front() : in_line;
  }
  void pop() {
    if (heap_.empty() || first() != &heap_.front()) {
      ++next_;
      return;
    }
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    heap_.pop_back();
  }

 private:
  std::vector<T> line_;  // in order; what was taken out stays in front of next_
  std::size_t next_ = 0;
  std::vector<T> heap_;
};

}  // namespace baechi::simulation
