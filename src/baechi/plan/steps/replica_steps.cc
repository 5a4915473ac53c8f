// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/replica_steps.h"

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>

#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "baechi/base/short_text.h"
#include "baechi/bounds/lower_bounds.h"
#include "baechi/graph/recomputation.h"
#include "baechi/graph/recosted.h"
#include "baechi/graph/replicas.h"
#include "baechi/optimize/list_schedule.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/plan/recompute/ample_memory.h"
#include "baechi/plan/request/planner_options.h"
#include "baechi/plan/steps/bare_copy.h"
#include "baechi/schedule/step_order.h"
#include "baechi/simulate/settle.h"
#include "baechi/verify/check_plan.h"

namespace baechi {
namespace {

constexpr Bytes kBucket(std::int64_t{25} << 20);  // as large as PyTorch's
constexpr int kMostRounds = 3;  // plans of one replica, each for devices with less memory

std::string words(std::uint32_t replicas) {
  return std::to_string(replicas) + (replicas == 1 ? " replica" : " replicas");
}

// Divides devices of one class, neighbours first, and then what is left of all classes.
class Sets {
 public:
  Sets(const Cluster& cluster, std::uint32_t count) : cluster_(cluster), count_(count) {
    for (const DeviceId device : cluster.devices()) {
      const auto like = std::ranges::find_if(classes_, [&](const std::vector<DeviceId>& all) {
        return rank(all.front()) == rank(device);
      });
      if (like != classes_.end())
        like->push_back(device);
      else
        classes_.push_back({device});
    }
  }

  DeviceSets divide(bool neighbours_in_a_set) const {
    std::vector<std::vector<DeviceId>> positions;
    std::vector<DeviceId> left;
    for (const std::vector<DeviceId>& all : classes_) {
      const std::size_t each = all.size() / count_;
      for (std::size_t i = 0; i < each; ++i) {
        std::vector<DeviceId>& position = positions.emplace_back();
        for (std::size_t r = 0; r < count_; ++r)
          position.push_back(neighbours_in_a_set ? all[r * each + i] : all[i * count_ + r]);
      }
      left.insert(left.end(), all.begin() + static_cast<std::ptrdiff_t>(each * count_), all.end());
    }
    std::ranges::stable_sort(left, [&](DeviceId a, DeviceId b) { return rank(a) > rank(b); });
    for (std::size_t first = 0; first + count_ <= left.size();) {
      const auto begin = left.begin() + static_cast<std::ptrdiff_t>(first);
      if (cluster_[left[first]].kind != cluster_[left[first + count_ - 1]].kind) {
        ++first;  // of one kind there are fewer
        continue;
      }
      positions.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(count_));
      first += count_;
    }
    std::ranges::stable_sort(positions);
    DeviceSets sets(count_);
    for (const std::vector<DeviceId>& position : positions)
      for (std::size_t r = 0; r < count_; ++r) sets[r].push_back(position[r]);
    return sets;
  }

 private:
  std::tuple<std::string_view, Speed, Bytes> rank(DeviceId device) const {
    const Device& data = cluster_[device];
    return {data.kind, data.speed, data.capacity};
  }

