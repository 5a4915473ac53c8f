// SPDX-License-Identifier: Apache-2.0
#include "unit/place/naive_scan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <span>
#include <utility>
#include <variant>

#include "baechi/place/allowed_devices.h"
#include "baechi/place/list/cluster_state.h"
#include "baechi/place/list/pair_queue.h"
#include "baechi/place/list/ready_ops.h"
#include "baechi/place/list/suppliers.h"

namespace baechi::testing {
namespace {

class NaiveScan {
 public:
  NaiveScan(const CostModel& costs, const PlaceOptions& options,
            const IdVector<OpId, std::optional<OpId>>* favorite_child)
      : costs_(costs),
        graph_(costs.graph()),
        allowed_(costs),
        state_(costs, allowed_, options),
        suppliers_(options.call_suppliers ? find_suppliers(costs)
                                          : IdVector<OpId, bool>(graph_.num_ops())),
        ready_ops_(state_, suppliers_),
        ready_(graph_.num_ops()),
        priority_(longest_way_first(costs, suppliers_)),
        favorite_child_(favorite_child),
        holds_(costs.cluster().num_devices()),
        last_(costs.cluster().num_devices()) {}

  PlaceResult run() {
    if (const auto op = allowed_.first_impossible()) return DoesNotFit{*op, Bytes(0)};
    become_ready(ready_ops_.start());
    while (state_.num_placed() < graph_.num_ops()) {
      revive();
      const std::optional<Candidate> best = least_pair();
      if (!best.has_value()) {
        const auto next_free = state_.memory().next_free();
        if (anyone_stranded() && next_free.has_value()) {
          now_ = std::max(now_, *next_free);
        } else if (!become_ready(ready_ops_.rest())) {
          return failure();
        }
        continue;
      }
      now_ = std::max(now_, best->key);
      if (!state_.fits(best->op, best->device)) {
        dropped_.insert({best->op, best->device});
        state_.undesignate(best->op);
        continue;
      }
      place(best->op, best->device);
    }
    return state_.take_plan();
  }

 private:
  bool become_ready(std::span<const OpId> ops) {
    for (const OpId op : ops) {
      ready_[op] = true;
      if (const auto device = state_.decided(op); device && dropped_.contains({op, *device}))
        state_.undesignate(op);
    }
    return !ops.empty();
  }
  bool ready(OpId op) const { return ready_[op] && !state_.placed(op); }
  bool anyone_stranded() const {
    return std::any_of(graph_.ops().begin(), graph_.ops().end(),
                       [&](OpId op) { return stranded(op); });
  }

  Time slowdown(OpId op, DeviceId device) const {
    Time least = *costs_.compute_time(op, device);
    for (const DeviceId other : costs_.cluster().devices())
      if (allowed_(op, other)) least = std::min(least, *costs_.compute_time(op, other));
    return *costs_.compute_time(op, device) - least;
  }

  Time urgent_from(OpId op) const {
    Time everywhere;
    for (const DeviceId device : costs_.cluster().devices())
      if (state_.may_go(op, device))
        everywhere = std::max(everywhere, state_.undisturbed_arrival(op, device));
    return everywhere;
  }

  std::optional<Candidate> least_pair() const {
    std::optional<Candidate> best;
    for (const OpId op : graph_.ops()) {
      if (!ready(op)) continue;
      for (const DeviceId device : costs_.cluster().devices()) {
        if (!state_.may_go(op, device) || dropped_.contains({op, device})) continue;
        Time start = state_.earliest_start(op, device);
        if (const auto& hold = holds_[device]; hold && hold->favorite != op)
          start = std::max(start, std::min(hold->until, urgent_from(op)));
        const Candidate pair{start + slowdown(op, device), state_.arrival(op, device).load,
                             priority_.rank[op], op, device};
        if (!best || pair < *best) best = pair;
      }
    }
    return best;
  }

  void place(OpId op, DeviceId device) {
    const auto group = graph_[op].group;
    const bool opens = state_.opens_group(op);
    state_.place(op, device);
    if (opens)
      for (const OpId member : graph_.members(*group)) dropped_.erase({member, device});
    const std::span<const OpId> became_ready = ready_ops_.placed(op);
    become_ready(became_ready);
    if (favorite_child_ == nullptr) return;

    holds_[device].reset();
    last_[device] = op;
    for (const DeviceId held : costs_.cluster().devices())
      if (holds_[held] &&
          (state_.placed(holds_[held]->favorite) || !state_.may_go(holds_[held]->favorite, held)))
        holds_[held].reset();
    for (const OpId favorite : became_ready) hold_for(favorite);
  }

