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
#include "baechi/base/in_quotes.h"
#include "baechi/base/short_text.h"
#include "baechi/bounds/lower_bounds.h"
#include "baechi/graph/recomputation.h"
#include "baechi/graph/recosted.h"
#include "baechi/graph/replicas.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/plan/recompute/ample_memory.h"
#include "baechi/plan/request/planner_options.h"
#include "baechi/plan/request/shares.h"
#include "baechi/plan/residency/stored_units.h"
#include "baechi/plan/steps/replica_placements.h"
#include "baechi/plan/steps/replica_request.h"
#include "baechi/verify/check_plan.h"

namespace baechi {
namespace {

constexpr int kReplicaRounds = 3;  // plans of one replica, each for devices with less memory
// Parts of a budget: for several replicas beside one, which has all of it; and of their part for
// the plan of one of them and for what is made of it.
constexpr double kBesideOne = 0.2, kOfPlan = 0.3, kOfPlacements = 0.6;
// Operators that all methods simulate at least, for each of the step.
constexpr double kOfAllMethods = 240;
// Numbers of replicas whose first steps take so much longer than the best leave the rest to others.
constexpr std::int64_t kHopelessReplicas = 4;  // by a quarter

std::string in_replicas(std::uint32_t replicas) {
  return std::to_string(replicas) + (replicas == 1 ? " replica" : " replicas");
}

// Divides devices of one class, neighbours first, and then what is left of all classes.
class ReplicaSets {
 public:
  ReplicaSets(const Cluster& cluster, std::uint32_t count) : cluster_(cluster), count_(count) {
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

  ReplicaDevices divide(bool neighbours_in_a_set) const {
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
    ReplicaDevices sets(count_);
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
Cluster cluster_of_one(const Cluster& cluster, const ReplicaDevices& sets, Bytes less) {
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

class ReplicaChoice {
 public:
  ReplicaChoice(const OpGraph& graph, std::uint32_t micro_batches, const Cluster& cluster,
                const PlanRequest& request, const PlanWithoutReplicas& plan)
      : graph_(graph),
        micro_batches_(micro_batches),
        cluster_(cluster),
        request_(request),
        plan_(plan),
        left_(request.budget) {
    request_.replicas.reset();
  }

  std::optional<StepPlan> best;
  std::vector<std::string> told;

  void without() {
    StepPlan made = plan_(recosted(graph_, {}), micro_batches_, cluster_, request_);
    const auto* plan = std::get_if<Plan>(&made.result);
    told.push_back(in_replicas(1) +
                   (plan != nullptr ? " takes " + short_text(plan->makespan()) : " does not fit"));
    best = std::move(made);
    if (plan == nullptr) return;
    beside_one_ = true;
    left_ *= kBesideOne;
  }

  // The best way to have so many, for an equal part of what is left of the budget for `numbers`.
  void with(std::uint32_t count, std::size_t numbers) {
    const double part = std::max(0.0, left_) / static_cast<double>(numbers);
    const std::vector<ReplicaDevices> ways = replica_sets(cluster_, count);
    reason_.clear();
    std::optional<Time> shortest;
    for (const ReplicaDevices& sets : ways) {
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
    told.push_back(in_replicas(count) + (shortest.has_value() ? " take " + short_text(*shortest)
                                                              : " do not fit: " + reason_));
    if (best.has_value()) return;
    best = StepPlan{recosted(graph_, {}), unroll(graph_, micro_batches_), Unplaceable{}};
    std::get<Unplaceable>(best->result).reason =
        in_replicas(count) +
        " do not fit: " + (reason_.empty() ? "there are no such devices" : reason_);
  }

  // Of the best, if it has several replicas: how it stands to the bounds and to the verifier.
  void finish() {
    Plan* plan = best.has_value() ? std::get_if<Plan>(&best->result) : nullptr;
    if (plan == nullptr || !plan->replicas.any()) return;
    Bytes bytes;
    for (const auto& bucket : plan->replicas.buckets)
      for (const ReducedTensor& tensor : bucket) bytes += size_of(graph_, tensor);
    plan->notes.push_back(
        in_replicas(plan->replicas.count) + " of " + std::to_string(plan->micro_batches) +
        (plan->micro_batches == 1 ? " micro-batch" : " micro-batches") + " each reduce " +
        short_text(bytes) + " in " + std::to_string(plan->replicas.buckets.size()) +
        (plan->replicas.buckets.size() == 1 ? " bucket" : " buckets"));
    plan->methods.push_back(outcome_of(*plan));
    const std::vector<std::string> faults = check_plan(graph_, best->step, *plan);
    BAECHI_ASSERT(faults.empty(), ("a step of replicas broke a rule: " + faults.front()).c_str());
    if (!request_.bounds) return;
    try {
      plan->bounds = bounds(plan->replicas.count);
    } catch (const Cancelled&) {  // the plan stays
      told.emplace_back("you stopped before bounds were computed");
    }
  }

 private:
  // One replica is planned again where chunks do not fit beside it.
  std::optional<StepPlan> on(const ReplicaDevices& sets, double part) {
    PlanRequest request = request_;
    double left = part;
    request.bounds = false;
    request.suggest = false;
    request.watch = nullptr;
    const auto count = static_cast<std::uint32_t>(sets.size());
    const std::string& method = request_.method;
    // All methods have been tried for one replica; where they would exceed the budget, the others
    // have that which is best for large steps.
    const double work =
        kOfAllMethods * static_cast<double>(graph_.num_ops()) * micro_batches_ / count;
    if (beside_one_ && method == "auto" && micro_batches_ > count &&
        work > part * kOfPlan * kReplaysPerSecond)
      request.method = "pipeline";
    Bytes less;
    for (int round = 0; round < kReplicaRounds; ++round, left *= 1 - kOfPlan - kOfPlacements) {
      request.budget = left * kOfPlan;
      left_ -= request.budget;
      const StepPlan of_one = plan_(recosted(graph_, {}), micro_batches_ / count,
                                    cluster_of_one(cluster_, sets, less), request);
      const auto* plan = std::get_if<Plan>(&of_one.result);
      if (plan == nullptr && request.method != method) {
        request.method = method;
        continue;
      }
      if (plan == nullptr) {
        if (less == Bytes(0)) reason_ = std::get<Unplaceable>(of_one.result).reason;
        return std::nullopt;
      }
      const OpGraph one = recomputing(graph_, plan->recomputed);
      OnAllSets all({one, of_one.step, *plan}, cluster_, sets);
      std::optional<Time> hopeless;
      if (const auto* known = best.has_value() ? std::get_if<Plan>(&best->result) : nullptr)
        hopeless = known->makespan() + Time(known->makespan().count() / kHopelessReplicas);
      left_ -=
          all.search(left * kOfPlacements * kReplaysPerSecond, hopeless, request.place.cancel) /
          kReplaysPerSecond;
      if (all.over() == Bytes(0)) {
        std::optional<MadeOfReplicas> made = all.made();
        if (made.has_value())
          return StepPlan{recosted(graph_, {}), std::move(made->step), std::move(made->plan)};
        reason_ = "what fits does so in no order that a file can tell";
        return std::nullopt;
      }
      const Bytes over = all.over();
      reason_ = "gradients and chunks of the all-reduce lack " + short_text(over);
      less += over;
    }
    return std::nullopt;
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
  bool beside_one_ = false;
  double left_;  // seconds, for several replicas
  std::string reason_;
};

}  // namespace

std::vector<ReplicaDevices> replica_sets(const Cluster& cluster, std::uint32_t replicas) {
  const ReplicaSets sets(cluster, replicas);
  std::vector<ReplicaDevices> ways{sets.divide(true)};
  if (ways.front().front().empty()) return {};
  if (cluster.links().size() == 1) return ways;
  ReplicaDevices other = sets.divide(false);
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
    throw OptionError("replicas", in_replicas(counts.back()) +
                                      " need as many devices, and the cluster has " +
                                      std::to_string(cluster.num_devices()));
  for (const DeviceId device : cluster.devices())
    if (counts.back() > 1 && cluster[device].kind == kStoreKind)
      throw OptionError("replicas",
                        "replicas keep nothing in a host's memory: leave out the host " +
                            in_quotes(cluster[device].name));
  const std::string why_not = counts.back() > 1 ? why_no_replicas(graph) : "";
  if (!why_not.empty() && !any) throw OptionError("replicas", why_not);
  if (!why_not.empty()) counts = {1};
  ReplicaChoice choice(graph, micro_batches, cluster, request, plan);
  try {
    if (counts.front() == 1) choice.without();
    // Most replicas first: where they are hopeless, fewer have what is left.
    for (std::size_t i = counts.size(); i-- > 0;)
      if (counts[i] > 1) choice.with(counts[i], i + 1 - (counts.front() == 1 ? 1 : 0));
  } catch (const Cancelled&) {  // anytime: what was found before stays
    if (!choice.best.has_value() || std::holds_alternative<Unplaceable>(choice.best->result)) throw;
    choice.told.emplace_back("you stopped before all numbers of replicas were planned");
  }
  choice.finish();
  if (auto* best = std::get_if<Plan>(&choice.best->result); best != nullptr && counts.size() > 1)
    best->notes.insert(best->notes.end(), choice.told.begin(), choice.told.end());
  if (auto* best = std::get_if<Plan>(&choice.best->result); best != nullptr && !why_not.empty())
    best->notes.push_back("one replica: " + why_not);
  return *std::move(choice.best);
}

}  // namespace baechi
