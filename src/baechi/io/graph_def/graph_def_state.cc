// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/graph_def/graph_def_state.h"

#include <algorithm>
#include <iterator>

namespace baechi {
namespace {

// Where a name begins so, all operators of it are meant.
constexpr std::string_view kBeginnings[] = {
    "AllToAll",
    "Apply",
    "Assign",
    "Barrier",
    "Case",
    "Collective",
    "Configure",
    "CountUpTo",
    "CrossReplicaSum",
    "CudnnRNN",
    "DTensor",
    "Debug",
    "Delete",
    "DestroyTemporaryVariable",
    "DevicePlacementOp",
    "DummyIterationCounter",
    "Enter",
    "Exit",
    "FakeQueue",
    "FileSystem",
    "GlobalIterId",
    "HashTable",
    "If",
    "ImportEvent",
    "InitializeTable",
    "IsVariableInitialized",
    "LookupTable",
    "LoopCond",
    "Map",
    "Merge",
    "Multinomial",
    "NegTrain",
    "NextIteration",
    "NonDeterministicInts",
    "OrderedMap",
    "ParameterizedTruncatedNormal",
    "Print",
    "Random",
    "Ref",
    "Restore",
    "Rng",
    "Rpc",
    "SampleDistortedBoundingBox",
    "Save",
    "ScatterAdd",
    "ScatterDiv",
    "ScatterMax",
    "ScatterMin",
    "ScatterMul",
    "ScatterNdAdd",
    "ScatterNdMax",
    "ScatterNdMin",
    "ScatterNdSub",
    "ScatterNdUpdate",
    "ScatterSub",
    "ScatterUpdate",
    "SdcaShrinkL1",
    "Skipgram",
    "Sleep",
    "Stack",
    "Stateful",
    "StridedSliceAssign",
    "Switch",
    "SyncDevice",
    "TemporaryVariable",
    "TensorArray",
    "Timestamp",
    "TruncatedNormal",
    "Var",
    "While",
    "Write",
    "XlaAllReduce",
    "XlaCallModule",
    "XlaHostCompute",
    "XlaIf",
    "XlaLaunch",
    "XlaReduceScatter",
    "XlaRng",
    "XlaSparseCore",
    "XlaWhile",
};

// Where a name has one of these anywhere.
constexpr std::string_view kParts[] = {
    "Accumulator",
    "Anonymous",
    "Barrier",
    "BoostedTrees",
    "CandidateSampler",
    "Dataset",
    "Dequeue",
    "Enqueue",
    "HashTable",
    "Iterator",
    "MemoryCache",
    "Mutable",
    "Mutex",
    "Nccl",
    "PyFunc",
    "Queue",
    "Reader",
    "Recv",
    "Resource",
    "SeedGenerator",
    "Send",
    "Session",
    "SparseApply",
    "SparseToTensorsMap",
    "SparseFromTensorsMap",
    "Stage",
    "StatsAggregator",
    "Summary",
    "TPU",
    "ThreadPool",
    "VariableOp",
    "VariableXla",
    "stage",
};

constexpr std::string_view kWhole[] = {"PartitionedCall", "RecordInput", "RemoteCall", "RiscWhile"};

// TensorFlow's own transfers, functions and collectives begin so; what it fuses begins otherwise.
bool is_internal(std::string_view kind) {
  return kind.starts_with('_') && !kind.starts_with("_Mkl") && !kind.starts_with("_Fused");
}

}  // namespace

bool has_state_or_chance(std::string_view kind) {
  const auto any = [](const auto& names, auto matches) {
    return std::any_of(std::begin(names), std::end(names), matches);
  };
  return is_internal(kind) ||
         any(kBeginnings, [&](std::string_view name) { return kind.starts_with(name); }) ||
         any(kParts, [&](std::string_view part) { return kind.find(part) != kind.npos; }) ||
         any(kWhole, [&](std::string_view name) { return kind == name; });
}

}  // namespace baechi
