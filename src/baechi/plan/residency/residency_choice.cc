// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/residency/residency_choice.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "baechi/plan/residency/residency_account.h"
#include "baechi/plan/residency/residency_items.h"

namespace baechi {
namespace {

constexpr std::int64_t kAhead = 16;  // fetches may take before the one that is asked for is read

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
        account_(start.order, start.slots, prefer.memory),
        stored_(graph_.num_ops()) {}

  Residency choose() && {
    for (const StoredUnit& unit : units_)
      for (const OpId op : unit.members) stored_[op] = true;
    for (const std::size_t i : streamed_units(graph_, cluster_, start_, units_, prefer_))
      for (const OpId op : units_[i].members) stored_[op] = graph_[op].variable;
    hold_what_stays();
    for (const TensorId tensor : graph_.tensors()) consider(tensor);
    if (prefer_.units > 0 || !prefer_.places.empty()) keep_units(prefer_.units);
    keep_gaps();
    keep_units(prefer_.keep);
    hold_puts();
    return with_fetches();
  }

 private:
  void hold_what_stays() {
    for (const OpId op : graph_.ops()) {
      if (stored_[op]) continue;
      const DeviceId device = start_.device[op];
      account_.hold_always(device, graph_[op].permanent);
      if (graph_[op].variable) {
        for (const TensorId tensor : graph_.outputs(op))
          account_.hold_always(device, graph_.home_size(tensor));
        continue;
      }
      const std::size_t at = account_.position(op);
      account_.hold(device, at, at + 1, graph_[op].temporary);
    }
  }

  bool is_on_device(OpId op, DeviceId device) const {
    return !stored_[op] && start_.device[op] == device;
  }

  std::vector<ResidencyUse> uses_on(TensorId tensor, DeviceId device) const {
    std::vector<ResidencyUse> uses;
    const OpId producer = graph_.producer(tensor);
    if (!graph_[producer].variable && start_.device[producer] == device)
      uses.push_back({account_.position(producer), std::nullopt});
    for (const Edge& edge : graph_.consumers(tensor))
      if (is_on_device(edge.to, device) && !graph_[edge.to].variable)
        uses.push_back({account_.position(edge.to), edge.to});
    std::ranges::sort(uses, {}, &ResidencyUse::position);
    return uses;
  }

  void consider(TensorId tensor) {
    const OpId producer = graph_.producer(tensor);
    const bool stored = stored_[producer];
    if ((graph_[producer].variable && !stored) || graph_.size(tensor) == Bytes(0)) return;
    const auto readers = graph_.consumers(tensor);
    if (!readers.empty() && step_.is_sum(readers.begin()->to)) {  // the buffer of all stays
      const DeviceId device = start_.device[producer];
      account_.hold(device, account_.position(producer), account_.position(readers.begin()->to) + 1,
                    graph_.size(tensor));
      return;
    }
    for (const DeviceId device : cluster_.devices()) {
      if (device == start_.store) continue;
      std::vector<ResidencyUse> uses = uses_on(tensor, device);
      if (uses.empty()) continue;
      if (!stored && start_.device[producer] != device) {  // a copy that another device sends
        const std::size_t at = account_.position_at(device, start_.slots[producer].end);
        if (step_.micro_batches() == 1) {  // it is read soon, as devices wait for each other
          account_.hold(device, at, uses.back().position + 1, graph_.size(tensor));
          continue;
        }
        uses.insert(uses.begin(), {std::min(at, uses.front().position), std::nullopt});
      }
      add_item(tensor, device, stored, uses);
    }
  }

  // Where it is idle for less than it takes to send it both ways, it stays, if anything does.
  void add_item(TensorId tensor, DeviceId device, bool stored,
                const std::vector<ResidencyUse>& uses) {
    const Bytes bytes = graph_.size(tensor);
    const Time sent = cluster_.link(device, start_.store).transfer_time(bytes) +
                      cluster_.link(start_.store, device).transfer_time(bytes);
    const Time both = prefer_.keep > 0 ? sent : Time(0);
    const auto away = [&](std::optional<OpId> reader, bool otherwise) {
      return prefer_.is_away(graph_, tensor, reader, cluster_[device].capacity, otherwise);
    };
    ResidencyItem item{tensor, device, stored, false, stretches_.size(), 0};
    for (const auto& [position, reader] : uses) {
      const bool joins =
          stretches_.size() > item.begin &&
          !away(reader, account_.idle(device, stretches_.back().last, position) > both);
      if (!joins) stretches_.push_back({position, position, uses_.size(), uses_.size()});
      uses_.push_back({position, reader});
      stretches_.back().last = position;
      stretches_.back().end = uses_.size();
    }
    item.end = stretches_.size();
    if (graph_.consumers(tensor).empty()) stretches_.back().last = account_.end(device) - 1;
    for (std::size_t i = item.begin; i < item.end; ++i) {
      account_.hold(device, stretches_[i].first, stretches_[i].last + 1, bytes);
      if (i == item.begin || away(uses_[stretches_[i].begin].reader, false)) continue;
      const Time gap = account_.idle(device, stretches_[i - 1].last, stretches_[i].first);
      gaps_.push_back({static_cast<double>(gap.count()) / (stored ? 1.0 : 2.0), i, items_.size()});
    }
    items_.push_back(item);
  }