  const Cluster& cluster_;
  const std::size_t count_;
  std::vector<std::vector<DeviceId>> classes_;
};

// The devices of the first set alone, each as slow and as small as any that stands for it.
Cluster cluster_of_one(const Cluster& cluster, const DeviceSets& sets, Bytes less) {
  ClusterSpec spec = cluster.spec();
  spec.devices.clear();
  const auto gone = [&](const std::string& name) {
    return !name.empty() && std::ranges::none_of(sets.front(), [&](DeviceId device) {
      return cluster[device].name == name;
    });
  };
  std::erase_if(spec.links, [&](const LinkRule& rule) {
    return rule.scope == LinkScope::kPair && (gone(rule.from) || gone(rule.to));
  });
  for (std::size_t i = 0; i < sets.front().size(); ++i) {
    Device device = cluster[sets.front()[i]];
    for (const std::vector<DeviceId>& set : sets) {
      device.speed = std::min(device.speed, cluster[set[i]].speed);
      device.capacity = std::min(device.capacity, cluster[set[i]].capacity);
    }
    device.capacity = device.capacity > less ? device.capacity - less : Bytes(1);
    spec.devices.push_back(std::move(device));
  }
  return Cluster(std::move(spec));
}

// A plan of one replica, put on all sets.
class OnAllSets {
 public:
  // `one` is the graph of one micro-batch that the plan runs, with second runs.
  OnAllSets(const OpGraph& one, const Unrolled& step, const Plan& plan, const Cluster& cluster,
            const DeviceSets& sets)
      : one_(one), step_(step), plan_(plan), cluster_(cluster), sets_(sets) {
    for (const ReducedTensor& tensor : reduced_tensors(one)) {
      Time ready;
      for (std::uint32_t m = 0; m < step.micro_batches; ++m)
        ready = std::max(ready, plan.schedule.slots[step.copy(tensor.producer, m)].end);
      ready_.emplace_back(plan.schedule.slots[tensor.producer].device, ready, tensor);
    }
    std::ranges::sort(ready_);
  }

  // In the order in which tensors get ready; those of a device that are `most` bytes close a bucket.
  Replicas replicas(Bytes most) const {
    Replicas replicas{.count = static_cast<std::uint32_t>(sets_.size())};
    Bytes bytes;
    std::optional<DeviceId> last;
    for (const auto& [device, ready, tensor] : ready_) {
      if (last != device || bytes >= most) {
        replicas.buckets.emplace_back();
        bytes = Bytes(0);
      }
      last = device;
      bytes += bytes_of(tensor);
      replicas.buckets.back().push_back(tensor);
    }
    return replicas;
  }
  // From what is usual to one bucket for each device.
  std::vector<Replicas> choices() const {
    Bytes all;
    for (const auto& [device, ready, tensor] : ready_) all += bytes_of(tensor);
    std::vector<Replicas> choices;
    for (const Bytes most : {kBucket, Bytes(all.count() / 16), all}) {
      Replicas choice = replicas(std::max(most, Bytes(1)));
      if (std::ranges::find(choices, choice) == choices.end()) choices.push_back(std::move(choice));
    }
    return choices;
  }

  // What the simulator makes of it, in an order that a file can tell; nothing where that is none.
  struct Made {
    Unrolled step;
    Plan plan;
    Bytes over;  // of some device
  };
  std::optional<Made> with(Replicas replicas) const {
    Made made{unroll(replicated(one_, replicas), plan_.micro_batches), {}, {}};
    const CostModel costs(made.step.graph, cluster_);
    Placement placement;
    for (const OpId op : made.step.graph.ops())
      placement.push_back(device_of(replicas, made.step.original[op]));
    PlacedGraph placed{placement, order(made.step, replicas, placement)};
    const std::optional<Trace> trace = simulate_settled(costs, made.step, std::move(placed));
    if (!trace.has_value()) return std::nullopt;
    for (const DeviceId device : cluster_.devices())
      if (trace->devices[device].peak > cluster_[device].capacity)
        made.over = std::max(made.over, trace->devices[device].peak - cluster_[device].capacity);
    if (made.over > Bytes(0)) return made;
    made.plan =
        plan_of(costs,
                {placement, with_sums_behind(made.step, order_of(trace->schedule, made.step.graph,
                                                                 cluster_.num_devices()))},
                plan_.method, false);
    made.plan.micro_batches = plan_.micro_batches;
    made.plan.recomputed = plan_.recomputed;
    made.plan.replicas = std::move(replicas);
    made.plan.fallbacks = plan_.fallbacks;
    made.plan.notes = plan_.notes;
    return made;
  }

 private:
  Bytes bytes_of(const ReducedTensor& tensor) const {
    return one_.size(TensorId((*one_.outputs(tensor.producer).begin()).index() + tensor.port));
  }

