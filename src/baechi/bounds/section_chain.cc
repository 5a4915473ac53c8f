// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/section_chain.h"

#include <algorithm>
#include <optional>

namespace baechi::bounds {

Arcs::Arcs(const Relaxation& relaxed, const Components& together) {
  const OpGraph& graph = *relaxed.graph;
  in_begin_.assign(graph.num_ops() + 1, 0);
  out_begin_.assign(graph.num_ops() + 1, 0);
  in_.reserve(graph.num_edges());
  for (const OpId op : graph.ops()) {
    const std::span<const Edge> edges = graph.in_edges(op);
    for (std::size_t i = 0; i < edges.size();) {
      const OpId from = edges[i].from;
      Ns crossing = 0;
      for (; i < edges.size() && edges[i].from == from; ++i) {
        if (!edges[i].tensor.has_value()) continue;
        const Ns c = relaxed.c_min[edges[i].tensor->index()];
        crossing = relaxed.transfers_queue ? crossing + c : std::max(crossing, c);
      }
      in_.push_back({from.value(), together.of[from] == together.of[op], crossing});
      ++out_begin_[from.index() + 1];
    }
    in_begin_[op.index() + 1] = static_cast<std::uint32_t>(in_.size());
  }
  for (std::size_t op = 0; op < graph.num_ops(); ++op) out_begin_[op + 1] += out_begin_[op];
  out_.resize(in_.size(), Arc{0, false, 0});
  std::vector<std::uint32_t> next = out_begin_;
  for (const OpId op : graph.ops())
    for (const Arc& arc : in(op.value()))
      out_[next[arc.op]++] = {op.value(), arc.together, arc.crossing};
}

SectionChain::SectionChain(const Relaxation& relaxed, const Arcs& arcs)
    : num_ops_(relaxed.k_min.size()) {
  find_chain(relaxed, arcs);
  find_spans(relaxed, arcs);
}

// The longest by shortest times, with what takes no time at its ends.
void SectionChain::find_chain(const Relaxation& relaxed, const Arcs& arcs) {
  std::vector<Ns> end(relaxed.k_min.size(), 0);
  std::vector<std::optional<std::uint32_t>> before(relaxed.k_min.size());
  std::optional<std::uint32_t> last;
  for (const OpId op : relaxed.graph->topological_order()) {
    Ns start = 0;
    for (const Arc& arc : arcs.in(op.value())) {
      if (before[op.index()].has_value() && end[arc.op] <= start) continue;
      start = end[arc.op];
      before[op.index()] = arc.op;
    }
    end[op.index()] = start + relaxed.k_min[op.index()];
    if (!last.has_value() || end[op.index()] >= end[*last]) last = op.value();
  }
  for (; last.has_value(); last = before[*last]) chain_.push_back(*last);
  std::reverse(chain_.begin(), chain_.end());
}

void SectionChain::find_spans(const Relaxation& relaxed, const Arcs& arcs) {
  const std::span<const OpId> order = relaxed.graph->topological_order();
  std::vector<std::optional<std::uint32_t>> place(order.size()), after(order.size()),
      before(order.size());
  for (std::size_t i = 0; i < chain_.size(); ++i) place[chain_[i]] = static_cast<std::uint32_t>(i);
  for (const OpId op : order) {
    std::optional<std::uint32_t>& latest = after[op.index()];
    for (const Arc& arc : arcs.in(op.value())) latest = std::max(latest, after[arc.op]);
    if (place[op.index()].has_value()) latest = place[op.index()];
  }
  for (std::size_t i = order.size(); i-- > 0;) {
    std::optional<std::uint32_t>& soonest = before[order[i].index()];
    for (const Arc& arc : arcs.out(order[i].value()))
      if (const auto& found = before[arc.op]; found.has_value())
        soonest = std::min(soonest.value_or(*found), *found);
    if (place[order[i].index()].has_value()) soonest = place[order[i].index()];
  }
  for (const OpId op : order) {
    if (!after[op.index()].has_value() || !before[op.index()].has_value()) continue;
    between_.push_back({op.value(), *after[op.index()], *before[op.index()]});
    for (const Arc& arc : arcs.in(op.value()))
      if (after[arc.op].has_value() && *before[op.index()] > *after[arc.op] + 1)
        arcs_.emplace_back(*after[arc.op], *before[op.index()]);
  }
}

std::vector<std::uint32_t> SectionChain::places_to_cut(std::uint32_t longest_span,
                                                       bool arcs_span) const {
  std::vector<std::int64_t> change(chain_.size() + 1, 0);
  const auto span = [&](std::uint32_t after, std::uint32_t before) {
    if (before - after > longest_span) return;
    ++change[after + 1];
    --change[before];
  };
  for (const Beside& beside : between_)
    if (!beside.on_chain()) span(beside.after, beside.before);
  if (arcs_span)
    for (const auto& [after, before] : arcs_) span(after, before);
  std::vector<std::uint32_t> places{0};
  std::int64_t spans = 0;
  for (std::uint32_t i = 0; i < chain_.size(); ++i) {
    spans += change[i];
    if (i > 0 && (spans == 0 || i + 1 == chain_.size())) places.push_back(i);
  }
  return places;
}

std::vector<Section> SectionChain::cut(std::uint32_t longest_span, bool arcs_span) const {
  const std::vector<std::uint32_t> places = places_to_cut(longest_span, arcs_span);
  std::vector<Section> sections;
  std::vector<std::uint32_t> section_at(chain_.size(), 0);
  for (std::uint32_t s = 0; s + 1 < places.size(); ++s) {
    sections.push_back({chain_[places[s]], chain_[places[s + 1]], {}, false});
    for (std::uint32_t i = places[s]; i < places[s + 1]; ++i) section_at[i] = s;
  }
  for (const Beside& beside : between_) {
    const std::uint32_t s = section_at[beside.after];
    if (beside.on_chain() && (beside.after == places[s] || beside.after + 1 == length())) continue;
    if (s >= sections.size() || beside.before > places[s + 1]) continue;
    sections[s].inside.push_back(beside.op);
    if (!beside.on_chain()) sections[s].wide = true;
  }
  return sections;
}

void SectionChain::for_each_section(const std::function<void(const Section&)>& tell) const {
  // Sections grow with the span: where the one told last from here ends, by its first operator.
  std::vector<std::optional<std::uint32_t>> told(num_ops_);
  constexpr std::size_t kMostVisits = 1'000'000;  // of operators: fewer spans of larger graphs
  std::size_t visits = 0;
  for (std::uint32_t span = 2; span / 2 < length() && visits < kMostVisits; span *= 2) {
    visits += between_.size();
    for (const Section& section : cut(span, false)) {
      if (!section.wide || told[section.from] == section.to) continue;
      told[section.from] = section.to;
      tell(section);
    }
  }
}

}  // namespace baechi::bounds
