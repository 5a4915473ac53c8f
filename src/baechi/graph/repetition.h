// SPDX-License-Identifier: Apache-2.0
// Structure that repeats: the layers of a transformer, the cells of a network found by search, the
// time steps of a recurrent one. Beyond the paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

// A run of periods, one behind the other along the flow of data. Operators of different periods
// that have the same slot are images of each other: they take the same (or, where nothing repeats so,
// are of the same kind) and have, except at the ends of the run, the same surroundings.
struct Repetition {
  struct Position {
    std::uint32_t period;
    std::uint32_t slot;
    friend bool operator==(const Position&, const Position&) = default;
  };

  std::size_t periods = 0;
  std::size_t slots = 0;
  IdVector<OpId, std::optional<Position>> at;  // absent: the operator belongs to no period
  std::vector<std::uint32_t> whole;            // periods that have an operator in every slot
};

// The repetitions of a graph, those that cover most operators first; no operator is in two. None
// has fewer than `least` whole periods. What is found depends on costs and edges, and among equals
// on the numbers of operators; names do not count. O((operators + edges) * a small number).
std::vector<Repetition> find_repetitions(const OpGraph& graph, std::size_t least);

// From an operator to its images. Refers to nothing.
class Images {
 public:
  Images(const OpGraph& graph, const std::vector<Repetition>& repetitions);

  // So many periods later, or earlier if `shift` is negative; none beyond the ends.
  std::optional<OpId> image(OpId op, std::int64_t shift) const;
  // How many periods there are before the operator's own and behind it.
  std::int64_t before(OpId op) const;
  std::int64_t behind(OpId op) const;

 private:
  struct Row {  // the images of one slot, by period
    std::vector<std::optional<OpId>> ops;
  };
  struct Seat {
    std::uint32_t row, period;
  };
  std::vector<Row> rows_;
  IdVector<OpId, std::optional<Seat>> seats_;
};

}  // namespace baechi
