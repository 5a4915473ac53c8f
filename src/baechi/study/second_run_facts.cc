// SPDX-License-Identifier: Apache-2.0
#include "baechi/study/second_run_facts.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "baechi/base/assert.h"

namespace baechi {
namespace {

// So many gaps overlap at most; one that ends where another begins does not.
std::size_t most_at_once(const std::vector<SecondRunFacts::Gap>& gaps) {
  std::vector<std::pair<Time, int>> changes;
  for (const auto& [from, until] : gaps)
    if (from < until) changes.insert(changes.end(), {{from, 1}, {until, -1}});
  std::sort(changes.begin(), changes.end());
  int open = 0, most = 0;
  for (const auto& [time, change] : changes) most = std::max(most, open += change);
  return static_cast<std::size_t>(most);
}

}  // namespace

Time SecondRunFacts::dropped() const {
  Time sum;
  for (const Gap& gap : gaps) sum += gap.until - gap.from;
  return sum;
}

std::vector<SecondRunFacts> second_run_facts(const StepGraph& step, const Plan& plan) {
  BAECHI_ASSERT(step.micro_batches() == plan.micro_batches, "the plan is one of this step");
  const OpGraph& graph = step.graph();
  const Schedule& schedule = plan.schedule;
  IdVector<OpId, Time> sent(graph.num_ops());  // when the last copy of an output is away
  for (const Transfer& transfer : schedule.transfers) {
    Time& last = sent[graph.producer(transfer.tensor)];
    last = std::max(last, transfer.end);
  }
  const auto gap_of = [&](OpId op, OpId run) {
    const OpSlot& slot = schedule.slots[run];
    Time from = std::max(schedule.slots[op].end, sent[op]);
    for (const Edge& edge : graph.out_edges(op))
      if (edge.tensor.has_value() && schedule.slots[edge.to].device == slot.device)
        from = std::max(from, schedule.slots[edge.to].end);
    return SecondRunFacts::Gap{std::min(from, slot.start), slot.start};
  };
  std::vector<SecondRunFacts> facts;
  const std::size_t first = plan.replicas.ops_of_one(step.ops_of_one()) - plan.recomputed.size();
  for (std::size_t i = 0; i < plan.recomputed.size(); ++i) {
    const OpId op = plan.recomputed[i].op, run(first + i);
    const OpSlot& slot = schedule.slots[run];
    SecondRunFacts fact{.op = op,
                        .run = run,
                        .name = std::string(step.name(op)),
                        .device = slot.device,
                        .time = slot.end - slot.start,
                        .bytes = graph.output_bytes(run),
                        .gaps = {}};
    for (std::uint32_t m = 0; m < step.micro_batches(); ++m)
      fact.gaps.push_back(gap_of(step.copy(op, m), step.copy(run, m)));
    fact.at_once = most_at_once(fact.gaps);
    facts.push_back(std::move(fact));
  }
  const auto saved = [](const SecondRunFacts& fact) {
    return static_cast<double>(fact.bytes.count()) * static_cast<double>(fact.dropped().count());
  };
  std::stable_sort(facts.begin(), facts.end(),
                   [&](const auto& a, const auto& b) { return saved(a) > saved(b); });
  return facts;
}

}  // namespace baechi
