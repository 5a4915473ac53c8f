// SPDX-License-Identifier: Apache-2.0
// What one ONNX operator does to the hardware, by the shapes around it. Private to io/.
#pragma once

#include <cstdint>

#include "baechi/base/units.h"
#include "baechi/cost/device_presets.h"
#include "baechi/io/onnx/onnx_shapes.h"

namespace baechi {

// 0 where the element has no fixed size, or the shape is not known.
Bytes onnx_bytes(const OnnxValue& value);

// Two FLOPs per multiply-add of products, convolutions, attention and recurrent layers, one per
// element of all else; bytes read and written. `operands` have their outputs inferred.
Work onnx_work(const OnnxOperands& operands);

}  // namespace baechi
