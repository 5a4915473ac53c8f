// SPDX-License-Identifier: Apache-2.0
// The longest chain of a graph, and what lies between its operators. Internal to bounds/.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "baechi/bounds/components.h"
#include "baechi/bounds/relaxation.h"

namespace baechi::bounds {

// From an operator to a neighbor, all edges between them at once.
struct Arc {
  std::uint32_t op;
  bool together;  // they share a device
  Ns crossing;    // else their tensors take so long, on the fastest link
};

class Arcs {
 public:
  Arcs(const Relaxation& relaxed, const Components& together);
  std::span<const Arc> in(std::uint32_t op) const { return row(in_, in_begin_, op); }
  std::span<const Arc> out(std::uint32_t op) const { return row(out_, out_begin_, op); }

 private:
  static std::span<const Arc> row(const std::vector<Arc>& arcs,
                                  const std::vector<std::uint32_t>& begin, std::uint32_t op) {
    return std::span(arcs).subspan(begin[op], begin[op + 1] - begin[op]);
  }
  std::vector<Arc> in_, out_;
  std::vector<std::uint32_t> in_begin_, out_begin_;
};

struct Section {
  std::uint32_t from, to;
  std::span<const std::uint32_t> inside;  // after `from` and before `to`, in topological order
};

class SectionChain {
 public:
  SectionChain(const Relaxation& relaxed, const Arcs& arcs);

  // Cuts the chain wherever no operator beside it spans the place, at first looking only at those
  // that span two operators of the chain, then four, and so on. Every section that has something
  // beside the chain is told once; its `inside` lives until the call returns.
  void for_each_section(const std::function<void(const Section&)>& tell) const;

 private:
  void find_chain(const Relaxation& relaxed, const Arcs& arcs);
  void find_spans(const Relaxation& relaxed, const Arcs& arcs);
  std::vector<std::uint32_t> places_to_cut(std::uint32_t longest_span) const;

  struct Beside {  // an operator between chain_[after] and chain_[before], or chain_[after] itself
    std::uint32_t op, after, before;
    bool on_chain() const { return after == before; }
  };
  std::vector<std::uint32_t> chain_;
  std::vector<Beside> between_;  // in topological order
};

}  // namespace baechi::bounds
