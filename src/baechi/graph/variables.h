// SPDX-License-Identifier: Apache-2.0
// What a graph's builder asks of variables, and of the operators that read and write those that
// micro-batches change (docs/reference/semantics.md, "Variables"). Beyond the paper.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

// Throws InputError when the variable has what none can have. `takes_time`: on some kind of device.
void check_variable(const Operator& variable, std::size_t num_outputs, bool takes_time);

// Who writes each variable, if anybody does. Throws InputError when a write is of no variable, by
// one, or by an operator of the step, and when a variable has two writers.
IdVector<OpId, std::optional<OpId>> writers_of(const IdVector<OpId, Operator>& ops,
                                               std::span<const Write> writes);

// Throws InputError when an edge enters a variable. Adds edges of control from the operators that
// read a variable to the one that writes it.
void add_edges_to_writers(const IdVector<OpId, Operator>& ops,
                          const IdVector<OpId, std::optional<OpId>>& writer,
                          std::vector<Edge>& edges);

// Who writes a variable, or reads one that is written.
IdVector<OpId, bool> touches_written(const OpGraph& graph);

}  // namespace baechi
