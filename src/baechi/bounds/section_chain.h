// SPDX-License-Identifier: Apache-2.0
// The longest chain of a graph, and what lies between its operators. Internal to bounds/.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
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
  std::vector<std::uint32_t> inside;  // after `from` and before `to`, in topological order
  bool wide;                          // some of that is beside the chain
};

class SectionChain {
 public:
  SectionChain(const Relaxation& relaxed, const Arcs& arcs);

  std::uint32_t length() const { return static_cast<std::uint32_t>(chain_.size()); }

  // The chain in sections, cut wherever no operator beside it spans the place, of those that span
  // so many operators of the chain at most; with `arcs_span`, no edge that does so either. Empty
  // when the chain is one operator.
  std::vector<Section> cut(std::uint32_t longest_span, bool arcs_span) const;

  // The wide sections of the spans that are powers of two, each once; of graphs of a hundred
  // thousand operators not the longest spans.
  void for_each_section(const std::function<void(const Section&)>& tell) const;

 private:
  void find_chain(const Relaxation& relaxed, const Arcs& arcs);
  void find_spans(const Relaxation& relaxed, const Arcs& arcs);
  std::vector<std::uint32_t> places_to_cut(std::uint32_t longest_span, bool arcs_span) const;

  struct Beside {  // an operator between chain_[after] and chain_[before], or chain_[after] itself
    std::uint32_t op, after, before;
    bool on_chain() const { return after == before; }
  };
  std::size_t num_ops_;
  std::vector<std::uint32_t> chain_;
  std::vector<Beside> between_;                                // in topological order
  std::vector<std::pair<std::uint32_t, std::uint32_t>> arcs_;  // over the operators between
};

}  // namespace baechi::bounds
