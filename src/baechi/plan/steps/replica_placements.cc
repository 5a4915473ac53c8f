// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/replica_placements.h"

#include <algorithm>
#include <map>
#include <utility>

#include "baechi/base/random.h"
#include "baechi/optimize/list_schedule.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/plan/steps/bare_copy.h"
#include "baechi/schedule/step_order.h"
#include "baechi/simulate/settle.h"
#include "baechi/simulate/simulator.h"

namespace baechi {
namespace {

constexpr Bytes kUsualBucket(std::int64_t{25} << 20);  // as large as PyTorch's
constexpr std::size_t kKicksOfUnit = 8, kTriedAnyway = 2;
constexpr std::int64_t kTooLong = 2;  // an order takes so many times the best: no buckets mend it

}  // namespace

OnAllSets::OnAllSets(const OneReplica& replica, const Cluster& cluster, const ReplicaDevices& sets)
    : replica_(replica), cluster_(cluster), sets_(sets) {
  for (const ReducedTensor& tensor : reduced_tensors(replica.one)) {
    Time ready;
    for (std::uint32_t m = 0; m < replica.step.micro_batches; ++m)
      ready =
          std::max(ready, replica.plan.schedule.slots[replica.step.copy(tensor.producer, m)].end);
    ready_.emplace_back(ready, tensor);
    reduced_ += size_of(replica.one, tensor);
  }
  std::ranges::sort(ready_);
  for (const Bytes bytes : {kUsualBucket, reduced_, Bytes(reduced_.count() / 64)})
    buckets_.push_back(std::max(bytes, Bytes(1)));
  const std::size_t rounds = 2 * sets.size() - 1, ops = replica.step.graph.num_ops();
  const auto large = std::stable_partition(buckets_.begin(), buckets_.end(), [&](Bytes bytes) {
    const auto most = static_cast<std::size_t>(reduced_.count() / bytes.count() + 1);
    return std::min(ready_.size(), most) * rounds <= ops;
  });
  few_rings_ = static_cast<std::size_t>(large - buckets_.begin());
  find_units();
}

void OnAllSets::find_units() {
  const OpGraph& one = replica_.one;
  IdVector<OpId, std::optional<std::size_t>> unit(one.num_ops());
  std::map<GroupId, std::size_t> of_group;
  for (const OpId op : one.topological_order()) {
    // Also of a variable that micro-batches change, and of who reads it.
    const std::optional<GroupId> group = replica_.step.graph[op].group;
    const std::optional<OpId> forward = one[op].forward;
    std::size_t at = units_.size();
    if (forward.has_value()) at = unit[*forward].value_or(at);
    if (group.has_value()) at = of_group.emplace(*group, at).first->second;
    if (at == units_.size()) units_.emplace_back();
    unit[op] = at;
    units_[at].push_back(op);
  }
}

bool OnAllSets::may_be_at(const std::vector<OpId>& unit, std::size_t position) const {
  const CostModel costs(replica_.one, cluster_);
  return std::ranges::all_of(sets_, [&](const std::vector<DeviceId>& set) {
    return std::ranges::all_of(unit, [&](OpId op) { return costs.may_run(op, set[position]); });
  });
}

Replicas OnAllSets::buckets_of(const Tried& tried) const {
  Replicas replicas{.count = static_cast<std::uint32_t>(sets_.size())};
  for (std::size_t position = 0; position < sets_.front().size(); ++position) {
    Bytes bytes = tried.bucket;  // so that a first one is opened
    for (const auto& [ready, tensor] : ready_) {
      if (tried.positions[tensor.producer] != position) continue;
      if (bytes >= tried.bucket) {
        replicas.buckets.emplace_back();
        bytes = Bytes(0);
      }
      bytes += size_of(replica_.one, tensor);
      replicas.buckets.back().push_back(tensor);
    }
  }
  return replicas;
}

Placement OnAllSets::placement_on(const Unrolled& step, const Replicas& replicas,
                                  const Positions& positions) const {
  const std::size_t ops = replica_.one.num_ops(), all = ops * replicas.count;
  Placement placement;
  for (const OpId op : step.graph.ops()) {
    const std::size_t at = step.original[op].index();
    OpId of_one(at % ops);
    std::size_t r = at / ops;
    if (at >= all) {
      const std::size_t bucket = (at - all) / replicas.count / replicas.rounds();
      r = (at - all) % replicas.count;
      of_one = replicas.buckets[bucket].front().producer;
    }
    placement.push_back(sets_[r][positions[of_one]]);
  }
  return placement;
}

// Rings run as soon as they can. In the order of the plan so does what waits for them, and the rest
// is as the plan of one replica has it.
DeviceOrder OnAllSets::order_on(const Unrolled& step, const Replicas& replicas,
                                const Placement& placement, Order order) const {
  const std::size_t ops = replica_.one.num_ops(), all = ops * replicas.count;
  OpGraphBuilder builder = bare_copy(step.graph);
  if (order == Order::kOfThePlan) {
    IdVector<OpId, bool> behind(step.graph.num_ops(), false);
    for (const OpId op : step.graph.topological_order()) {
      behind[op] = step.original[op].index() >= all;
      for (const Edge& edge : step.graph.in_edges(op)) behind[op] = behind[op] || behind[edge.from];
    }
    const DeviceOrder runs =
        order_of(replica_.plan.schedule, replica_.step.graph, sets_.front().size());
    for (std::size_t r = 0; r < replicas.count; ++r)
      for (const std::vector<OpId>& on_device : runs) {
        std::optional<OpId> last;
        for (const OpId run : on_device) {
          if (replica_.step.is_sum(run)) continue;
          const OpId op = step.copy(OpId(r * ops + replica_.step.original[run].index()),
                                    replica_.step.micro_batch[run].value_or(0));
          if (behind[op] || step.graph[op].variable) continue;
          if (last.has_value()) builder.add_control_edge(*last, op);
          last = op;
        }
      }
  }
  const OpGraph bare = std::move(builder).build();
  const CostModel costs(bare, cluster_);
  IdVector<OpId, Time> priority = critical_times(costs, placement);
  const Time most = *std::ranges::max_element(priority);
  for (const OpId op : step.graph.ops()) {
    if (order == Order::kShortestFirst) priority[op] = Time(0) - priority[op];
    if (order == Order::kBackwardFirst && step.graph[op].backward) priority[op] += most;
    if (step.original[op].index() >= all) priority[op] = most + most + Time(1);
  }
  return with_sums_behind(step, *list_schedule(costs, placement, priority).placed.order);
}

bool OnAllSets::exhausted() const {
  return work_ <= 0 || (cancel_ != nullptr && cancel_->requested());
}

const Unrolled& OnAllSets::step_with(const Replicas& replicas) {
  if (!step_.has_value() || replicas != replicas_)
    step_ = unroll(replicated(replica_.one, replicas), replica_.plan.micro_batches);
  replicas_ = replicas;
  return *step_;
}

OnAllSets::Tried OnAllSets::tried(Tried tried) {
  const Replicas replicas = buckets_of(tried);
  const Unrolled& step = step_with(replicas);
  const CostModel costs(step.graph, cluster_);
  const Placement placement = placement_on(step, replicas, tried.positions);
  work_ -= kWorkOfTried * static_cast<double>(step.graph.num_ops());
  Simulator simulator(costs);
  const StepSummary& summary =
      simulator.run({placement, order_on(step, replicas, placement, tried.order)});
  tried.makespan = summary.makespan;
  tried.over = Bytes(0);
  for (const DeviceId device : cluster_.devices())
    if (summary.peaks[device] > cluster_[device].capacity)
      tried.over = std::max(tried.over, summary.peaks[device] - cluster_[device].capacity);
  if (!best_.has_value() || tried.worth() < best_->worth()) best_ = tried;
  return tried;
}

// The placement of the plan in all ways: an order that is no longer its own serves other
// placements.
void OnAllSets::try_plan() {
  Tried planned{.positions = {}, .bucket = Bytes(0)};
  for (const OpId op : replica_.one.ops())
    planned.positions.push_back(replica_.plan.schedule.slots[op].device.index());
  std::vector<Bytes> distinct;
  std::vector<Replicas> seen;
  std::size_t anyway = 0;
  for (const Bytes bucket : buckets_) {
    planned.bucket = bucket;
    Replicas replicas = buckets_of(planned);
    if (std::ranges::find(seen, replicas) != seen.end()) continue;
    seen.push_back(std::move(replicas));
    distinct.push_back(bucket);
    if (distinct.size() <= few_rings_) anyway = std::min(kTriedAnyway, distinct.size());
  }
  for (const Order order : kOrders) {
    planned.order = order;
    for (std::size_t i = 0; i < distinct.size(); ++i) {
      const bool first = order == kOrders.front() && i < std::max(anyway, std::size_t{1});
      if (!first && exhausted()) return;
      planned.bucket = distinct[i];
      const Time step = tried(planned).makespan;
      if (step.count() / kTooLong > best_->makespan.count()) break;
    }
    std::stable_partition(distinct.begin(), distinct.end(),
                          [&](Bytes bucket) { return bucket == best_->bucket; });
  }
}

// Runs of units in topological order, of about equal work, for so many devices of each set.
std::optional<OnAllSets::Positions> OnAllSets::in_runs(std::size_t count) const {
  const CostModel costs(replica_.one, cluster_);
  std::vector<double> work;
  double all = 0, before = 0;
  for (const std::vector<OpId>& unit : units_) {
    Time time;
    for (const OpId op : unit)
      time += costs.compute_time(op, sets_.front().front()).value_or(Time(0));
    work.push_back(static_cast<double>(time.count()));
    all += work.back();
  }
  Positions positions(replica_.one.num_ops(), 0);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const double middle = (before + work[i] / 2) / std::max(1.0, all);
    const auto position =
        std::min(count - 1, static_cast<std::size_t>(middle * static_cast<double>(count)));
    before += work[i];
    if (!may_be_at(units_[i], position)) return std::nullopt;
    for (const OpId op : units_[i]) positions[op] = position;
  }
  return positions;
}

