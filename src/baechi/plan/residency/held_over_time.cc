// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/residency/held_over_time.h"

#include <algorithm>
#include <limits>

namespace baechi {

HeldOverTime::HeldOverTime(std::size_t positions) : size_(positions) {
  while (leaves_ < size_) leaves_ *= 2;
  nodes_.resize(2 * leaves_);
}

void HeldOverTime::add(std::size_t from, std::size_t to, Bytes bytes) {
  add({1, 0, leaves_}, from, std::min(to, size_), bytes.count());
}

bool HeldOverTime::fits(std::size_t from, std::size_t to, Bytes more, Bytes limit) const {
  if (from >= to) return true;
  return most({1, 0, leaves_}, from, std::min(to, size_)) + more.count() <= limit.count();
}

std::size_t HeldOverTime::start_fitting(std::size_t from, std::size_t to, Bytes more,
                                        Bytes limit) const {
  std::size_t low = from, high = std::max(from, to);
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (fits(middle, to, more, limit))
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

void HeldOverTime::add(const Part& part, std::size_t from, std::size_t to, std::int64_t bytes) {
  if (to <= part.begin || part.end <= from) return;
  Node& node = nodes_[part.node];
  if (from <= part.begin && part.end <= to) {
    node.added += bytes;
    node.most += bytes;
    return;
  }
  const std::size_t middle = (part.begin + part.end) / 2, left = 2 * part.node;
  add({left, part.begin, middle}, from, to, bytes);
  add({left + 1, middle, part.end}, from, to, bytes);
  node.most = node.added + std::max(nodes_[left].most, nodes_[left + 1].most);
}

std::int64_t HeldOverTime::most(const Part& part, std::size_t from, std::size_t to) const {
  if (to <= part.begin || part.end <= from) return std::numeric_limits<std::int64_t>::min() / 2;
  const Node& node = nodes_[part.node];
  if (from <= part.begin && part.end <= to) return node.most;
  const std::size_t middle = (part.begin + part.end) / 2, left = 2 * part.node;
  return node.added + std::max(most({left, part.begin, middle}, from, to),
                               most({left + 1, middle, part.end}, from, to));
}

}  // namespace baechi
