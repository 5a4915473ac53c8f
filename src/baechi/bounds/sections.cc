// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/sections.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "baechi/bounds/fill_drain.h"
#include "baechi/bounds/section_chain.h"
#include "baechi/bounds/section_cut.h"
#include "baechi/bounds/star.h"

namespace baechi::bounds {
namespace {

// What the devices other than the one at this end of a section wait for at least, by how soon they
// can be there.
class Waits {
 public:
  void clear() {
    far_.clear();
    crossing_ = relayed_ = kNever;
  }

  // An operator whose neighbors towards this end are all on other devices: it waits for `far`, and
  // if they are all on the one at the end, that one's queue is busy for it for `crossing`.
  void add(Ns far, Ns crossing) {
    if (far >= kNever) return;
    far_.push_back(far);
    crossing_ = std::min(crossing_, crossing);
  }
  Ns soonest() const { return far_.empty() ? kNever : *std::min_element(far_.begin(), far_.end()); }
  // One that has a neighbor on a device that is not the one at the end.
  void relay(Ns wait) { relayed_ = std::min(relayed_, wait); }

  // The waits of at most `most` devices, ascending: none for the first, which may be the one at the
  // end. The transfers of the others share its queue, if there are queues, or come from elsewhere.
  void list(std::size_t most, bool queue, std::vector<Ns>& waits) {
    waits.assign(1, 0);
    const std::size_t count = std::min(most - 1, far_.size());
    std::partial_sort(far_.begin(), far_.begin() + static_cast<std::ptrdiff_t>(count), far_.end());
    for (std::size_t i = 0; i < count; ++i) {
      // No step is longer than kNever, so that the product of two longer ones does not matter.
      const Ns devices = static_cast<Ns>(i + 1);
      const Ns in_turn = crossing_ > kNever / devices ? kNever : crossing_ * devices;
      waits.push_back(queue ? std::max(far_[i], std::min(in_turn, relayed_)) : far_[i]);
    }
  }

 private:
  std::vector<Ns> far_;
  Ns crossing_ = kNever, relayed_ = kNever;
};

class Sections {
 public:
  Sections(const Relaxation& relaxed, const Components& together, const LoadWeights& weights)
      : in_(relaxed),
        arcs_(relaxed, together),
        devices_(weights_of_devices(relaxed, weights)),
        weighted_(relaxed.k_min.size()),
        section_of_(relaxed.k_min.size(), 0),
        head_(relaxed.k_min.size()),
        tail_(relaxed.k_min.size()) {
    const std::size_t num_types = relaxed.num_types();
    for (std::size_t op = 0; op < weighted_.size(); ++op) {
      std::optional<WideInt> least;
      for (std::size_t type = 0; type < num_types; ++type) {
        const Ns k = relaxed.k[op * num_types + type];
        if (k >= kNever) continue;
        const WideInt work = static_cast<WideInt>(weights.y[type]) * k;
        least = std::min(least.value_or(work), work);
      }
      weighted_[op] = least.value_or(0);
    }
  }

  std::vector<Distance> run() {
    const SectionChain chain(in_, arcs_);
    std::vector<Distance> found;
    chain.for_each_section([&](const Section& section) {
      found.push_back({OpId(section.from), OpId(section.to), least(section)});
    });
    return found;
  }

 private:
  // From the end of the first operator to the start of the last one.
  Ns least(const Section& section) {
    first_ = section.from;
    last_ = section.to;
    ++current_;
    for (const std::uint32_t op : section.inside) section_of_[op] = current_;
    section_of_[first_] = section_of_[last_] = current_;
    heads(section.inside);
    tails(section.inside);
    const Ns chain = std::max(head_[last_], tail_[first_]), one = alone(section.inside);
    const Ns known = std::max({chain, shared(section.inside), std::min(one, cut_)});
    // No more than what one device takes is to be proved, if that could do it all.
    const std::size_t size = section.inside.size() * in_.num_types() * in_.num_types();
    if (known >= one - one / 64 || size > kMostCut - cut_so_far_) return known;
    cut_so_far_ += size;
    return section_cut(in_, section, known);
  }

  bool inside(const Arc& arc) const { return section_of_[arc.op] == current_; }
  Ns time(std::uint32_t op) const { return op == first_ || op == last_ ? 0 : in_.k_min[op]; }

