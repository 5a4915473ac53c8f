// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/residency/residency_choice.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "baechi/plan/residency/held_over_time.h"
#include "baechi/plan/residency/residency_items.h"

namespace baechi {
namespace {

class Choice {
 public:
  Choice(const ResidencyProblem& problem, const ResidencyStart& start,
         const std::vector<StoredUnit>& units, const ResidencyPrefer& prefer)
      : step_(problem.step),
        graph_(problem.costs.graph()),
        cluster_(problem.costs.cluster()),
        start_(start),
        units_(units),
        prefer_(prefer),
        position_(graph_.num_ops()),
        stored_(graph_.num_ops()) {
    for (const DeviceId device : cluster_.devices()) {
      held_.push_back(HeldOverTime(start.order[device].size() + 1));
      for (std::size_t i = 0; i < start.order[device].size(); ++i)
        position_[start.order[device][i]] = i;
    }
  }

  Residency choose() && {
    for (const StoredUnit& unit : units_)
      for (const OpId op : unit.members) stored_[op] = true;
    hold_what_stays();
    for (const TensorId tensor : graph_.tensors()) consider(tensor);
    if (prefer_.units > 0) keep_units(prefer_.units);
    keep_gaps();
    keep_units(prefer_.keep);
    hold_puts();
    return with_fetches();
  }

 private:
  Time idle(DeviceId device, std::size_t from, std::size_t to) const {
    const auto& order = start_.order[device];
    const Time begin = start_.slots[order[from]].end, end = start_.slots[order[to]].start;
    return end > begin ? end - begin : Time(0);
  }

  // The first operator of the device that starts at this moment or later.
  std::size_t position_at(DeviceId device, Time at) const {
    const auto& order = start_.order[device];
    return static_cast<std::size_t>(
        std::ranges::partition_point(order, [&](OpId op) { return start_.slots[op].start < at; }) -
        order.begin());
  }

  void hold(DeviceId device, std::size_t from, std::size_t to, Bytes bytes) {  // to: not included
    held_[device].add(from, to, bytes);
  }

  bool fits(DeviceId device, std::size_t from, std::size_t to, Bytes bytes, double part) const {
    const double limit = static_cast<double>(prefer_.memory[device].count()) * part;
    return held_[device].fits(from, to, bytes, Bytes(static_cast<std::int64_t>(limit)));
  }

  void hold_what_stays() {
    for (const OpId op : graph_.ops()) {
      if (stored_[op]) continue;
      const DeviceId device = start_.device[op];
      hold(device, 0, held_[device].size(), graph_[op].permanent);
      if (graph_[op].variable) {
        for (const TensorId tensor : graph_.outputs(op))
          hold(device, 0, held_[device].size(), graph_.home_size(tensor));
        continue;
      }
      hold(device, position_[op], position_[op] + 1, graph_[op].temporary);
    }
  }

  bool is_on_device(OpId op, DeviceId device) const {
    return !stored_[op] && start_.device[op] == device;
  }

  std::vector<ResidencyStretch> uses_on(TensorId tensor, DeviceId device) const {
    std::vector<ResidencyStretch> uses;
    const OpId producer = graph_.producer(tensor);
    if (!graph_[producer].variable && start_.device[producer] == device)
      uses.push_back({position_[producer], position_[producer], {}});
    for (const Edge& edge : graph_.consumers(tensor))
      if (is_on_device(edge.to, device) && !graph_[edge.to].variable)
        uses.push_back({position_[edge.to], position_[edge.to], {edge.to}});
    std::ranges::sort(uses, {}, &ResidencyStretch::first);
    return uses;
  }

  bool adds_up(TensorId tensor) const {
    const auto readers = graph_.consumers(tensor);
    return !readers.empty() && step_.is_sum(readers.begin()->to);
  }

  void consider(TensorId tensor) {
    const OpId producer = graph_.producer(tensor);
    const bool stored = stored_[producer];
    if (graph_[producer].variable && !stored) return;
    if (graph_.size(tensor) == Bytes(0)) return;
    if (adds_up(tensor)) {  // the buffer of all micro-batches stays
      const DeviceId device = start_.device[producer];
      hold(device, position_[producer], position_[graph_.consumers(tensor).begin()->to] + 1,
           graph_.size(tensor));
      return;
    }
    for (const DeviceId device : cluster_.devices()) {
      if (device == start_.store) continue;
      std::vector<ResidencyStretch> uses = uses_on(tensor, device);
      if (uses.empty()) continue;
      if (!stored && start_.device[producer] != device) {  // a copy that another device sends
        hold(device, position_at(device, start_.slots[producer].end), uses.back().last + 1,
             graph_.size(tensor));
        continue;
      }
      add_item(tensor, device, stored, std::move(uses));
    }
  }

