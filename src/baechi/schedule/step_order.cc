// SPDX-License-Identifier: Apache-2.0
#include "baechi/schedule/step_order.h"

#include <cstdint>
#include <optional>

namespace baechi {

DeviceOrder with_sums_behind(const Unrolled& step, const DeviceOrder& order) {
  IdVector<OpId, std::optional<OpId>> sum(step.graph.num_ops());  // by copy 0
  for (std::size_t i = step.first_sum; i < step.graph.num_ops(); ++i)
    if (step.is_sum(OpId(i))) sum[step.original[OpId(i)]] = OpId(i);
  IdVector<OpId, std::uint32_t> copies(step.graph.num_ops());  // seen so far, by copy 0
  DeviceOrder result(order.size());
  for (const DeviceId device : order.keys())
    for (const OpId op : order[device]) {
      if (step.is_sum(op)) continue;
      result[device].push_back(op);
      const OpId original = step.original[op];
      if (sum[original].has_value() && ++copies[original] == step.micro_batches)
        result[device].push_back(*sum[original]);
    }
  return result;
}

}  // namespace baechi
