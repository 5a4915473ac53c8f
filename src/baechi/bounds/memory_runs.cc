// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/memory_runs.h"

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "baechi/bounds/section_chain.h"

namespace baechi::bounds {
namespace {

Ns capped(Ns time) { return std::min(time, kNever); }

// What units on one device take of it.
struct Memory {
  std::int64_t held = 0, permanent = 0, running = 0;

  static Memory of(const Relaxation& relaxed, UnitId unit) {
    return {relaxed.held[unit], relaxed.permanent[unit], relaxed.running[unit]};
  }
  std::int64_t need() const { return std::max(held, permanent + running); }
  friend Memory operator+(const Memory& a, const Memory& b) {
    return {a.held + b.held, a.permanent + b.permanent, std::max(a.running, b.running)};
  }
};

// One way to split a section: not sooner, and with so much on the devices of its ends.
struct Split {
  Ns time;
  Memory at_first, at_last;
};

// What one section takes from the end of its first operator to the start of its last one when not
// all of it is on one device. An operator of it is at home, on the device of the end that is looked
// from, or on another one of some type.
class SplitSection {
 public:
  SplitSection(const Relaxation& relaxed, const Components& together, const Arcs& arcs)
      : in_(relaxed),
        together_(together),
        arcs_(arcs),
        num_types_(relaxed.num_types()),
        home_(num_types_),
        section_of_(relaxed.k_min.size(), 0),
        head_(relaxed.k.size() * (num_types_ + 1)),
        tail_(head_.size()),
        crossing_(num_types_ * num_types_) {}

  // `fresh` are units whose memory is to be told apart.
  void look_at(const Section& section, const std::vector<UnitId>& fresh) {
    first_ = section.from;
    last_ = section.to;
    fresh_ = &fresh;
    inside_ = section.inside;
    ++current_;
    for (const std::uint32_t op : inside_) section_of_[op] = current_;
    section_of_[first_] = section_of_[last_] = current_;
    std::vector<std::uint32_t> ops = section.inside;
    ops.push_back(last_);
    begin(first_, head_);
    for (const std::uint32_t op : ops) reach(op, true);
    ops.back() = first_;
    std::rotate(ops.begin(), ops.end() - 1, ops.end());
    begin(last_, tail_);
    for (std::size_t i = ops.size(); i-- > 0;) reach(ops[i], false);
  }

  // Both ends on one device of the type, something between them elsewhere.
  std::vector<Split> returning(std::size_t type) {
    start_costs();
    Ns soonest = kNever;
    for (const std::uint32_t op : inside_) {
      const Ns elsewhere = other(op, type, type);
      soonest = std::min(soonest, elsewhere);
      cost(op, elsewhere, 0);
    }
    return splits(
        std::max({soonest, head_[at(last_, type, home_)], tail_[at(first_, type, home_)]}));
  }

  // The ends on two devices of these types.
  std::vector<Split> leaving(std::size_t from, std::size_t to) {
    start_costs();
    if (in_.types[to].count <= (from == to ? 1U : 0U)) return {};
    for (const std::uint32_t op : inside_) {
      const Ns first = through(op, from, home_, to, from);
      const Ns last = through(op, from, to, to, home_);
      const Ns third = other(op, from, to);
      cost(op, std::min(last, third), std::min(first, third));
    }
    return splits(std::max(head_[at(last_, from, to)], tail_[at(first_, to, from)]));
  }

 private:
  std::size_t at(std::uint32_t op, std::size_t end, std::size_t label) const {
    return (op * num_types_ + end) * (num_types_ + 1) + label;
  }
  Ns time(std::uint32_t op, std::size_t type) const {
    return op == first_ || op == last_ ? 0 : in_.k[op * num_types_ + type];
  }
  bool may_be(std::uint32_t op, std::size_t type) const {
    return in_.k[op * num_types_ + type] < kNever;
  }

  void begin(std::uint32_t end_op, std::vector<Ns>& value) {
    for (std::size_t end = 0; end < num_types_; ++end)
      for (std::size_t label = 0; label <= num_types_; ++label)
        value[at(end_op, end, label)] = label == home_ && may_be(end_op, end) ? 0 : kNever;
  }