  DeviceId device_of(const Replicas& replicas, OpId op) const {
    const std::size_t ops = one_.num_ops(), all = ops * replicas.count;
    OpId of_one(op.index() % ops);
    std::size_t r = op.index() / ops;
    if (op.index() >= all) {
      r = (op.index() - all) % replicas.count;
      of_one = replicas.buckets[(op.index() - all) / replicas.count / replicas.rounds()]
                   .front()
                   .producer;
    }
    return sets_[r][plan_.schedule.slots[of_one].device.index()];
  }

  // Rings and what waits for them run as soon as they can; the rest as the plan of one replica has it.
  DeviceOrder order(const Unrolled& step, const Replicas& replicas,
                    const Placement& placement) const {
    const std::size_t all = one_.num_ops() * replicas.count;
    IdVector<OpId, bool> behind(step.graph.num_ops(), false);
    for (const OpId op : step.graph.topological_order()) {
      behind[op] = step.original[op].index() >= all;
      for (const Edge& edge : step.graph.in_edges(op)) behind[op] = behind[op] || behind[edge.from];
    }
    OpGraphBuilder builder = bare_copy(step.graph);
    const DeviceOrder runs = order_of(plan_.schedule, step_.graph, sets_.front().size());
    for (std::size_t r = 0; r < replicas.count; ++r)
      for (const std::vector<OpId>& ops : runs) {
        std::optional<OpId> last;
        for (const OpId run : ops) {
          if (step_.is_sum(run)) continue;
          const OpId op = step.copy(OpId(r * one_.num_ops() + step_.original[run].index()),
                                    step_.micro_batch[run].value_or(0));
          if (behind[op] || step.graph[op].variable) continue;
          if (last.has_value()) builder.add_control_edge(*last, op);
          last = op;
        }
      }
    const OpGraph bare = std::move(builder).build();
    const CostModel costs(bare, cluster_);
    IdVector<OpId, Time> priority = critical_times(costs, placement);
    const Time most = *std::ranges::max_element(priority);
    for (const OpId op : step.graph.ops())
      if (step.original[op].index() >= all) priority[op] = most + Time(1);
    return with_sums_behind(step, *list_schedule(costs, placement, priority).placed.order);
  }

  const OpGraph& one_;
  const Unrolled& step_;
  const Plan& plan_;
  const Cluster& cluster_;
  const DeviceSets& sets_;
  std::vector<std::tuple<DeviceId, Time, ReducedTensor>> ready_;
};

class Choice {
 public:
  Choice(const OpGraph& graph, std::uint32_t micro_batches, const Cluster& cluster,
         const PlanRequest& request, const PlanWithoutReplicas& plan)
      : graph_(graph),
        micro_batches_(micro_batches),
        cluster_(cluster),
        request_(request),
        plan_(plan) {
    request_.replicas.reset();
  }

  std::optional<StepPlan> best;
  std::vector<std::string> told;

  void without() {
    StepPlan made = plan_(recosted(graph_, {}), micro_batches_, cluster_, request_);
    const auto* plan = std::get_if<Plan>(&made.result);
    told.push_back(words(1) +
                   (plan != nullptr ? " takes " + short_text(plan->makespan()) : " does not fit"));
    best = std::move(made);
  }

