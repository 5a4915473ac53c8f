// SPDX-License-Identifier: Apache-2.0
// Stages as people make them: equal numbers of layers. Beyond the paper.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "baechi/base/id.h"
#include "baechi/place/pipeline/blocks.h"
#include "baechi/place/pipeline/stages.h"

namespace baechi::pipeline {

// What is numbered in the names of operators ("layers/7/...") is a layer; what is not goes with the
// layer before it. Where there are fewer layers than stages, blocks are counted instead. Nothing
// when there are fewer blocks than stages, or a device cannot run its own.
std::optional<Division> equal_layers(const Blocks& blocks, std::span<const DeviceId> order);

}  // namespace baechi::pipeline
