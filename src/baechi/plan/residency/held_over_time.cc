// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/residency/held_over_time.h"

#include <algorithm>
#include <limits>

namespace baechi {

HeldOverTime::HeldOverTime(std::size_t positions) : size_(positions), steps_(positions + 1) {}

void HeldOverTime::make_tree() {
  made_ = true;
  while (leaves_ < size_ + 2) leaves_ *= 2;
  nodes_.resize(2 * leaves_);
  std::int64_t held = 0;
  for (std::size_t i = 0; i < size_; ++i) nodes_[leaves_ + 1 + i].add(held += steps_[i]);
  for (std::size_t node = leaves_ - 1; node > 0; --node) update(node);
}

void HeldOverTime::update(std::size_t node) {
  nodes_[node].most =
      nodes_[node].added + std::max(nodes_[2 * node].most, nodes_[2 * node + 1].most);
}

// From both ends up to the root, each a leaf outside: what lies between them are their neighbors.
void HeldOverTime::add(std::size_t from, std::size_t to, Bytes bytes) {
  to = std::min(to, size_);
  if (from >= to) return;
  if (!made_) {
    steps_[from] += bytes.count();
    steps_[to] -= bytes.count();
    return;
  }
  std::size_t left = leaves_ + from, right = leaves_ + 1 + to;
  while ((left ^ right) != 1) {
    if (left % 2 == 0) nodes_[left + 1].add(bytes.count());
    if (right % 2 == 1) nodes_[right - 1].add(bytes.count());
    update(left /= 2);
    update(right /= 2);
  }
  while ((left /= 2) > 0) update(left);
}

bool HeldOverTime::fits(std::size_t from, std::size_t to, Bytes more, Bytes limit) {
  to = std::min(to, size_);
  if (from >= to) return true;
  if (!made_) make_tree();
  constexpr std::int64_t kNothing = std::numeric_limits<std::int64_t>::min() / 2;
  std::int64_t most_left = kNothing, most_right = kNothing;
  std::size_t left = leaves_ + from, right = leaves_ + 1 + to;
  while ((left ^ right) != 1) {
    if (left % 2 == 0) most_left = std::max(most_left, nodes_[left + 1].most);
    if (right % 2 == 1) most_right = std::max(most_right, nodes_[right - 1].most);
    most_left += nodes_[left /= 2].added;
    most_right += nodes_[right /= 2].added;
  }
  std::int64_t most = std::max(most_left, most_right);
  while ((left /= 2) > 0) most += nodes_[left].added;
  return most + more.count() <= limit.count();
}

std::size_t HeldOverTime::start_fitting(std::size_t from, std::size_t to, Bytes more, Bytes limit) {
  if (fits(from, to, more, limit)) return from;
  std::size_t low = from + 1, high = std::max(from, to);
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (fits(middle, to, more, limit))
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

}  // namespace baechi