  // The best way to have so many, for so much of the budget.
  void with(std::uint32_t count, double part) {
    const std::vector<DeviceSets> ways = replica_sets(cluster_, count);
    reason_.clear();
    std::optional<Time> shortest;
    for (const DeviceSets& sets : ways) {
      throw_if_cancelled(request_.place.cancel);
      std::optional<StepPlan> made = on(sets, part / static_cast<double>(ways.size()));
      if (!made.has_value()) continue;
      const Time step = std::get<Plan>(made->result).makespan();
      if (!shortest.has_value() || step < *shortest) shortest = step;
      const Plan* other = best.has_value() ? std::get_if<Plan>(&best->result) : nullptr;
      if (other != nullptr && other->makespan() <= step) continue;
      best = std::move(made);
      if (request_.watch)
        request_.watch({.step = step, .method = std::get<Plan>(best->result).method});
    }
    told.push_back(words(count) + (shortest.has_value() ? " take " + short_text(*shortest)
                                                        : " do not fit: " + reason_));
    if (best.has_value()) return;
    best = {recosted(graph_, {}), unroll(graph_, micro_batches_), Unplaceable{}};
    std::get<Unplaceable>(best->result).reason =
        words(count) + " do not fit: " + (reason_.empty() ? "there are no such devices" : reason_);
  }

 private:
  // One replica is planned again where chunks do not fit beside it.
  std::optional<StepPlan> on(const DeviceSets& sets, double part) {
    PlanRequest request = request_;
    request.budget *= part;
    request.bounds = false;
    request.suggest = false;
    request.watch = nullptr;
    const auto count = static_cast<std::uint32_t>(sets.size());
    Bytes less;
    for (int round = 0; round < kMostRounds; ++round) {
      const StepPlan of_one = plan_(recosted(graph_, {}), micro_batches_ / count,
                                    cluster_of_one(cluster_, sets, less), request);
      const auto* plan = std::get_if<Plan>(&of_one.result);
      if (plan == nullptr) {
        reason_ = std::get<Unplaceable>(of_one.result).reason;
        return std::nullopt;
      }
      const OpGraph one = recomputing(graph_, plan->recomputed);
      std::optional<OnAllSets::Made> shortest;
      Bytes over;
      const OnAllSets all(one, of_one.step, *plan, cluster_, sets);
      for (Replicas& choice : all.choices()) {
        std::optional<OnAllSets::Made> made = all.with(std::move(choice));
        if (!made.has_value()) continue;
        if (made->over > Bytes(0))
          over = over == Bytes(0) ? made->over : std::min(over, made->over);
        else if (!shortest.has_value() || made->plan.makespan() < shortest->plan.makespan())
          shortest = std::move(made);
      }
      if (shortest.has_value()) return finished(*std::move(shortest));
      reason_ = "gradients and chunks of the all-reduce lack " + short_text(over);
      less += over;
    }
    return std::nullopt;
  }

  StepPlan finished(OnAllSets::Made made) const {
    Plan& plan = made.plan;
    Bytes bytes;
    for (const auto& bucket : plan.replicas.buckets)
      for (const auto& [op, port] : bucket)
        bytes += graph_.size(TensorId((*graph_.outputs(op).begin()).index() + port));
    plan.notes.push_back(words(plan.replicas.count) + " of " + std::to_string(plan.micro_batches) +
                         " micro-batches each reduce " + short_text(bytes) + " in " +
                         std::to_string(plan.replicas.buckets.size()) + " buckets");
    plan.methods.push_back(outcome_of(plan));
    if (request_.bounds) plan.bounds = bounds(plan.replicas.count);
    const std::vector<std::string> faults = check_plan(graph_, made.step, plan);
    BAECHI_ASSERT(faults.empty(), ("a step of replicas broke a rule: " + faults.front()).c_str());
    return {recosted(graph_, {}), std::move(made.step), std::move(plan)};
  }

  // Valid with any second runs: they shorten nothing, and no memory is asked for.
  std::vector<NamedBound> bounds(std::uint32_t count) const {
    const Unrolled step = unroll(side_by_side(graph_, count), micro_batches_ / count);
    const CostModel costs(step.graph, cluster_);
    if (request_.recompute == Recompute::kNone) return lower_bounds(costs, request_.place.cancel);
    const Cluster ample = roomier(costs, std::nullopt);
    return lower_bounds(CostModel(step.graph, ample), request_.place.cancel);
  }

