// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/star.h"

#include <algorithm>
#include <span>

namespace baechi::bounds {
namespace {

// When the neighbor has been done on the same device.
Ns local(const Neighbor& neighbor) {
  return std::min(kNever, std::min(neighbor.release, kNever) + neighbor.k);
}

// The end of the first `count` neighbors when one device works them off by release.
// `by_release` has their positions, latest release first.
Ns one_after_the_other(std::span<const Neighbor> neighbors,
                       std::span<const std::uint32_t> by_release, std::size_t count) {
  Ns work = 0, end = 0;
  for (const std::uint32_t i : by_release) {
    if (i >= count) continue;
    work += neighbors[i].k;
    end = std::max(end, neighbors[i].release + work);
  }
  return end;
}

}  // namespace

Ns Star::solve(std::vector<Neighbor>& neighbors) {
  if (neighbors.empty()) return 0;
  if (neighbors.size() == 1)
    return std::min(kNever, std::min(neighbors[0].sent, local(neighbors[0])));
  std::sort(neighbors.begin(), neighbors.end(),
            [](const Neighbor& a, const Neighbor& b) { return a.sent > b.sent; });
  std::size_t fewest = 0, most = 0;
  while (most < neighbors.size() && neighbors[most].k < kNever && neighbors[most].release < kNever)
    ++most;
  while (fewest < neighbors.size() && neighbors[fewest].sent >= kNever) ++fewest;
  if (fewest > most) return kNever;

  by_release_.resize(most);
  for (std::size_t i = 0; i < most; ++i) by_release_[i] = static_cast<std::uint32_t>(i);
  std::sort(by_release_.begin(), by_release_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return neighbors[a].release > neighbors[b].release;
  });
  const auto last_sent = [&](std::size_t count) {
    return count < neighbors.size() ? neighbors[count].sent : Ns{0};
  };
  // The local part grows with their number, the rest shrinks: look for the crossing.
  std::size_t low = fewest, high = most;
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (one_after_the_other(neighbors, by_release_, middle) >= last_sent(middle))
      high = middle;
    else
      low = middle + 1;
  }
  Ns least = std::max(one_after_the_other(neighbors, by_release_, low), last_sent(low));
  if (low > fewest)
    least = std::min(
        least, std::max(one_after_the_other(neighbors, by_release_, low - 1), last_sent(low - 1)));
  return std::min(least, kNever);
}

}  // namespace baechi::bounds