  // From the first operator on, or back from the last one: each neighbor where it is best for this
  // operator.
  void reach(std::uint32_t op, bool forward) {
    std::vector<Ns>& value = forward ? head_ : tail_;
    const bool bound_home = together_.of[OpId(op)] == together_.of[OpId(forward ? first_ : last_)];
    for (std::size_t end = 0; end < num_types_; ++end)
      for (std::size_t label = 0; label <= num_types_; ++label) {
        const bool home = label == home_;
        value[at(op, end, label)] =
            may_be(op, home ? end : label) &&
                    (home || (!bound_home && in_.types[label].count > (label == end ? 1U : 0U)))
                ? 0
                : kNever;
      }
    for (const Arc& arc : forward ? arcs_.in(op) : arcs_.out(op)) {
      if (section_of_[arc.op] != current_) continue;
      cross(forward ? arc.op : op, forward ? op : arc.op);
      for (std::size_t end = 0; end < num_types_; ++end)
        for (std::size_t label = 0; label <= num_types_; ++label) {
          Ns& latest = value[at(op, end, label)];
          if (latest >= kNever) continue;
          const std::size_t here = label == home_ ? end : label;
          Ns soonest = kNever;
          for (std::size_t other = 0; other <= num_types_; ++other) {
            const std::size_t there = other == home_ ? end : other;
            const Ns before = value[at(arc.op, end, other)];
            if (before >= kNever || (arc.together && other != label)) continue;
            const Ns carried = other == label ? 0
                               : forward      ? crossing_[there * num_types_ + here]
                                              : crossing_[here * num_types_ + there];
            soonest = std::min(soonest, capped(before + time(arc.op, there) + carried));
          }
          latest = std::max(latest, soonest);
        }
    }
  }

  // What all tensors between two neighbors take from type to type.
  void cross(std::uint32_t from, std::uint32_t to) {
    const std::span<const Edge> edges = in_.graph->in_edges(OpId(to));
    const auto first = std::ranges::lower_bound(edges, OpId(from), {}, &Edge::from);
    for (std::size_t pair = 0; pair < crossing_.size(); ++pair) {
      crossing_[pair] = in_.link[pair].has_value() ? 0 : kNever;
      if (!in_.link[pair].has_value()) continue;
      for (auto edge = first; edge != edges.end() && edge->from == OpId(from); ++edge) {
        if (!edge->tensor.has_value()) continue;
        const Ns c = in_.c[edge->tensor->index() * in_.num_links + *in_.link[pair]];
        crossing_[pair] = in_.transfers_queue ? crossing_[pair] + c : std::max(crossing_[pair], c);
      }
    }
  }

  // The section with an operator there, seen from its first end and its last one, by their types.
  Ns through(std::uint32_t op, std::size_t from, std::size_t head, std::size_t to,
             std::size_t tail) const {
    const std::size_t type = head == home_ ? from : head;
    return capped(capped(head_[at(op, from, head)] + time(op, type)) + tail_[at(op, to, tail)]);
  }
  Ns other(std::uint32_t op, std::size_t from, std::size_t to) const {
    Ns least = kNever;
    for (std::size_t type = 0; type < num_types_; ++type)
      least = std::min(least, through(op, from, type, to, type));
    return least;
  }

  // Of each fresh unit: what the section takes at least where it is not at the first end, and where
  // it is not at the last one.
  void start_costs() { not_first_.assign(fresh_->size(), 0), not_last_.assign(fresh_->size(), 0); }
  void cost(std::uint32_t op, Ns not_first, Ns not_last) {
    const auto unit = std::ranges::lower_bound(*fresh_, in_.unit[OpId(op)]);
    if (unit == fresh_->end() || *unit != in_.unit[OpId(op)]) return;
    const auto i = static_cast<std::size_t>(unit - fresh_->begin());
    not_first_[i] = std::max(not_first_[i], not_first);
    not_last_[i] = std::max(not_last_[i], not_last);
  }