  const OpGraph& graph_;
  const std::uint32_t micro_batches_;
  const Cluster& cluster_;
  PlanRequest request_;
  const PlanWithoutReplicas& plan_;
  std::string reason_;
};

bool pinned(const OpGraph& graph) {
  return std::ranges::any_of(graph.ops(), [&](OpId op) { return graph[op].pin.has_value(); });
}

}  // namespace

std::vector<DeviceSets> replica_sets(const Cluster& cluster, std::uint32_t replicas) {
  const Sets sets(cluster, replicas);
  std::vector<DeviceSets> ways{sets.divide(true)};
  if (ways.front().front().empty()) return {};
  if (cluster.links().size() == 1) return ways;
  DeviceSets other = sets.divide(false);
  if (other != ways.front()) ways.push_back(std::move(other));
  return ways;
}

StepPlan plan_replicas(OpGraph graph, std::uint32_t micro_batches, const Cluster& cluster,
                       const PlanRequest& request, const PlanWithoutReplicas& plan) {
  const bool any = request.replicas->empty();
  std::vector<std::uint32_t> counts = *request.replicas;
  for (std::uint32_t count = 1;
       any && count <= std::min<std::size_t>(micro_batches, cluster.num_devices()); ++count)
    counts.push_back(count);
  std::erase_if(counts, [&](std::uint32_t count) { return micro_batches % count != 0; });
  std::ranges::sort(counts);
  if (counts.back() > cluster.num_devices())
    throw OptionError("replicas", words(counts.back()) +
                                      " need as many devices, and the cluster has " +
                                      std::to_string(cluster.num_devices()));
  const bool fixed = pinned(graph);
  if (fixed && any) counts = {1};
  if (fixed && counts.back() > 1)
    throw OptionError("replicas",
                      "operators are pinned to devices, and replicas have none in common");
  Choice choice(graph, micro_batches, cluster, request, plan);
  const std::size_t others = counts.size() - (counts.front() == 1 ? 1 : 0);
  try {
    for (const std::uint32_t count : counts) {
      if (count == 1)
        choice.without();
      else
        choice.with(count, 1.0 / static_cast<double>(others));
    }
  } catch (const Cancelled&) {  // anytime: what was found before stays
    if (!choice.best.has_value() || std::holds_alternative<Unplaceable>(choice.best->result)) throw;
    choice.told.emplace_back("you stopped before all numbers of replicas were planned");
  }
  if (auto* best = std::get_if<Plan>(&choice.best->result); best != nullptr && counts.size() > 1)
    best->notes.insert(best->notes.end(), choice.told.begin(), choice.told.end());
  return *std::move(choice.best);
}

std::vector<std::uint32_t> shared_by_replicas(std::span<const std::uint32_t> micro_batches,
                                              const PlanRequest& request) {
  std::vector<std::uint32_t> shared;
  if (!request.replicas.has_value()) return {micro_batches.begin(), micro_batches.end()};
  const auto refuse = [](const std::string& why) { throw OptionError("replicas", why); };
  const std::vector<std::uint32_t>& counts = *request.replicas;
  const auto shares = [&](std::uint32_t number) {
    return counts.empty() ||
           std::ranges::any_of(counts, [&](std::uint32_t count) { return number % count == 0; });
  };
  std::ranges::copy_if(micro_batches, std::back_inserter(shared), shares);
  for (const std::uint32_t count : counts)
    if (std::ranges::none_of(micro_batches, [&](std::uint32_t m) { return m % count == 0; }))
      refuse(std::to_string(count) + " does not divide the number of micro-batches" +
             (micro_batches.size() == 1 ? ", " + std::to_string(micro_batches.front())
                                        : std::string()) +
             ": replicas have equally many");
  if (counts == std::vector<std::uint32_t>{1}) return shared;
  if (micro_batches.back() == 1) refuse("replicas share micro-batches: ask for several");
  if (request.residency != AwayChoice::kNone)
    refuse("replicas keep nothing in a host's memory: leave out residency");
  if (request.place.expert != nullptr) refuse("an expert's placement has one replica");
  return shared;
}

}  // namespace baechi