// Moves one unit after the other to where the step is shorter, until none gets it shorter.
void OnAllSets::climb(Tried from) {
  if (from.order == Order::kOfThePlan) from.order = Order::kLongestFirst;
  Tried now = tried(std::move(from));
  for (bool moved = true; moved;) {
    moved = false;
    for (const std::vector<OpId>& unit : units_)
      for (std::size_t position = 0; position < sets_.front().size(); ++position) {
        if (exhausted()) return;
        if (now.positions[unit.front()] == position || !may_be_at(unit, position)) continue;
        Tried other = now;
        for (const OpId op : unit) other.positions[op] = position;
        other = tried(std::move(other));
        moved = moved || other.worth() < now.worth();
        if (other.worth() < now.worth()) now = std::move(other);
      }
  }
}

double OnAllSets::search(double work, std::optional<Time> hopeless, const CancelFlag* cancel) {
  work_ = work;
  cancel_ = cancel;
  try_plan();
  try_runs();
  if (best_->makespan <= hopeless.value_or(best_->makespan)) improve();
  return work - work_;
}

void OnAllSets::try_runs() {
  const std::size_t places = sets_.front().size();
  for (std::size_t count = 1; count <= std::min(places, units_.size()) && !exhausted(); ++count)
    if (const std::optional<Positions> positions = in_runs(count))
      for (const Order order : kOrders)
        if (order != Order::kOfThePlan)
          tried({.positions = *positions, .bucket = best_->bucket, .order = order});
}

