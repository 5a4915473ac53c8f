// SPDX-License-Identifier: Apache-2.0
// Approximate minimum degree (Amestoy, Davis, Duff 1996): degrees are bounded from above by summing
// over elements, variables with equal neighbours are merged, swallowed elements are dropped.
#include "baechi/lp/elimination_order.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace baechi::lp {
namespace {

using Index = std::uint32_t;

class MinimumDegree {
 public:
  MinimumDegree(Index size, std::span<const MatrixEntry> entries);
  std::vector<Index> run() &&;

 private:
  // A variable's neighbours: elements (by their pivot's number), then variables, in one slice that
  // never grows, since each elimination next to it removes at least the entry that it adds.
  struct Variable {
    Index begin = 0, num_elements = 0, num_variables = 0;
    Index weight = 1;  // merged variables it stands for; 0 once merged or eliminated
    Index degree = 0;
    Index last_merged = 0;  // end of its chain in next_merged_
  };
  struct Element {
    std::vector<Index> members;
    Index weight = 0;   // of its members
    Index outside = 0;  // weight of its members outside the pivot's element
    Index stamp = 0;    // pivot step for which `outside` is valid
    bool alive = false;
  };

  std::span<Index> elements_of(Index v) {
    return {&adjacency_[variable_[v].begin], variable_[v].num_elements};
  }
  std::span<Index> variables_of(Index v) {
    return {&adjacency_[variable_[v].begin] + variable_[v].num_elements,
            variable_[v].num_variables};
  }
  void insert_by_degree(Index v);
  void remove_by_degree(Index v);
  Index next_pivot();
  void eliminate(Index pivot);
  void gather_members(Index pivot);
  void weigh_outsides(const Element& front);
  bool update_member(Index v, Index pivot);  // false: nothing left outside the pivot's element
  void merge_equal_members(Element& front);
  bool same_neighbors(Index a, Index b);
  void emit(Index v);