  void hold_for(OpId favorite) {
    std::optional<DeviceId> device;  // whose last operator is the favorite parent
    for (const DeviceId candidate : costs_.cluster().devices())
      if (last_[candidate] && (*favorite_child_)[*last_[candidate]] == favorite) device = candidate;
    if (!device || !state_.may_go(favorite, *device)) return;
    for (const DeviceId other : costs_.cluster().devices())
      if (state_.may_go(favorite, other) && state_.undisturbed_arrival(favorite, other) <
                                                state_.undisturbed_arrival(favorite, *device))
        return;
    Time sent;
    for (const Edge& edge : graph_.out_edges(*last_[*device]))
      if (edge.to == favorite && edge.tensor)
        for (const DeviceId other : costs_.cluster().devices())
          if (other != *device)
            sent = std::max(sent, costs_.transfer_time(*edge.tensor, *device, other));
    holds_[*device] = Hold{favorite, state_.end(*last_[*device]) + sent};
  }

  bool stranded(OpId op) const {
    if (!ready(op)) return false;
    for (const DeviceId device : costs_.cluster().devices())
      if (state_.may_go(op, device) && !dropped_.contains({op, device})) return false;
    return true;
  }

  void revive() {
    std::vector<OpId> ops;
    for (const OpId op : graph_.ops())
      if (stranded(op)) ops.push_back(op);
    if (ops.empty()) return;
    for (const DeviceId device : costs_.cluster().devices()) state_.advance_memory(device, now_);
    for (const OpId op : ops)
      for (const DeviceId device : costs_.cluster().devices())
        if (state_.may_go(op, device) && state_.overrun(op, device) <= Bytes(0)) {
          dropped_.erase({op, device});
          state_.delay(op, now_);
        }
  }

  DoesNotFit failure() const {
    for (const OpId op : graph_.ops()) {
      if (!stranded(op)) continue;
      std::optional<Bytes> least;
      for (const DeviceId device : costs_.cluster().devices())
        if (state_.may_go(op, device)) {
          const Bytes lacks = state_.overrun(op, device);
          least = std::min(least.value_or(lacks), lacks);
        }
      return {op, *least};
    }
    return {OpId(0), Bytes(-1)};
  }

  const CostModel& costs_;
  const OpGraph& graph_;
  AllowedDevices allowed_;
  ClusterState state_;
  IdVector<OpId, bool> suppliers_;
  ReadyOps ready_ops_;
  IdVector<OpId, bool> ready_;
  Priority priority_;
  const IdVector<OpId, std::optional<OpId>>* favorite_child_;
  IdVector<DeviceId, std::optional<Hold>> holds_;
  IdVector<DeviceId, std::optional<OpId>> last_;
  std::set<std::pair<OpId, DeviceId>> dropped_;
  Time now_;
};

}  // namespace

PlaceResult naive_list_schedule(const CostModel& costs, const PlaceOptions& options,
                                const IdVector<OpId, std::optional<OpId>>* favorite_child) {
  return NaiveScan(costs, options, favorite_child).run();
}

std::optional<std::size_t> check_same(const PlaceResult& fast, const PlaceResult& naive) {
  REQUIRE(fast.index() == naive.index());
  if (const auto* misfit = std::get_if<DoesNotFit>(&fast)) {
    REQUIRE(misfit->op == std::get<DoesNotFit>(naive).op);
    REQUIRE(misfit->short_by == std::get<DoesNotFit>(naive).short_by);
    return std::nullopt;
  }
  const auto& plan = std::get<PlacedGraph>(fast);
  REQUIRE(plan.device == std::get<PlacedGraph>(naive).device);
  REQUIRE(plan.order == std::get<PlacedGraph>(naive).order);
  return static_cast<std::size_t>(
      std::ranges::count_if(*plan.order, [](const auto& ops) { return !ops.empty(); }));
}

}  // namespace baechi::testing