  // The longer the section may take, the fewer units must be at its ends.
  std::vector<Split> splits(Ns soonest) const {
    constexpr std::size_t kMost = 4;
    if (soonest >= kNever) return {};
    std::vector<Ns> costs;
    for (std::size_t i = 0; i < fresh_->size(); ++i)
      for (const Ns cost : {not_first_[i], not_last_[i]})
        if (cost > soonest && cost < kNever) costs.push_back(cost);
    std::sort(costs.begin(), costs.end());
    costs.erase(std::unique(costs.begin(), costs.end()), costs.end());
    std::vector<Ns> times{soonest};
    for (std::size_t i = 1; i < kMost && !costs.empty(); ++i) {
      const Ns next = costs[(costs.size() - 1) * i / (kMost - 1)];
      if (next > times.back()) times.push_back(next);
    }
    times.push_back(kNever);
    std::vector<Split> result;
    for (std::size_t i = 0; i + 1 < times.size(); ++i) {
      Split split{times[i], {}, {}};
      for (std::size_t u = 0; u < fresh_->size(); ++u) {
        const Memory memory = Memory::of(in_, (*fresh_)[u]);
        if (not_first_[u] >= times[i + 1]) split.at_first = split.at_first + memory;
        if (not_last_[u] >= times[i + 1]) split.at_last = split.at_last + memory;
      }
      result.push_back(split);
    }
    return result;
  }

  const Relaxation& in_;
  const Components& together_;
  const Arcs& arcs_;
  const std::size_t num_types_, home_;
  std::uint32_t first_ = 0, last_ = 0, current_ = 0;
  std::span<const std::uint32_t> inside_;
  const std::vector<UnitId>* fresh_ = nullptr;  // ascending
  std::vector<std::uint32_t> section_of_;
  std::vector<Ns> head_, tail_;  // by operator, type of the end, and where it is
  std::vector<Ns> crossing_;     // of the arc in hand, [from * types + to]
  std::vector<Ns> not_first_, not_last_;
};

// Along the sections of a chain: each is on one device with the operators of the chain at its ends,
// or is split. What is on one device from one operator of the chain on fits it.
class Runs {
 public:
  Runs(const Relaxation& relaxed, const Components& together, const Arcs& arcs,
       const HeadsTails& ends)
      : in_(relaxed), ends_(ends), split_(relaxed, together, arcs), now_(relaxed.num_types()) {}

  Ns shortest(const std::vector<Section>& sections) {
    const std::size_t num_types = in_.num_types();
    counted_.assign(in_.held.size(), false);
    const std::uint32_t first = sections.front().from;
    const Fresh start = fresh(std::span(&first, 1));
    for (std::size_t type = 0; type < num_types; ++type) {
      now_[type].clear();
      add(now_[type], type,
          {capped(ends_.b[first * num_types + type] + time(first, type)), start.memory});
    }
    for (const Section& section : sections) pass(section);
    Ns least = kNever;
    for (std::size_t type = 0; type < num_types; ++type)
      for (const Run& run : now_[type])
        least = std::min(least, run.end + ends_.q[sections.back().to * num_types + type]);
    return least;
  }

 private:
  struct Run {  // up to an operator of the chain that ends then
    Ns end;
    Memory memory;

    bool beats(const Run& other) const {
      return memory.held <= other.memory.held && memory.permanent <= other.memory.permanent &&
             memory.running <= other.memory.running;
    }
  };

  Ns time(std::uint32_t op, std::size_t type) const { return in_.k[op * in_.num_types() + type]; }

  struct Fresh {
    std::vector<UnitId> units;  // ascending
    Memory memory;
  };

  // What a unit takes counts where it appears first along the chain.
  Fresh fresh(std::span<const std::uint32_t> ops) {
    Fresh result;
    for (const std::uint32_t op : ops) {
      const UnitId unit = in_.unit[OpId(op)];
      if (counted_[unit.index()]) continue;
      counted_[unit.index()] = true;
      result.units.push_back(unit);
      result.memory = result.memory + Memory::of(in_, unit);
    }
    std::sort(result.units.begin(), result.units.end());
    return result;
  }

  void add(std::vector<Run>& runs, std::size_t type, const Run& run) const {
    if (run.end < kNever && run.memory.need() <= in_.types[type].capacity) runs.push_back(run);
  }