  void keep_gaps() {
    std::ranges::sort(gaps_);
    std::vector<bool> kept(stretches_.size());
    for (const ResidencyGap& gap : gaps_) {
      const ResidencyItem& item = items_[gap.item];
      if (item.stays) continue;
      const std::size_t from = stretches_[gap.stretch - 1].last + 1;
      const std::size_t to = stretches_[gap.stretch].first;
      if (!account_.fits(item.device, from, to, graph_.size(item.tensor), prefer_.keep)) continue;
      account_.hold(item.device, from, to, graph_.size(item.tensor));
      kept[gap.stretch] = true;
    }
    for (ResidencyItem& item : items_) {
      std::size_t joined = item.begin;
      for (std::size_t i = item.begin + 1; i < item.end; ++i) {
        if (!kept[i]) {
          stretches_[++joined] = stretches_[i];
          continue;
        }
        stretches_[joined].last = stretches_[i].last;
        stretches_[joined].end = stretches_[i].end;
      }
      item.end = joined + 1;
    }
  }

  // Whole variables stay on their device where there is room.
  void keep_units(double part) {
    for (const std::size_t i : units_in_order(graph_, start_, units_, prefer_.first))
      if (const UnitPlace place = prefer_.place_of(i); place <= UnitPlace::kStays)
        keep_unit(units_[i], place == UnitPlace::kAny ? part : 1.0);
  }

  void keep_unit(const StoredUnit& unit, double part) {
    const DeviceId device = start_.device[unit.members.front()];
    if (!stored_[unit.members.front()]) return;
    for (const OpId op : unit.members)
      if (start_.device[op] != device) return;
    hold_fetched(unit, -1);  // or it would count twice
    if (!account_.fits(device, 0, account_.end(device), unit.bytes, part)) {
      hold_fetched(unit, 1);
      return;
    }
    account_.hold_always(device, unit.bytes);
    for_each_item(unit, [](ResidencyItem& item) {
      item.stored = false;
      item.stays = true;
      item.end = item.begin + 1;
    });
    for (const OpId op : unit.members) stored_[op] = false;
  }

  std::span<ResidencyItem> copies_of(TensorId tensor) {
    return {std::ranges::lower_bound(items_, tensor, {}, &ResidencyItem::tensor),
            std::ranges::upper_bound(items_, tensor, {}, &ResidencyItem::tensor)};
  }

  template <class Do>
  void for_each_item(const StoredUnit& unit, const Do& act) {
    for (const OpId op : unit.members)
      for (const TensorId tensor : graph_.outputs(op))
        for (ResidencyItem& item : copies_of(tensor))
          if (item.stored) act(item);
  }

  void hold_fetched(const StoredUnit& unit, std::int64_t times) {
    for_each_item(unit, [&](const ResidencyItem& item) {
      for (std::size_t i = item.begin; i < item.end; ++i)
        account_.hold(item.device, stretches_[i].first, stretches_[i].last + 1,
                      graph_.size(item.tensor) * times);
    });
  }

  bool is_sent(const ResidencyItem& item) const {
    const OpId producer = graph_.producer(item.tensor);
    if (item.stored || item.stays || item.device != start_.device[producer]) return false;
    if (item.end - item.begin > 1) return true;
    return std::ranges::any_of(graph_.consumers(item.tensor), [&](const Edge& edge) {
      return !is_on_device(edge.to, item.device);
    });
  }

  // The update on this device that changes a variable on the store.
  std::optional<OpId> streamed_update_of(const ResidencyItem& item) const {
    if (!item.stored) return std::nullopt;
    for (const Edge& edge : graph_.consumers(item.tensor))
      if (is_update(step_, edge.to) && is_on_device(edge.to, item.device)) return edge.to;
    return std::nullopt;
  }

  // What is sent stays until it has been: one tensor after the other, as they are made.
  void hold_puts() {
    std::vector<std::pair<Time, std::size_t>> puts;
    for (std::size_t i = 0; i < items_.size(); ++i)
      if (is_sent(items_[i]))
        puts.emplace_back(start_.slots[graph_.producer(items_[i].tensor)].end, i);
      else if (const auto update = streamed_update_of(items_[i]); update.has_value())
        puts.emplace_back(start_.slots[*update].end, i);
    std::ranges::sort(puts);
    put_ends_.assign(items_.size(), Time(0));
    IdVector<DeviceId, Time> free(cluster_.num_devices());
    for (const auto& [made, i] : puts) {
      const ResidencyItem& item = items_[i];
      Time& end = free[item.device];
      end = std::max(end, made) +
            cluster_.link(item.device, start_.store).transfer_time(graph_.size(item.tensor));
      const std::size_t last = stretches_[item.stored ? item.end - 1 : item.begin].last;
      account_.hold(item.device, last + 1, account_.position_at(item.device, end),
                    graph_.size(item.tensor));
      for (const ResidencyItem& copy : copies_of(item.tensor))
        put_ends_[static_cast<std::size_t>(&copy - items_.data())] = end;
    }
  }