  // When an operator can start, from the end of the first one, as in the star bound.
  void heads(std::span<const std::uint32_t> ops) {
    head_[first_] = 0;
    entering_.clear();
    const auto visit = [&](std::uint32_t op) {
      neighbors_.clear();
      Ns far = 0, crossing = 0;
      for (const Arc& arc : arcs_.in(op)) {
        if (!inside(arc)) continue;
        const Ns sent = arc.together ? kNever : head_[arc.op] + time(arc.op) + arc.crossing;
        neighbors_.push_back({sent, head_[arc.op], time(arc.op)});
        far = std::max(far, sent);
        crossing += arc.crossing;  // different tensors, all sent to this device
      }
      head_[op] = star_.solve(neighbors_);
      if (op != last_) entering_.add(far, crossing);
    };
    for (const std::uint32_t op : ops) visit(op);
    visit(last_);
    const Ns soonest = entering_.soonest();
    for (const std::uint32_t op : ops)
      for (const Arc& arc : arcs_.in(op))
        if (inside(arc) && arc.op != first_ && !arc.together)
          entering_.relay(std::max(soonest, head_[arc.op]) + time(arc.op) + arc.crossing);
  }

  // The same backwards; and how long the section takes where one of its tensors crosses.
  void tails(std::span<const std::uint32_t> ops) {
    tail_[last_] = 0;
    leaving_.clear();
    cut_ = kNever;
    const auto visit = [&](std::uint32_t op) {
      neighbors_.clear();
      Ns far = 0, crossing = 0;
      for (const Arc& arc : arcs_.out(op)) {
        if (!inside(arc)) continue;
        const Ns sent = arc.together ? kNever : tail_[arc.op] + time(arc.op) + arc.crossing;
        neighbors_.push_back({sent, tail_[arc.op], time(arc.op)});
        far = std::max(far, sent);
        crossing = std::max(crossing, arc.crossing);  // one tensor may be for several
        cut_ = std::min(cut_, head_[op] + time(op) + sent);
      }
      tail_[op] = star_.solve(neighbors_);
      if (op != first_) leaving_.add(far, crossing);
    };
    for (std::size_t i = ops.size(); i-- > 0;) visit(ops[i]);
    visit(first_);
    const Ns soonest = leaving_.soonest();
    for (const std::uint32_t op : ops)
      for (const Arc& arc : arcs_.out(op))
        if (inside(arc) && arc.op != last_ && !arc.together)
          leaving_.relay(std::max(soonest, tail_[arc.op]) + time(arc.op) + arc.crossing);
  }

  // However many devices share the section.
  Ns shared(std::span<const std::uint32_t> ops) {
    WideInt work = 0;
    for (const std::uint32_t op : ops) work += weighted_[op];
    entering_.list(devices_.size(), in_.transfers_queue, enter_);
    leaving_.list(devices_.size(), in_.transfers_queue, leave_);
    return shared_with_waits(work, devices_, enter_, leave_).value_or(0);
  }

  // On one device of the best type.
  Ns alone(std::span<const std::uint32_t> ops) const {
    const std::size_t num_types = in_.num_types();
    Ns least = kNever;
    for (std::size_t type = 0; type < num_types; ++type) {
      Ns work = 0;
      for (const std::uint32_t op : ops)
        work = std::min(kNever, work + in_.k[op * num_types + type]);
      least = std::min(least, work);
    }
    return least;
  }

  static constexpr std::size_t kMostCut = 8'000;  // operators by pairs of types, in all

  const Relaxation& in_;
  const Arcs arcs_;
  std::size_t cut_so_far_ = 0;
  const std::vector<std::int64_t> devices_;  // their weights, largest first
  std::vector<WideInt> weighted_;            // the least weighted work of each operator

  // Of the section in hand; first_ and last_ take no time there.
  std::uint32_t first_ = 0, last_ = 0, current_ = 0;
  std::vector<std::uint32_t> section_of_;
  std::vector<Ns> head_, tail_, enter_, leave_;
  Ns cut_ = kNever;
  Waits entering_, leaving_;
  std::vector<Neighbor> neighbors_;
  Star star_;
};

}  // namespace

std::vector<Distance> sections(const Relaxation& relaxed, const Components& together,
                               const LoadWeights& weights) {
  if (relaxed.num_devices == 1) return {};  // the load says it all
  return Sections(relaxed, together, weights).run();
}

}  // namespace baechi::bounds