void OnAllSets::improve() {
  const std::size_t places = sets_.front().size();
  if (!exhausted()) climb(*best_);
  Random random(1);
  for (std::size_t i = 0; i < kKicksOfUnit * units_.size() && !exhausted(); ++i) {
    Tried kicked = *best_;
    kicked.bucket = buckets_[random.below(buckets_.size())];
    kicked.order = kOrders[1 + random.below(kOrders.size() - 1)];
    for (int move = 0; move < 2; ++move) {
      const std::vector<OpId>& unit = units_[random.below(units_.size())];
      const std::size_t position = random.below(places);
      if (!may_be_at(unit, position)) continue;
      for (const OpId op : unit) kicked.positions[op] = position;
    }
    climb(std::move(kicked));
  }
}

std::optional<MadeOfReplicas> OnAllSets::made() {
  Replicas replicas = buckets_of(*best_);
  step_with(replicas);
  MadeOfReplicas made{*std::exchange(step_, {}), {}};
  const CostModel costs(made.step.graph, cluster_);
  const Placement placement = placement_on(made.step, replicas, best_->positions);
  const std::optional<Trace> trace = simulate_settled(
      costs, made.step, {placement, order_on(made.step, replicas, placement, best_->order)});
  if (!trace.has_value() || find_overflow(*trace, cluster_).has_value()) return std::nullopt;
  const DeviceOrder order = with_sums_behind(
      made.step, order_of(trace->schedule, made.step.graph, cluster_.num_devices()));
  made.plan = plan_of(costs, {placement, order}, replica_.plan.method, false);
  made.plan.micro_batches = replica_.plan.micro_batches;
  made.plan.recomputed = replica_.plan.recomputed;
  made.plan.replicas = std::move(replicas);
  made.plan.fallbacks = replica_.plan.fallbacks;
  made.plan.notes = replica_.plan.notes;
  return made;
}

}  // namespace baechi
