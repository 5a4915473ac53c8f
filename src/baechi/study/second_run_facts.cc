// SPDX-License-Identifier: Apache-2.0
#include "baechi/study/second_run_facts.h"

#include <algorithm>
#include <cstddef>

namespace baechi {

std::vector<SecondRunFacts> second_run_facts(const OpGraph& graph, const Plan& plan) {
  if (plan.micro_batches > 1) return {};
  const Schedule& schedule = plan.schedule;
  IdVector<OpId, Time> sent(graph.num_ops());  // when the last copy of an output is away
  for (const Transfer& transfer : schedule.transfers) {
    Time& last = sent[graph.producer(transfer.tensor)];
    last = std::max(last, transfer.end);
  }
  std::vector<SecondRunFacts> facts;
  const std::size_t first = graph.num_ops() - plan.recomputed.size();
  for (std::size_t i = 0; i < plan.recomputed.size(); ++i) {
    const OpId op = plan.recomputed[i].op, run(first + i);
    const OpSlot& slot = schedule.slots[run];
    SecondRunFacts fact{.op = op,
                        .run = run,
                        .device = slot.device,
                        .time = slot.end - slot.start,
                        .bytes = graph.output_bytes(run),
                        .from = std::max(schedule.slots[op].end, sent[op]),
                        .until = slot.start};
    for (const Edge& edge : graph.out_edges(op))
      if (edge.tensor.has_value() && schedule.slots[edge.to].device == slot.device)
        fact.from = std::max(fact.from, schedule.slots[edge.to].end);
    fact.from = std::min(fact.from, fact.until);
    facts.push_back(fact);
  }
  const auto saved = [](const SecondRunFacts& fact) {
    return static_cast<double>(fact.bytes.count()) *
           static_cast<double>((fact.until - fact.from).count());
  };
  std::stable_sort(facts.begin(), facts.end(),
                   [&](const auto& a, const auto& b) { return saved(a) > saved(b); });
  return facts;
}

}  // namespace baechi
