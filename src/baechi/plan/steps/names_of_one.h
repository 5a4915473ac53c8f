// SPDX-License-Identifier: Apache-2.0
// What an answer about a step of micro-batches says of copies, said of the operators that somebody
// wrote. Beyond the paper.
#pragma once

#include <string>

#include "baechi/graph/unroll.h"
#include "baechi/plan/request/answer.h"

namespace baechi {

// "operator 'f@3'" becomes "operator 'f'"; of a colocation group of copies so does
// "the colocation group of operator 'f@0' (4 operators)", unless it has other members.
std::string in_names_of_one(std::string text, const Unrolled& step);

// Of the reasons; and the operator that found no room is the one of the graph of one micro-batch.
void tell_of_one(Unplaceable& answer, const Unrolled& step);

}  // namespace baechi
