// SPDX-License-Identifier: Apache-2.0
// What an operator is, as a number that does not depend on names or on the order of a file. Beyond
// the paper.
#pragma once

#include <cstdint>
#include <string_view>

#include "baechi/base/id.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

using Hash = std::uint64_t;

constexpr Hash mix(Hash seed, Hash value) {
  Hash z = (seed ^ value) + 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

template <class Quantity>
Hash mix(Hash seed, Quantity value)
  requires requires { value.count(); }
{
  return mix(seed, static_cast<Hash>(value.count()));
}

Hash hash_of(std::string_view text);

// Of what an operator is by itself, without its name: times, memory, outputs, pin.
Hash hash_of(const OpGraph& graph, OpId op);

// How an edge leaves its producer: by which port, or as order alone.
Hash port_of(const OpGraph& graph, const Edge& edge);

}  // namespace baechi
