// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/grouping.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

namespace baechi {
// Classes past the last bit count as unable, which only makes groups smaller than they could be.
std::uint64_t class_bits(const CostModel& costs, OpId op) {
  constexpr std::size_t kBits = 64;
  std::uint64_t bits = 0;
  for (std::size_t c = 0; c < std::min(kBits, costs.num_classes()); ++c)
    if (costs.class_times(DeviceClassId(c))[op].has_value()) bits |= std::uint64_t{1} << c;
  return bits;
}

IdVector<OpId, Time> mean_work(const CostModel& costs) {
  IdVector<DeviceClassId, std::int64_t> devices_in(costs.num_classes());
  for (const DeviceId device : costs.cluster().devices()) ++devices_in[costs.class_of(device)];
  const std::size_t num_ops = costs.graph().num_ops();
  IdVector<OpId, Time> work(num_ops);
  if (costs.num_classes() == 1) {
    const IdVector<OpId, std::optional<Time>>& times = costs.class_times(DeviceClassId(0));
    for (const OpId op : work.keys()) work[op] = times[op].value_or(Time(0));
    return work;
  }
  for (const OpId op : work.keys()) {
    Time sum;
    std::int64_t able = 0;
    for (const DeviceClassId c : devices_in.keys())
      if (const std::optional<Time> time = costs.class_times(c)[op]; time.has_value()) {
        sum += *time * devices_in[c];
        able += devices_in[c];
      }
    if (able > 0) work[op] = Time(sum.count() / able);
  }
  return work;
}

Grouping::Grouping(const CostModel& costs, const OpLabels& groups, const GroupCaps& caps)
    : costs_(costs),
      caps_(caps),
      sets_(costs.graph().num_ops()),
      sums_(costs.graph().num_ops()),
      next_(costs.graph().num_ops()),
      own_work_(mean_work(costs)) {
  const OpGraph& graph = costs.graph();
  for (const OpId op : graph.ops()) {
    Sums& sums = sums_[op.index()];
    sums.work = own_work_[op];
    sums.permanent = graph[op].permanent;
    sums.outputs = graph.output_bytes(op);
    sums.temporary = graph[op].temporary;
    sums.classes = class_bits(costs, op);
    sums.pin = costs.pin(op);
    sums.last = next_[op.index()] = op.value();
  }
  std::vector<std::optional<OpId>> first(graph.num_ops());
  for (const OpId op : graph.ops()) {
    std::optional<OpId>& start = first[groups[op]];
    if (start.has_value())
      merge(sets_.find(start->value()), op.value());
    else
      start = op;
  }
}
Grouping::~Grouping() = default;

bool Grouping::unite(OpId a, OpId b) {
  const std::uint32_t x = sets_.find(a.value()), y = sets_.find(b.value());
  if (x == y) return true;
  const Sums &p = sums_[x], &q = sums_[y];
  const std::uint64_t classes = p.classes & q.classes;
  if (classes == 0 || (p.pin.has_value() && q.pin.has_value() && p.pin != q.pin)) return false;
  if (const std::optional<DeviceId> pin = p.pin.has_value() ? p.pin : q.pin; pin.has_value())
    if ((classes >> costs_.class_of(*pin).index() & 1) == 0) return false;
  if (p.work + q.work > caps_.work) return false;
  if (!memory_fits(x, y)) return false;
  merge(x, y);
  return true;
}

bool Grouping::memory_fits(std::uint32_t a, std::uint32_t b) {
  const Bytes fixed =
      sums_[a].permanent + sums_[b].permanent + std::max(sums_[a].temporary, sums_[b].temporary);
  if (fixed > caps_.memory) return false;
  if (fixed + sums_[a].outputs + sums_[b].outputs <= caps_.memory) return true;
  need_profile(a);
  need_profile(b);
  const Profile &p = *sums_[a].profile, &q = *sums_[b].profile;
  Bytes peak;
  for (std::size_t i = 0; i < kMoments; ++i) peak = std::max(peak, p[i] + q[i]);
  return fixed + peak <= caps_.memory;
}

// Cuts the topological order into stretches of equal work.
void Grouping::set_moments() {
  moment_ = IdVector<OpId, std::uint8_t>(own_work_.size());
  const Time total = std::accumulate(own_work_.begin(), own_work_.end(), Time(0));
  const std::int64_t stretch = std::max(std::int64_t{1}, total.count() / std::int64_t{kMoments});
  Time done;
  for (const OpId op : costs_.graph().topological_order()) {
    const std::int64_t at = done.count() / stretch;
    moment_[op] = static_cast<std::uint8_t>(std::min(at, std::int64_t{kMoments - 1}));
    done += own_work_[op];
  }
}

void Grouping::need_profile(std::uint32_t set) {
  if (sums_[set].profile != nullptr) return;
  if (moment_.empty()) set_moments();
  const OpGraph& graph = costs_.graph();
  auto profile = std::make_unique<Profile>();
  for (std::uint32_t at = set;; at = next_[at]) {
    const OpId op(at);
    const bool retained = graph.retains_outputs(op);
    for (const TensorId tensor : graph.outputs(op)) {
      std::size_t last = kMoments - 1;
      if (!retained && !graph.consumers(tensor).empty()) {
        last = moment_[op];
        for (const Edge& edge : graph.consumers(tensor))
          last = std::max<std::size_t>(last, moment_[edge.to]);
      }
      for (std::size_t i = moment_[op]; i <= last; ++i) (*profile)[i] += graph.home_size(tensor);
    }
    if (at == sums_[set].last) break;
  }
  sums_[set].profile = std::move(profile);
}

void Grouping::merge(std::uint32_t a, std::uint32_t b) {
  if (a == b) return;
  if (b < a) std::swap(a, b);
  sets_.unite(a, b);
  Sums &into = sums_[a], &from = sums_[b];
  into.work += from.work;
  into.permanent += from.permanent;
  into.outputs += from.outputs;
  into.temporary = std::max(into.temporary, from.temporary);
  into.classes &= from.classes;
  if (!into.pin.has_value()) into.pin = from.pin;
  if (into.profile != nullptr || from.profile != nullptr) {
    need_profile(a);
    need_profile(b);
    for (std::size_t i = 0; i < kMoments; ++i) (*into.profile)[i] += (*from.profile)[i];
    from.profile.reset();
  }
  next_[into.last] = b;
  into.last = from.last;
}

OpLabels Grouping::labels() {
  OpLabels labels(sums_.size());
  for (const OpId op : labels.keys()) labels[op] = sets_.find(op.value());
  return labels;
}

}  // namespace baechi