  std::vector<Variable> variable_;
  std::vector<Element> element_;
  std::vector<Index> adjacency_, next_merged_;
  std::vector<std::optional<Index>> bucket_, next_, previous_;  // doubly linked lists by degree
  Index lowest_degree_ = 0, step_ = 0;
  std::vector<Index> mark_;  // step at which a variable joined the pivot's element
  std::vector<std::pair<std::uint64_t, Index>> hashes_;
  std::vector<Index> kept_, order_;
};

MinimumDegree::MinimumDegree(Index size, std::span<const MatrixEntry> entries)
    : variable_(size),
      element_(size),
      next_merged_(size),
      bucket_(size + 1),
      next_(size),
      previous_(size),
      mark_(size, 0) {
  std::vector<MatrixEntry> both;
  both.reserve(2 * entries.size());
  for (const auto& [a, b] : entries) {
    both.emplace_back(a, b);
    both.emplace_back(b, a);
  }
  std::ranges::sort(both);
  both.erase(std::unique(both.begin(), both.end()), both.end());
  adjacency_.resize(both.size() + 1);
  for (Index at = 0; at < both.size(); ++at) {
    adjacency_[at] = both[at].second;
    Variable& variable = variable_[both[at].first];
    if (variable.num_variables++ == 0) variable.begin = at;
  }
  for (Index v = size; v-- > 0;) {
    variable_[v].degree = variable_[v].num_variables;
    variable_[v].last_merged = next_merged_[v] = v;
    insert_by_degree(v);
  }
}

std::vector<Index> MinimumDegree::run() && {
  while (order_.size() < variable_.size()) eliminate(next_pivot());
  return std::move(order_);
}

void MinimumDegree::insert_by_degree(Index v) {
  const Index degree = variable_[v].degree;
  previous_[v].reset();
  next_[v] = bucket_[degree];
  if (next_[v]) previous_[*next_[v]] = v;
  bucket_[degree] = v;
  lowest_degree_ = std::min(lowest_degree_, degree);
}

void MinimumDegree::remove_by_degree(Index v) {
  if (next_[v]) previous_[*next_[v]] = previous_[v];
  (previous_[v] ? next_[*previous_[v]] : bucket_[variable_[v].degree]) = next_[v];
}

Index MinimumDegree::next_pivot() {
  while (!bucket_[lowest_degree_]) ++lowest_degree_;
  const Index pivot = *bucket_[lowest_degree_];
  remove_by_degree(pivot);
  return pivot;
}

void MinimumDegree::eliminate(Index pivot) {
  ++step_;
  gather_members(pivot);
  Element& front = element_[pivot];
  weigh_outsides(front);
  emit(pivot);
  std::erase_if(front.members, [&](Index v) {
    if (update_member(v, pivot)) return false;
    front.weight -= variable_[v].weight;
    emit(v);  // its remaining neighbours are a clique with it already
    return true;
  });
  merge_equal_members(front);
  for (const Index v : front.members) {
    const Index inside = front.weight - variable_[v].weight;
    variable_[v].degree = std::min(variable_[v].degree, static_cast<Index>(variable_.size()) - 1);
    variable_[v].degree = std::max(variable_[v].degree, inside);
    insert_by_degree(v);
  }
  front.alive = !front.members.empty();
}

// The pivot's element: all its live neighbours, direct ones and those through its elements, which
// the new element swallows.
void MinimumDegree::gather_members(Index pivot) {
  Element& front = element_[pivot];
  const auto add = [&](Index v) {
    if (v == pivot || variable_[v].weight == 0 || mark_[v] == step_) return;
    mark_[v] = step_;
    front.members.push_back(v);
    front.weight += variable_[v].weight;
    remove_by_degree(v);
  };
  for (const Index v : variables_of(pivot)) add(v);
  for (const Index e : elements_of(pivot)) {
    if (!element_[e].alive) continue;
    for (const Index v : element_[e].members) add(v);
    element_[e].alive = false;
    std::vector<Index>().swap(element_[e].members);
  }
}

void MinimumDegree::weigh_outsides(const Element& front) {
  for (const Index v : front.members) {
    for (const Index e : elements_of(v)) {
      Element& element = element_[e];
      if (!element.alive) continue;
      if (element.stamp != step_) element.outside = element.weight;
      element.stamp = step_;
      element.outside -= variable_[v].weight;
    }
  }
}

bool MinimumDegree::update_member(Index v, Index pivot) {
  Variable& variable = variable_[v];
  kept_.assign(1, pivot);
  Index outside = 0;
  std::uint64_t hash = pivot;
  for (const Index e : elements_of(v)) {
    if (!element_[e].alive) continue;
    if (element_[e].outside == 0) {  // lies within the pivot's element
      element_[e].alive = false;
      continue;
    }
    outside += element_[e].outside;
    kept_.push_back(e);
    hash += e;
  }
  const auto num_elements = static_cast<Index>(kept_.size());
  for (const Index other : variables_of(v)) {
    if (other == pivot || variable_[other].weight == 0 || mark_[other] == step_) continue;
    outside += variable_[other].weight;
    kept_.push_back(other);
    hash += other;
  }
  if (outside == 0) return false;
  variable.num_elements = num_elements;
  variable.num_variables = static_cast<Index>(kept_.size()) - num_elements;
  std::ranges::copy(kept_, adjacency_.begin() + variable.begin);
  const Index inside = element_[pivot].weight - variable.weight;
  variable.degree = std::min(variable.degree, outside) + inside;
  hashes_.emplace_back(hash, v);
  return true;
}

// Members with the same neighbours would be eliminated one after the other: one stands for all.
void MinimumDegree::merge_equal_members(Element& front) {
  std::ranges::sort(hashes_);
  for (std::size_t i = 0; i < hashes_.size(); ++i) {
    const auto [hash, kept] = hashes_[i];
    if (variable_[kept].weight == 0) continue;
    for (std::size_t j = i + 1; j < hashes_.size() && hashes_[j].first == hash; ++j) {
      const Index twin = hashes_[j].second;
      if (variable_[twin].weight == 0 || !same_neighbors(kept, twin)) continue;
      variable_[kept].weight += variable_[twin].weight;
      variable_[kept].degree -= std::min(variable_[kept].degree, variable_[twin].weight);
      variable_[twin].weight = 0;
      next_merged_[variable_[kept].last_merged] = twin;
      variable_[kept].last_merged = variable_[twin].last_merged;
    }
  }
  hashes_.clear();
  std::erase_if(front.members, [&](Index v) { return variable_[v].weight == 0; });
}

bool MinimumDegree::same_neighbors(Index a, Index b) {
  if (variable_[a].num_elements != variable_[b].num_elements) return false;
  if (variable_[a].num_variables != variable_[b].num_variables) return false;
  return std::ranges::is_permutation(elements_of(a), elements_of(b)) &&
         std::ranges::is_permutation(variables_of(a), variables_of(b));
}

void MinimumDegree::emit(Index v) {
  variable_[v].weight = 0;
  order_.push_back(v);
  for (Index at = v; at != variable_[v].last_merged;) order_.push_back(at = next_merged_[at]);
}

}  // namespace

std::vector<Index> elimination_order(Index size, std::span<const MatrixEntry> entries) {
  return MinimumDegree(size, entries).run();
}

}  // namespace baechi::lp