  // Where it is idle for less than it takes to send it both ways, it stays, if anything does.
  void add_item(TensorId tensor, DeviceId device, bool stored, std::vector<ResidencyStretch> uses) {
    const Bytes bytes = graph_.size(tensor);
    const Time sent = cluster_.link(device, start_.store).transfer_time(bytes) +
                      cluster_.link(start_.store, device).transfer_time(bytes);
    const Time both = prefer_.keep > 0 ? sent : Time(0);
    ResidencyItem item{tensor, device, stored, {}, false};
    for (ResidencyStretch& use : uses) {
      if (!item.stretches.empty() && idle(device, item.stretches.back().last, use.first) <= both) {
        item.stretches.back().last = use.last;
        item.stretches.back().readers.insert(item.stretches.back().readers.end(),
                                             use.readers.begin(), use.readers.end());
      } else {
        item.stretches.push_back(std::move(use));
      }
    }
    if (graph_.consumers(tensor).empty()) item.stretches.back().last = held_[device].size() - 1;
    for (std::size_t i = 0; i < item.stretches.size(); ++i) {
      hold(device, item.stretches[i].first, item.stretches[i].last + 1, bytes);
      if (i == 0) continue;
      const Time gap = idle(device, item.stretches[i - 1].last, item.stretches[i].first);
      gaps_.push_back({static_cast<double>(gap.count()) / (stored ? 1.0 : 2.0), items_.size(), i});
    }
    items_.push_back(std::move(item));
  }

  void keep_gaps() {
    std::sort(gaps_.begin(), gaps_.end());
    std::vector<std::vector<bool>> kept(items_.size());
    for (std::size_t i = 0; i < items_.size(); ++i)
      kept[i].assign(items_[i].stretches.size(), false);
    for (const ResidencyGap& gap : gaps_) {
      const ResidencyItem& item = items_[gap.item];
      if (item.stays) continue;
      const std::size_t from = item.stretches[gap.behind - 1].last + 1;
      const std::size_t to = item.stretches[gap.behind].first;
      if (!fits(item.device, from, to, graph_.size(item.tensor), prefer_.keep)) continue;
      hold(item.device, from, to, graph_.size(item.tensor));
      kept[gap.item][gap.behind] = true;
    }
    for (std::size_t i = 0; i < items_.size(); ++i) {
      if (items_[i].stays) continue;
      std::vector<ResidencyStretch> joined;
      for (std::size_t s = 0; s < items_[i].stretches.size(); ++s) {
        ResidencyStretch& stretch = items_[i].stretches[s];
        if (!kept[i][s]) {
          joined.push_back(std::move(stretch));
          continue;
        }
        joined.back().last = stretch.last;
        joined.back().readers.insert(joined.back().readers.end(), stretch.readers.begin(),
                                     stretch.readers.end());
      }
      items_[i].stretches = std::move(joined);
    }
  }

  // Whole variables stay on their device where there is room: spread over the step, by fractional
  // parts of the golden ratio's multiples; or first those that are needed last; or large ones.
  void keep_units(double part) {
    std::vector<std::pair<double, std::size_t>> order;
    for (std::size_t i = 0; i < units_.size(); ++i) {
      const double spread = std::fmod(static_cast<double>(i) * 0.6180339887498949, 1.0);
      order.emplace_back(prefer_.first == StayFirst::kLate ? -needed_until(units_[i])
                         : prefer_.first == StayFirst::kLarge
                             ? -static_cast<double>(units_[i].bytes.count())
                             : spread,
                         i);
    }
    std::ranges::sort(order);
    for (const auto& [unused, i] : order) keep_unit(units_[i], part);
  }

  double needed_until(const StoredUnit& unit) const {
    Time last;
    for (const OpId op : unit.members)
      for (const Edge& edge : graph_.in_edges(op))
        if (!graph_[edge.from].variable) last = std::max(last, start_.slots[edge.from].end);
    return static_cast<double>(last.count());
  }

  void keep_unit(const StoredUnit& unit, double part) {
    const DeviceId device = start_.device[unit.members.front()];
    if (!stored_[unit.members.front()]) return;
    for (const OpId op : unit.members)
      if (start_.device[op] != device) return;
    if (!fits(device, 0, held_[device].size(), unit.bytes, part)) return;
    hold(device, 0, held_[device].size(), unit.bytes);
    for (const OpId op : unit.members) stored_[op] = false;
    for (ResidencyItem& item : items_) {
      if (!item.stored || stored_[graph_.producer(item.tensor)]) continue;
      for (const ResidencyStretch& stretch : item.stretches)
        hold(item.device, stretch.first, stretch.last + 1, Bytes(0) - graph_.size(item.tensor));
      item.stored = false;
      item.stretches.resize(1);
      item.stretches.front().readers.clear();
      item.stays = true;
    }
  }

  bool is_sent(const ResidencyItem& item) const {
    if (item.stored || item.stays) return false;
    if (item.stretches.size() > 1) return true;
    return std::ranges::any_of(graph_.consumers(item.tensor), [&](const Edge& edge) {
      return !is_on_device(edge.to, item.device);
    });
  }

