// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/memory_runs.h"

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "baechi/base/wide.h"
#include "baechi/bounds/section_chain.h"

namespace baechi::bounds {
namespace {

Ns capped(Ns time) { return std::min(time, kNever); }

// What one section takes from the end of its first operator to the start of its last one when not
// all of it is on one device, by the types of these two.
class SplitSection {
 public:
  SplitSection(const Relaxation& relaxed, const Arcs& arcs)
      : in_(relaxed),
        arcs_(arcs),
        num_types_(relaxed.num_types()),
        section_of_(relaxed.k_min.size(), 0),
        head_(num_types_ * relaxed.k.size()),
        tail_(num_types_ * relaxed.k.size()),
        least_(num_types_ * num_types_) {}

  // least()[first * types + last]; it lives until the next call.
  std::span<const Ns> least(const Section& section) {
    first_ = section.from;
    last_ = section.to;
    ++current_;
    std::vector<std::uint32_t> ops = section.inside;
    for (const std::uint32_t op : ops) section_of_[op] = current_;
    section_of_[first_] = section_of_[last_] = current_;
    ops.push_back(last_);
    start();
    for (const std::uint32_t op : ops) head(op);
    std::fill(least_.begin(), least_.end(), kNever);
    for (std::size_t i = ops.size(); i-- > 0;) {
      settle(ops[i]);
      for (const Arc& arc : arcs_.in(ops[i]))
        if (section_of_[arc.op] == current_) cross(arc, ops[i]);
    }
    return least_;
  }

 private:
  // Of an operator on a device of a type, where the end of the section is on one of type `end`.
  std::size_t at(std::uint32_t op, std::size_t end, std::size_t type) const {
    return (op * num_types_ + end) * num_types_ + type;
  }
  Ns time(std::uint32_t op, std::size_t type) const {
    return op == first_ || op == last_ ? 0 : in_.k[op * num_types_ + type];
  }
  bool may_be(std::uint32_t op, std::size_t type) const {
    return in_.k[op * num_types_ + type] < kNever;
  }
  // What arrives on a device of type `to` from another operator on one of type `from`: at once where
  // they may share it.
  Ns carried(const Arc& arc, std::uint32_t op, std::size_t from, std::size_t to) const {
    if (from == to) return 0;
    return arc.together ? kNever : apart(arc, op, from, to);
  }
  Ns apart(const Arc& arc, std::uint32_t op, std::size_t from, std::size_t to) const {
    const std::optional<std::size_t>& link = in_.link[from * num_types_ + to];
    if (!link.has_value()) return kNever;
    Ns crossing = 0;
    const std::span<const Edge> edges = in_.graph->in_edges(OpId(op));
    for (auto edge = std::ranges::lower_bound(edges, OpId(arc.op), {}, &Edge::from);
         edge != edges.end() && edge->from == OpId(arc.op); ++edge) {
      if (!edge->tensor.has_value()) continue;
      const Ns c = in_.c[edge->tensor->index() * in_.num_links + *link];
      crossing = in_.transfers_queue ? crossing + c : std::max(crossing, c);
    }
    return crossing;
  }

  void start() {
    for (std::size_t end = 0; end < num_types_; ++end)
      for (std::size_t type = 0; type < num_types_; ++type)
        head_[at(first_, end, type)] = end == type && may_be(first_, type) ? 0 : kNever;
  }

  void head(std::uint32_t op) {
    for (std::size_t end = 0; end < num_types_; ++end)
      for (std::size_t type = 0; type < num_types_; ++type) {
        Ns& latest = head_[at(op, end, type)];
        latest = may_be(op, type) ? 0 : kNever;
        for (const Arc& arc : arcs_.in(op)) {
          if (section_of_[arc.op] != current_) continue;
          Ns soonest = kNever;
          for (std::size_t from = 0; from < num_types_; ++from)
            soonest = std::min(soonest, head_[at(arc.op, end, from)] + time(arc.op, from) +
                                            carried(arc, op, from, type));
          latest = std::max(latest, capped(soonest));
        }
        // Tails are collected from the readers, which come later.
        tail_[at(op, end, type)] = tail_[at(first_, end, type)] = 0;
      }
  }

  // The tail of an operator has been collected.
  void settle(std::uint32_t op) {
    for (std::size_t end = 0; end < num_types_; ++end)
      for (std::size_t type = 0; type < num_types_; ++type)
        if (!may_be(op, type) || (op == last_ && end != type)) tail_[at(op, end, type)] = kNever;
  }

  // An arc adds to the tail of its first operator, and may be what the section is split at.
  void cross(const Arc& arc, std::uint32_t op) {
    for (std::size_t end = 0; end < num_types_; ++end)
      for (std::size_t from = 0; from < num_types_; ++from) {
        Ns soonest = kNever;
        for (std::size_t to = 0; to < num_types_; ++to) {
          const Ns after = tail_[at(op, end, to)] + time(op, to);
          if (after >= kNever) continue;
          soonest = std::min(soonest, after + carried(arc, op, from, to));
          if (arc.together) continue;
          const Ns crossing = apart(arc, op, from, to) + time(arc.op, from);
          for (std::size_t begin = 0; begin < num_types_; ++begin) {
            Ns& least = least_[begin * num_types_ + end];
            least = std::min(least, capped(head_[at(arc.op, begin, from)] + crossing) + after);
          }
        }
        Ns& tail = tail_[at(arc.op, end, from)];
        tail = std::max(tail, capped(soonest));
      }
  }