  Residency with_fetches() {
    fetches_.resize(stretches_.size());
    IdVector<DeviceId, std::vector<ResidencyFetch>> wanted(cluster_.num_devices());
    for (std::size_t i = 0; i < items_.size(); ++i)
      for (std::size_t s = items_[i].begin + (items_[i].stored ? 0 : 1); s < items_[i].end; ++s)
        wanted[items_[i].device].push_back({stretches_[s].first, i, s});
    for (const DeviceId device : wanted.keys()) {
      std::ranges::sort(wanted[device]);
      std::size_t before = 0;
      for (const ResidencyFetch& each : wanted[device]) {
        before = release(device, each, before);
        Fetch& fetch = fetches_[each.stretch];
        for (std::size_t use = stretches_[each.stretch].begin; use < stretches_[each.stretch].end;
             ++use)
          if (uses_[use].reader.has_value()) fetch.readers.push_back(*uses_[use].reader);
        std::ranges::sort(fetch.readers);
        fetch.after = last_before(device, before - std::min(before, prefer_.lead), fetch.readers);
      }
    }
    return told();
  }

  // The operator there that a fetch may wait for: one of a micro-batch, unless only updates read it.
  std::optional<OpId> last_before(DeviceId device, std::size_t position,
                                  const std::vector<OpId>& readers) const {
    const bool any = std::ranges::all_of(readers, [&](OpId op) { return is_update(step_, op); });
    for (std::size_t at = position; at > 0; --at)
      if (const OpId op = start_.order[device][at - 1];
          (any && !stored_[op]) ||
          (step_.micro_batches() > 1 ? step_.micro_batch(op).has_value() : !graph_[op].per_step))
        return op;
    return std::nullopt;
  }

  // The position before which it may be asked for.
  std::size_t release(DeviceId device, const ResidencyFetch& wanted, std::size_t before) {
    const ResidencyItem& item = items_[wanted.item];
    std::size_t earliest = prefer_.overtakes ? 0 : before;
    if (!item.stored)
      earliest = std::max({earliest, stretches_[wanted.stretch - 1].last + 1,
                           account_.position_at(device, put_ends_[wanted.item])});
    const Bytes bytes = graph_.size(item.tensor);
    if (step_.micro_batches() > 1 &&
        wanted.use < account_.end(device)) {  // messages wait behind it
      const Time use = start_.slots[start_.order[device][wanted.use]].start;
      const Time early = cluster_.link(start_.store, device).transfer_time(bytes) * kAhead;
      earliest = std::max(earliest, account_.position_at(device, use - std::min(use, early)));
    }
    earliest = std::min(earliest, wanted.use);
    const std::size_t at = account_.start_fitting(device, earliest, wanted.use, bytes);
    account_.hold(device, at, wanted.use, bytes);
    return at;
  }

  Residency told() {
    Residency residency;
    residency.store = cluster_[start_.store].name;
    for (const ResidencyItem& item : items_) {
      const OpId producer = graph_.producer(item.tensor);
      const auto port = static_cast<std::uint32_t>(item.tensor.index() -
                                                   (*graph_.outputs(producer).begin()).index());
      for (std::size_t i = item.begin; i < item.end; ++i) {
        if (fetches_[i].readers.empty()) continue;
        if (residency.away.empty() || residency.away.back().producer != producer ||
            residency.away.back().port != port)
          residency.away.push_back({producer, port, {}});
        residency.away.back().fetches.push_back(std::move(fetches_[i]));
      }
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
  ResidencyAccount account_;
  IdVector<OpId, bool> stored_;
  std::vector<ResidencyUse> uses_;           // of one stretch after the other
  std::vector<ResidencyStretch> stretches_;  // of one item after the other
  std::vector<ResidencyItem> items_;         // sorted by tensor and device
  std::vector<ResidencyGap> gaps_;
  std::vector<Time> put_ends_;  // by item
  std::vector<Fetch> fetches_;  // by stretch: without readers, if it needs none
};

}  // namespace

Residency choose_residency(const ResidencyProblem& problem, const ResidencyStart& start,
                           const std::vector<StoredUnit>& units, const ResidencyPrefer& prefer) {
  return Choice(problem, start, units, prefer).choose();
}

}  // namespace baechi