  void pass(const Section& section) {
    const std::size_t num_types = in_.num_types();
    const Fresh inside = fresh(section.inside);
    const Memory last = fresh(std::span(&section.to, 1)).memory;
    split_.look_at(section, inside.units);
    std::vector<std::vector<Run>> next(num_types);
    for (std::size_t type = 0; type < num_types; ++type) {
      const Ns k = time(section.to, type);
      Ns alone = k;
      for (const std::uint32_t op : section.inside) alone = capped(alone + time(op, type));
      const std::vector<Split> returning = split_.returning(type);
      for (const Run& run : now_[type]) {
        add(next[type], type, {capped(run.end + alone), run.memory + inside.memory + last});
        for (const Split& split : returning)
          add(next[type], type,
              {capped(run.end + split.time + k), run.memory + split.at_first + last});
      }
      for (std::size_t from = 0; from < num_types; ++from)
        for (const Split& split : split_.leaving(from, type))
          add(next[type], type,
              {capped(soonest(from, split.at_first) + split.time + k), split.at_last + last});
      thin(next[type]);
    }
    now_ = std::move(next);
  }

  // The first end of a run that has room for this, too.
  Ns soonest(std::size_t type, const Memory& also) const {
    for (const Run& run : now_[type])
      if ((run.memory + also).need() <= in_.types[type].capacity) return run.end;
    return kNever;
  }

  // Keeps the runs that no sooner one beats, the soonest first; of too many, one for two neighbors,
  // as good as both.
  static void thin(std::vector<Run>& runs) {
    constexpr std::size_t kMost = 48;
    std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.end < b.end; });
    std::vector<Run> kept;
    for (const Run& run : runs)
      if (std::ranges::none_of(kept, [&](const Run& sooner) { return sooner.beats(run); }))
        kept.push_back(run);
    while (kept.size() > kMost) {
      for (std::size_t i = 0; i + 1 < kept.size(); i += 2) {
        const Memory &a = kept[i].memory, &b = kept[i + 1].memory;
        kept[i / 2] = {kept[i].end,
                       {std::min(a.held, b.held), std::min(a.permanent, b.permanent),
                        std::min(a.running, b.running)}};
      }
      if (kept.size() % 2 == 1) kept[kept.size() / 2] = kept.back();
      kept.resize((kept.size() + 1) / 2);
    }
    runs = std::move(kept);
  }

  const Relaxation& in_;
  const HeadsTails& ends_;
  SplitSection split_;
  std::vector<std::vector<Run>> now_;  // by type; the soonest first
  std::vector<bool> counted_;          // by unit
};

// Whatever is put on one device.
bool everything_fits(const Relaxation& relaxed) {
  Memory all;
  for (const UnitId unit : relaxed.held.keys()) all = all + Memory::of(relaxed, unit);
  return std::ranges::all_of(relaxed.types,
                             [&](const DeviceType& type) { return all.need() <= type.capacity; });
}

}  // namespace

Ns memory_runs(const Relaxation& relaxed, const Components& together, const HeadsTails& ends) {
  constexpr std::size_t kMostTypes = 4, kMostWork = 1'000'000;
  const std::size_t num_types = relaxed.num_types();
  if (relaxed.num_devices == 1 || num_types > kMostTypes || everything_fits(relaxed)) return 0;
  const Arcs arcs(relaxed, together);
  const SectionChain chain(relaxed, arcs);
  if (chain.length() < 2) return 0;
  Runs runs(relaxed, together, arcs, ends);
  Ns longest = 0;
  // What a cut of the chain costs, about, in pairs of places that are looked at.
  const std::size_t once = (relaxed.k_min.size() + relaxed.graph->num_edges()) * num_types *
                           (num_types + 1) * (num_types + 1);
  std::size_t spent = 0;
  for (std::uint32_t span = 2; span / 2 < chain.length() && spent <= kMostWork; span *= 2) {
    longest = std::max(longest, runs.shortest(chain.cut(span, true)));
    spent += once;
  }
  return longest;
}

}  // namespace baechi::bounds
