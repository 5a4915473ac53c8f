// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/graph_def/graph_def_state.h"

#include <algorithm>
#include <iterator>

namespace baechi {
namespace {

// Where a name begins so, all operators of it are meant.
constexpr std::string_view kBeginnings[] = {
    "Apply",
    "Assign",
    "Barrier",
    "Case",
    "CudnnRNN",
    "DestroyTemporaryVariable",
    "EagerPyFunc",
    "Enter",
    "Exit",
    "FIFOQueue",
    "HashTable",
    "If",
    "Iterator",
    "LookupTable",
    "LoopCond",
    "Merge",
    "Multinomial",
    "MutableHashTable",
    "NextIteration",
    "ParameterizedTruncatedNormal",
    "Print",
    "PyFunc",
    "Queue",
    "Random",
    "ReadVariableOp",
    "RefEnter",
    "RefExit",
    "RefMerge",
    "RefNextIteration",
    "RefSwitch",
    "ResourceApply",
    "ResourceGather",
    "ResourceScatter",
    "ResourceSparseApply",
    "Save",
    "ScatterAdd",
    "ScatterNdAdd",
    "ScatterNdUpdate",
    "ScatterSub",
    "ScatterUpdate",
    "SparseApply",
    "Stateful",
    "Switch",
    "TensorArray",
    "TruncatedNormal",
    "VarHandleOp",
    "Variable",
};

constexpr std::string_view kWhole[] = {"PartitionedCall", "RemoteCall", "TemporaryVariable",
                                       "While", "_While"};

}  // namespace

bool has_state_or_chance(std::string_view kind) {
  return std::any_of(std::begin(kBeginnings), std::end(kBeginnings),
                     [&](std::string_view name) { return kind.starts_with(name); }) ||
         std::find(std::begin(kWhole), std::end(kWhole), kind) != std::end(kWhole);
}

}  // namespace baechi
