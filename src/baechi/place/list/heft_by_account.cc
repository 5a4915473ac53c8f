// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/list/heft_by_account.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <queue>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/place/list/cluster_state.h"
#include "baechi/place/list/ready_ops.h"
#include "baechi/place/list/suppliers.h"

namespace baechi {
namespace {

class HeftByAccount {
 public:
  HeftByAccount(const CostModel& costs, const AllowedDevices& allowed, const PlaceOptions& options,
                const IdVector<OpId, double>& rank, bool looks_back)
      : rank_(rank),
        looks_back_(looks_back),
        options_(options),
        state_(costs, allowed, options),
        ready_(state_, find_suppliers(costs)),
        graph_(costs.graph()),
        lines_(costs.cluster().num_devices()),
        sent_to_(graph_.num_tensors()) {}

  PlaceResult run() {
    add(ready_.start());
    do {
      while (const std::optional<Choice> choice = next()) {
        place(choice->op, choice->device);
        add(ready_.placed(choice->op));
        if (state_.num_placed() % 1024 == 0) throw_if_cancelled(options_.cancel);
      }
      if (const OpId* op = stuck()) return DoesNotFit{*op, least_short(*op)};
    } while (add(ready_.rest()));
    return state_.take_plan();
  }

 private:
  static constexpr std::size_t kMostLooks = 3, kLooksOfAny = 10'000;

  struct Choice {
    OpId op;
    DeviceId device;
  };

  bool add(std::span<const OpId> ops) {
    for (const OpId op : ops) queue_.push({rank_[op], op});
    return !ops.empty();
  }

  // Where plans fit, operators are looked at once or twice, most often; at the most 5 times was seen.
  bool is_hopeless() const { return looks_ > kMostLooks * graph_.num_ops() + kLooksOfAny; }
  const OpId* stuck() {
    if (!blocked_.empty()) return &blocked_.front();
    while (!queue_.empty() && state_.placed(queue_.top().op)) queue_.pop();
    return queue_.empty() ? nullptr : &queue_.top().op;
  }

  // The first by rank that has room; where none has, the first to get some.
  std::optional<Choice> next() {
    if (std::exchange(frees_seen_, state_.memory().num_frees()) != state_.memory().num_frees())
      unblock();
    while (true) {
      while (!queue_.empty()) {
        if (is_hopeless()) return std::nullopt;
        const OpId op = queue_.top().op;
        queue_.pop();
        if (state_.placed(op)) continue;
        ++looks_;
        if (const std::optional<DeviceId> device = best_device(op)) return Choice{op, *device};
        blocked_.push_back(op);
      }
      const std::optional<Time> free = state_.memory().next_free();
      if (blocked_.empty() || !free.has_value()) return std::nullopt;
      for (const OpId op : blocked_) state_.delay(op, *free);
      for (const DeviceId device : state_.costs().cluster().devices())
        state_.advance_memory(device, *free);
      unblock();
    }
  }

  void unblock() {
    for (const OpId op : std::exchange(blocked_, {})) queue_.push({rank_[op], op});
  }

  std::optional<DeviceId> best_device(OpId op) {
    std::optional<DeviceId> best;
    Time earliest;
    for (const DeviceId device : state_.costs().cluster().devices()) {
      if (!state_.may_go(op, device)) continue;
      const Time start = state_.earliest_start(op, device);
      const Time end = start + *state_.costs().compute_time(op, device);
      if (best.has_value() && end >= earliest) continue;
      if (room(op, device, start) < Bytes(0) || !had_room(op, device)) continue;
      best = device;
      earliest = end;
    }
    return best;
  }

  // What is left while the operator runs.
  Bytes room(OpId op, DeviceId device, Time start) const {
    return state_.memory().free_by(device, start) - state_.overrun(op, device);
  }