  // What is sent stays until it has been: one tensor after the other, as they are made.
  void hold_puts() {
    std::vector<std::pair<Time, std::size_t>> puts;
    for (std::size_t i = 0; i < items_.size(); ++i)
      if (is_sent(items_[i]))
        puts.emplace_back(start_.slots[graph_.producer(items_[i].tensor)].end, i);
    std::ranges::sort(puts);
    put_ends_.assign(items_.size(), Time(0));
    IdVector<DeviceId, Time> free(cluster_.num_devices());
    for (const auto& [made, i] : puts) {
      const ResidencyItem& item = items_[i];
      Time& end = free[item.device];
      end = std::max(end, made) +
            cluster_.link(item.device, start_.store).transfer_time(graph_.size(item.tensor));
      put_ends_[i] = end;
      hold(item.device, item.stretches.front().last + 1, position_at(item.device, end),
           graph_.size(item.tensor));
    }
  }

  struct Wanted {  // a fetch
    std::size_t use = 0, item = 0, stretch = 0;
    friend auto operator<=>(const Wanted&, const Wanted&) = default;
  };

  Residency with_fetches() {
    std::vector<std::vector<Fetch>> fetches(items_.size());
    IdVector<DeviceId, std::vector<Wanted>> wanted(cluster_.num_devices());
    for (std::size_t i = 0; i < items_.size(); ++i) {
      fetches[i].resize(items_[i].stretches.size());
      for (std::size_t s = items_[i].stored ? 0 : 1; s < items_[i].stretches.size(); ++s)
        wanted[items_[i].device].push_back({items_[i].stretches[s].first, i, s});
    }
    for (const DeviceId device : wanted.keys()) {
      std::ranges::sort(wanted[device]);
      std::size_t before = 0;
      for (const Wanted& each : wanted[device]) {
        before = release(device, each, before);
        Fetch& fetch = fetches[each.item][each.stretch];
        fetch.after = last_before(device, before - std::min(before, prefer_.lead));
        fetch.readers = items_[each.item].stretches[each.stretch].readers;
        std::ranges::sort(fetch.readers);
      }
    }
    return told(fetches);
  }

  // The operator there that a fetch may wait for: one of a micro-batch, as no fetch is of the step.
  std::optional<OpId> last_before(DeviceId device, std::size_t position) const {
    for (std::size_t at = position; at > 0; --at)
      if (const OpId op = start_.order[device][at - 1];
          step_.micro_batches() > 1 ? step_.micro_batch(op).has_value() : !graph_[op].per_step)
        return op;
    return std::nullopt;
  }

  // The position before which it may be asked for.
  std::size_t release(DeviceId device, const Wanted& wanted, std::size_t before) {
    const ResidencyItem& item = items_[wanted.item];
    std::size_t earliest = before;
    if (!item.stored) {
      earliest = std::max(earliest, item.stretches[wanted.stretch - 1].last + 1);
      earliest = std::max(earliest, position_at(device, put_ends_[wanted.item]));
    }
    earliest = std::min(earliest, wanted.use);
    const std::size_t at = held_[device].start_fitting(
        earliest, wanted.use, graph_.size(item.tensor), prefer_.memory[device]);
    hold(device, at, wanted.use, graph_.size(item.tensor));
    return at;
  }

  Residency told(std::vector<std::vector<Fetch>>& fetches) const {
    Residency residency;
    residency.store = cluster_[start_.store].name;
    for (std::size_t i = 0; i < items_.size(); ++i) {
      const OpId producer = graph_.producer(items_[i].tensor);
      const std::size_t port =
          items_[i].tensor.index() - (*graph_.outputs(producer).begin()).index();
      AwayTensor away{producer, static_cast<std::uint32_t>(port), {}};
      for (Fetch& fetch : fetches[i])
        if (!fetch.readers.empty()) away.fetches.push_back(std::move(fetch));
      if (away.fetches.empty()) continue;
      if (!residency.away.empty() && residency.away.back().producer == producer &&
          residency.away.back().port == port)
        std::ranges::move(away.fetches, std::back_inserter(residency.away.back().fetches));
      else
        residency.away.push_back(std::move(away));
    }
    for (const OpId op : graph_.ops())
      if (stored_[op]) residency.on_store.push_back(op);
    return residency;
  }

  const StepGraph step_;
  const OpGraph& graph_;
  const Cluster& cluster_;
  const ResidencyStart& start_;
  const std::vector<StoredUnit>& units_;
  const ResidencyPrefer& prefer_;
  IdVector<OpId, std::size_t> position_;
  IdVector<OpId, bool> stored_;
  IdVector<DeviceId, HeldOverTime> held_;  // one position more for the end
  std::vector<ResidencyItem> items_;
  std::vector<ResidencyGap> gaps_;
  std::vector<Time> put_ends_;  // by item
};

}  // namespace

Residency choose_residency(const ResidencyProblem& problem, const ResidencyStart& start,
                           const std::vector<StoredUnit>& units, const ResidencyPrefer& prefer) {
  return Choice(problem, start, units, prefer).choose();
}

}  // namespace baechi
