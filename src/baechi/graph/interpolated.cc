// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/interpolated.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/graph/recosted.h"

namespace baechi {
namespace {

bool same_times(const OpGraph& a, const OpGraph& b, OpId op) {
  return a.num_kinds() == b.num_kinds() &&
         std::all_of(a.kinds().begin(), a.kinds().end(), [&](KindId kind) {
           const std::optional<KindId> other = b.find_kind(a.kind_name(kind));
           return other.has_value() &&
                  a.times(kind)[op].has_value() == b.times(*other)[op].has_value();
         });
}

// Beside the name: what it reads, who it is and where it may run.
bool same_operator(const OpGraph& a, const OpGraph& b, OpId op) {
  const Operator &x = a[op], &y = b[op];
  return x.name == y.name && x.backward == y.backward && x.forward == y.forward &&
         x.per_step == y.per_step && x.recompute == y.recompute && x.pin == y.pin &&
         x.variable == y.variable && x.random == y.random && x.group == y.group &&
         a.outputs(op).size() == b.outputs(op).size() && same_times(a, b, op) &&
         std::ranges::equal(a.in_edges(op), b.in_edges(op));
}

std::int64_t batch_of(const OpGraph& graph) {
  if (!graph.batch_size().has_value())
    throw InputError("the graph does not say for which batch size its costs are (\"batch_size\")");
  return *graph.batch_size();
}

std::vector<const OpGraph*> by_size(std::span<const OpGraph> sizes) {
  std::vector<const OpGraph*> sorted;
  for (const OpGraph& graph : sizes) sorted.push_back(&graph);
  std::ranges::sort(sorted, {}, [](const OpGraph* graph) { return batch_of(*graph); });
  return sorted;
}

// From one graph to another, `part` of `whole` of the way.
class Between {
 public:
  Between(const OpGraph& low, const OpGraph& high, std::int64_t batch_size)
      : low_(low),
        high_(high),
        batch_size_(batch_size),
        part_(batch_size - batch_of(low)),
        whole_(batch_of(high) - batch_of(low)) {}

  OpGraph build() const {
    return recosted(
        low_, {.times = [&](OpId op) { return times(op); },
               .permanent =
                   [&](OpId op, Bytes bytes) {
                     return Bytes(value(bytes.count(), high_[op].permanent.count(), "memory"));
                   },
               .temporary =
                   [&](OpId op, Bytes bytes) {
                     return Bytes(value(bytes.count(), high_[op].temporary.count(), "memory"));
                   },
               .output =
                   [&](TensorId tensor, Bytes bytes) {
                     return Bytes(value(bytes.count(), high_.size(tensor).count(), "memory"));
                   },
               .batch_size = batch_size_});
  }

 private:
  std::int64_t value(std::int64_t low, std::int64_t high, const char* quantity) const {
    if (high >= low) return low + scale_up(high - low, part_, whole_, quantity);
    return high + scale_up(low - high, whole_ - part_, whole_, quantity);
  }
  std::vector<KindTime> times(OpId op) const {
    std::vector<KindTime> times;
    for (const KindId kind : low_.kinds()) {
      const std::optional<Time> time = low_.times(kind)[op];
      if (!time.has_value()) continue;
      const KindId other = *high_.find_kind(low_.kind_name(kind));
      times.push_back({std::string(low_.kind_name(kind)),
                       Time(value(time->count(), high_.times(other)[op]->count(), "time"))});
    }
    return times;
  }

  const OpGraph &low_, &high_;
  std::int64_t batch_size_, part_, whole_;
};

}  // namespace

void check_sizes_of_one(std::span<const OpGraph> sizes) {
  const std::vector<const OpGraph*> sorted = by_size(sizes);
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const OpGraph &a = *sorted[i - 1], &b = *sorted[i];
    const std::string which = "the graphs for batch sizes " + std::to_string(batch_of(a)) +
                              " and " + std::to_string(batch_of(b));
    if (batch_of(a) == batch_of(b))
      throw InputError("two graphs are for the batch size " + std::to_string(batch_of(a)) +
                       ": give one of them at another size");
    if (a.num_ops() != b.num_ops())
      throw InputError(which + " are not one graph: they have " + std::to_string(a.num_ops()) +
                       " and " + std::to_string(b.num_ops()) + " operators");
    if (!std::ranges::equal(a.writes(), b.writes()))
      throw InputError(which + " are not one graph: they write other variables");
    if (a.memory_mode() != b.memory_mode())
      throw InputError(which + " are not one graph: their memory modes differ");
    for (const OpId op : a.ops())
      if (!same_operator(a, b, op))
        throw InputError(which + " are not one graph: they differ in operator " +
                         in_quotes(a[op].name));
  }
}

OpGraph at_batch_size(std::span<const OpGraph> sizes, std::int64_t batch_size) {
  check_sizes_of_one(sizes);
  const std::vector<const OpGraph*> sorted = by_size(sizes);
  const std::int64_t least = batch_of(*sorted.front()), most = batch_of(*sorted.back());
  if (batch_size < least || batch_size > most)
    throw InputError("a micro-batch of " + std::to_string(batch_size) +
                     " samples is outside of the batch sizes that there are costs for, " +
                     std::to_string(least) + " to " + std::to_string(most) +
                     ": give the graph at " + (batch_size < least ? "a smaller" : "a larger") +
                     " one, too, or take another number of micro-batches");
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (batch_of(*sorted[i]) == batch_size) return recosted(*sorted[i], {});
    if (batch_of(*sorted[i]) > batch_size)
      return Between(*sorted[i - 1], *sorted[i], batch_size).build();
  }
  return recosted(*sorted.back(), {});
}

}  // namespace baechi
