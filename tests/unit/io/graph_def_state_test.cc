// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/graph_def/graph_def_state.h"

#include <doctest/doctest.h>

#include <string>

namespace baechi::testing {
namespace {

TEST_CASE("GraphDef: what draws numbers, keeps a state or talks to others does not run again") {
  for (const char* kind : {"RandomUniform",
                           "StatefulUniformFullInt",
                           "NonDeterministicInts",
                           "RngReadAndSkip",
                           "UniformCandidateSampler",
                           "SampleDistortedBoundingBoxV2",
                           "Skipgram",
                           "CollectiveReduceV2",
                           "NcclAllReduce",
                           "_Send",
                           "Recv",
                           "_HostRecv",
                           "ScatterMul",
                           "ScatterNdMax",
                           "ResourceScatterNdUpdate",
                           "ResourceStridedSliceAssign",
                           "StridedSliceAssign",
                           "CountUpTo",
                           "StackPushV2",
                           "Stage",
                           "MapUnstage",
                           "OrderedMapStage",
                           "ReaderReadV2",
                           "SparseAccumulatorTakeGradient",
                           "QueueDequeueV2",
                           "LookupTableFindV2",
                           "Timestamp",
                           "AnonymousRandomSeedGenerator",
                           "XlaLaunch",
                           "_If",
                           "While",
                           "TPUExecute",
                           "RestoreV2"}) {
    CAPTURE(std::string(kind));
    CHECK(has_state_or_chance(kind));
  }
}

TEST_CASE("GraphDef: what gives the same again may run again") {
  for (const char* kind : {"MatMul",
                           "_FusedMatMul",
                           "_MklFusedConv2D",
                           "XlaDot",
                           "XlaEinsum",
                           "ScatterNd",
                           "TensorScatterUpdate",
                           "TensorScatterAdd",
                           "StatelessRandomUniformV2",
                           "FusedBatchNormV3",
                           "Pack",
                           "SpaceToBatchND",
                           "Rsqrt",
                           "Reshape",
                           "Relu",
                           "IdentityN",
                           "StridedSlice",
                           "StatelessWhile",
                           "StatelessIf",
                           "Select",
                           "SegmentSum",
                           "Maximum",
                           "Round"}) {
    CAPTURE(std::string(kind));
    CHECK_FALSE(has_state_or_chance(kind));
  }
}

}  // namespace
}  // namespace baechi::testing