  const Relaxation& in_;
  const Arcs& arcs_;
  const std::size_t num_types_;
  std::uint32_t first_ = 0, last_ = 0, current_ = 0;
  std::vector<std::uint32_t> section_of_;
  std::vector<Ns> head_, tail_;  // from the first operator, and to the last one
  std::vector<Ns> least_;
};

// The shortest way along the sections of a chain: each is on one device with the operators of the
// chain at its ends, and the device has room for the whole run of such sections, or is split.
class Runs {
 public:
  Runs(const Relaxation& relaxed, const Arcs& arcs, const HeadsTails& ends)
      : in_(relaxed), ends_(ends), split_(relaxed, arcs), open_(relaxed.num_types()) {}

  Ns shortest(const std::vector<Section>& sections) {
    const std::size_t num_types = in_.num_types();
    counted_.assign(in_.held.size(), false);
    held_ = 0;
    for (std::vector<Run>& runs : open_) runs.clear();
    std::vector<Ns> work(num_types, 0), end(num_types, kNever), next(num_types);
    const std::uint32_t first = sections.front().from;
    for (std::size_t type = 0; type < num_types; ++type)
      begin(type, ends_.b[first * num_types + type] + in_.k[first * num_types + type], 0);
    hold(first);
    for (std::size_t type = 0; type < num_types; ++type) end[type] = soonest_end(type, 0);

    for (const Section& section : sections) {
      const std::span<const Ns> split = split_.least(section);
      for (const std::uint32_t op : section.inside) hold(op);
      for (std::size_t type = 0; type < num_types; ++type) {
        const Ns k = in_.k[section.to * num_types + type];
        Ns alone = k;
        for (const std::uint32_t op : section.inside)
          alone = capped(alone + in_.k[op * num_types + type]);
        if (alone >= kNever)
          open_[type].clear();
        else
          work[type] += alone;
        Ns start = kNever;
        for (std::size_t from = 0; from < num_types; ++from)
          start = std::min(start, end[from] + split[from * num_types + type]);
        begin(type, capped(start) + k, work[type]);
      }
      hold(section.to);
      for (std::size_t type = 0; type < num_types; ++type)
        next[type] = soonest_end(type, work[type]);
      end = next;
    }
    Ns least = kNever;
    for (std::size_t type = 0; type < num_types; ++type)
      least = std::min(least, end[type] + ends_.q[sections.back().to * num_types + type]);
    return least;
  }

 private:
  struct Run {
    std::int64_t before;  // bytes of what comes before its first operator
    Ns lead;              // when that one ends, less the work until there
  };

  // What a unit holds counts where it appears first along the chain.
  void hold(std::uint32_t op) {
    const UnitId unit = in_.unit[OpId(op)];
    if (!counted_[unit.index()]) held_ += in_.held[unit];
    counted_[unit.index()] = true;
  }

  // A run whose first operator ends then. Those that began before and are no better can go: they
  // hold more.
  void begin(std::size_t type, Ns end, Ns work) {
    if (end >= kNever) return;
    std::vector<Run>& runs = open_[type];
    while (!runs.empty() && runs.back().lead >= end - work) runs.pop_back();
    runs.push_back({held_, end - work});
  }

  // When the last operator so far ends at the soonest: the oldest run that has room for it leads.
  Ns soonest_end(std::size_t type, Ns work) {
    std::vector<Run>& runs = open_[type];
    const auto fits = std::ranges::find_if(
        runs, [&](const Run& run) { return held_ - run.before <= in_.types[type].capacity; });
    runs.erase(runs.begin(), fits);
    return runs.empty() ? kNever : runs.front().lead + work;
  }

  const Relaxation& in_;
  const HeadsTails& ends_;
  SplitSection split_;
  std::vector<std::vector<Run>> open_;  // by type; the older, the sooner
  std::vector<bool> counted_;           // by unit
  std::int64_t held_ = 0;
};

// Whatever is put on one device.
bool everything_fits(const Relaxation& relaxed) {
  WideInt held = 0;
  for (const std::int64_t bytes : relaxed.held) held += bytes;
  return std::ranges::all_of(relaxed.types,
                             [&](const DeviceType& type) { return held <= type.capacity; });
}

}  // namespace

Ns memory_runs(const Relaxation& relaxed, const Components& together, const HeadsTails& ends) {
  constexpr std::size_t kMostTypes = 4, kMostWork = 4'000'000;
  const std::size_t num_types = relaxed.num_types();
  if (relaxed.num_devices == 1 || num_types > kMostTypes || everything_fits(relaxed)) return 0;
  const Arcs arcs(relaxed, together);
  const SectionChain chain(relaxed, arcs);
  if (chain.length() < 2) return 0;
  Runs runs(relaxed, arcs, ends);
  Ns longest = 0;
  // What a cut of the chain costs, about, in pairs of types that are looked at.
  const std::size_t once =
      (relaxed.k_min.size() + relaxed.graph->num_edges()) * num_types * num_types * num_types;
  std::size_t spent = 0;
  for (std::uint32_t span = 2; span / 2 < chain.length() && spent <= kMostWork; span *= 2) {
    longest = std::max(longest, runs.shortest(chain.cut(span)));
    spent += once;
  }
  return longest;
}

}  // namespace baechi::bounds
