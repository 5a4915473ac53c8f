// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/fill_drain.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "baechi/base/wide.h"

namespace baechi::bounds {
namespace {

struct Ends {  // of the components that take time, each in ascending order
  std::vector<Ns> heads, tails;
};

Ends ends_of_components(const Relaxation& relaxed, const HeadsTails& ends,
                        const Components& together) {
  const std::size_t num_types = relaxed.num_types();
  std::vector<Ns> head(together.count, kNever), tail(together.count, kNever);
  for (const OpId op : together.of.keys()) {
    const std::size_t component = together.of[op].index();
    for (std::size_t type = 0; type < num_types; ++type) {
      const std::size_t at = op.index() * num_types + type;
      if (relaxed.k[at] == 0 || relaxed.k[at] >= kNever) continue;
      head[component] = std::min(head[component], ends.b[at]);
      tail[component] = std::min(tail[component], ends.q[at]);
    }
  }
  std::erase_if(head, [](Ns time) { return time >= kNever; });
  std::erase_if(tail, [](Ns time) { return time >= kNever; });
  std::sort(head.begin(), head.end());
  std::sort(tail.begin(), tail.end());
  return {std::move(head), std::move(tail)};
}

}  // namespace

std::vector<std::int64_t> weights_of_devices(const Relaxation& relaxed,
                                             const LoadWeights& weights) {
  std::vector<std::int64_t> devices;
  for (std::size_t type = 0; type < relaxed.num_types(); ++type)
    devices.insert(devices.end(), relaxed.types[type].count, weights.y[type]);
  std::sort(devices.begin(), devices.end(), std::greater<>());
  return devices;
}

// With the k heaviest devices at work; more of them share the work, and wait more.
std::optional<Ns> shared_with_waits(WideInt work, std::span<const std::int64_t> devices,
                                    std::span<const Ns> heads, std::span<const Ns> tails) {
  const std::size_t most = std::min({devices.size(), heads.size(), tails.size()});
  std::optional<Ns> best;
  WideInt weight = 0;
  for (std::size_t i = 0; i < most; ++i) {
    work += static_cast<WideInt>(devices[i]) * (heads[i] + tails[i]);
    weight += devices[i];
    if (weight <= 0) continue;
    const Ns bound = ceil_divide(work, weight);
    if (!best.has_value() || bound < *best) best = bound;
  }
  return best;
}

Ns fill_drain(const Relaxation& relaxed, const HeadsTails& ends, const Components& together,
              const Lumps& lumps, const LoadWeights& weights) {
  // Memory has no price here, so that the devices that do nothing cost nothing.
  const std::optional<WideInt> work =
      least_cost(lumps, {weights.y, std::vector<std::int64_t>(weights.y.size(), 0)});
  if (!work.has_value()) return kNever;
  if (*work == 0) return 0;  // no device need do anything that takes time
  const Ends waits = ends_of_components(relaxed, ends, together);
  return shared_with_waits(*work / kPricedBytes, weights_of_devices(relaxed, weights), waits.heads,
                           waits.tails)
      .value_or(0);
}

}  // namespace baechi::bounds
