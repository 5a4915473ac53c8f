// SPDX-License-Identifier: Apache-2.0
// Numbers of replicas that race for the shortest step: first plans of all that may win, and ever
// more of the budget for those in front. Beyond the paper.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/steps/replica_placements.h"
#include "baechi/plan/steps/replica_sets.h"
#include "baechi/plan/steps/sizes.h"

namespace baechi {

// How a step of so many micro-batches is planned without replicas.
using PlanWithoutReplicas = std::function<StepPlan(OpGraph graph, std::uint32_t micro_batches,
                                                   const Cluster& cluster, const StepRequest&)>;

std::string in_replicas(std::uint32_t replicas);  // "1 replica", "2 replicas"

class ReplicaRace {
 public:
  ReplicaRace(const OpGraph& graph, std::uint32_t micro_batches, const Cluster& cluster,
              const StepRequest& request, const PlanWithoutReplicas& plan);

  void enter(std::uint32_t count);
  // Stops early when asked to, if something was found.
  void run();
  // The best. One replica was planned as without the option, unless no step of it is shorter.
  StepPlan take();
  std::vector<std::string> told() const;  // what became of each number

 private:
  struct MadeOf {
    OpGraph one;  // with second runs
    StepPlan plan;
    std::optional<OnAllSets> all = {};  // of several replicas

    Time of_one() const;
  };
  // A number of replicas, on these devices, and the best that is known of it.
  struct Entrant {
    std::uint32_t count = 1;
    ReplicaDevices sets = {};        // of several
    std::optional<Time> least = {};  // no step is shorter; nothing: there is none
    Time guess = {};                 // of the step
    std::unique_ptr<MadeOf> made = {};
    std::optional<Time> step = {};   // of that
    std::optional<Time> alone = {};  // of one of them, if that is too long already
    std::string reason = {};         // why there is no step
    Budget had = 0;                  // at most at once
    Bytes less = {};                 // than devices have: where chunks would not fit

    auto rank() const { return std::pair(!step.has_value(), step); }
  };

  void enter(Entrant entrant);
  Time time_of_rings(const ReplicaDevices& sets) const;
  double num_ops(std::uint32_t count) const;  // of the step of one of so many
  const Entrant* in_front() const;
  bool is_near(const Entrant& entrant, std::int64_t percent) const;
  bool may_win(const Entrant& entrant) const;
  void play(double part, std::optional<std::int64_t> behind);
  void try_entrant(Entrant& entrant, Budget part);
  std::unique_ptr<MadeOf> plan_one(Entrant& entrant, Budget budget);
  void plan_as_without(Entrant& entrant);
  bool put_on_all_sets(Entrant& entrant, std::unique_ptr<MadeOf> made, double work);
  std::optional<StepPlan> finished(Entrant& entrant);

  const OpGraph& graph_;
  const std::uint32_t micro_batches_;
  const Cluster& cluster_;
  StepRequest request_;
  const PlanWithoutReplicas& plan_;
  std::vector<std::uint32_t> counts_;
  std::vector<Entrant> entrants_;
  Budget left_;
  bool stopped_ = false;
};

}  // namespace baechi