  // Copies come as soon as they can, and weights are there from the first: also while operators run
  // that were placed before.
  bool had_room(OpId op, DeviceId device) {
    if (!looks_back_) return true;
    find_early(op, device);
    const std::vector<Run>& line = lines_[device];
    for (std::size_t i = line.size(); first_early_ && i-- > 0 && line[i].end > *first_early_;)
      if (early_by(line[i].end) > line[i].room) return false;
    return true;
  }

  void find_early(OpId op, DeviceId device) {
    early_.clear();
    if (!graph_[op].group.has_value() && graph_[op].permanent > Bytes(0))
      early_.push_back({Time(0), graph_[op].permanent});
    for (const Edge& edge : graph_.in_edges(op))
      if (edge.tensor.has_value() && state_.placed(edge.from) &&
          state_.device(edge.from) != device && !is_sent(*edge.tensor, device))
        early_.push_back({state_.end(edge.from), graph_.size(*edge.tensor)});
    first_early_.reset();
    for (const Early& early : early_)
      first_early_ = std::min(first_early_.value_or(early.from), early.from);
  }

  Bytes early_by(Time time) const {
    Bytes bytes;
    for (const Early& early : early_)
      if (early.from < time) bytes += early.bytes;
    return bytes;
  }

  bool is_sent(TensorId tensor, DeviceId device) const {
    return std::ranges::find(sent_to_[tensor], device) != sent_to_[tensor].end();
  }

  void place(OpId op, DeviceId device) {
    const Time start = state_.earliest_start(op, device);
    const Bytes left = room(op, device, start);
    find_early(op, device);
    std::vector<Run>& line = lines_[device];
    for (std::size_t i = line.size(); first_early_ && i-- > 0 && line[i].end > *first_early_;)
      line[i].room -= early_by(line[i].end);
    for (const Edge& edge : graph_.in_edges(op))
      if (edge.tensor.has_value() && !is_sent(*edge.tensor, device))
        sent_to_[*edge.tensor].push_back(device);
    state_.advance_memory(device, start);
    state_.place(op, device);
    line.push_back({state_.end(op), left});
  }

  Bytes least_short(OpId op) const {
    std::optional<Bytes> least;
    for (const DeviceId device : state_.costs().cluster().devices())
      if (state_.may_go(op, device)) {
        const Bytes over = state_.overrun(op, device);
        least = std::min(least.value_or(over), over);
      }
    return std::max(least.value_or(Bytes(0)), Bytes(0));
  }

  struct Run {  // of an operator on a device
    Time end;
    Bytes room;  // that it left
  };
  struct Early {  // what an operator brings before it runs
    Time from;
    Bytes bytes;
  };
  struct Ranked {
    double rank;
    OpId op;
    friend bool operator<(const Ranked& a, const Ranked& b) {
      return a.rank != b.rank ? a.rank < b.rank : a.op > b.op;
    }
  };

  const IdVector<OpId, double>& rank_;
  const bool looks_back_;
  const PlaceOptions& options_;
  ClusterState state_;
  ReadyOps ready_;
  const OpGraph& graph_;
  IdVector<DeviceId, std::vector<Run>> lines_;
  IdVector<TensorId, std::vector<DeviceId>> sent_to_;
  std::vector<Early> early_;  // scratch, and the first of them
  std::optional<Time> first_early_;
  std::priority_queue<Ranked> queue_;
  std::vector<OpId> blocked_;  // no device had room
  std::uint64_t frees_seen_ = 0;
  std::size_t looks_ = 0;  // for a device
};

}  // namespace

PlaceResult place_heft_by_account(const CostModel& costs, const AllowedDevices& allowed,
                                  const PlaceOptions& options, const IdVector<OpId, double>& rank) {
  PlaceResult careful = HeftByAccount(costs, allowed, options, rank, true).run();
  if (std::holds_alternative<PlacedGraph>(careful)) return careful;
  return HeftByAccount(costs, allowed, options, rank, false).run();
}

}  // namespace baechi
