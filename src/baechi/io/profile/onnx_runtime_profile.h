// SPDX-License-Identifier: Apache-2.0
// What ONNX Runtime's profiler measured, as costs (Paper 4.1).
#pragma once

#include <string>
#include <string_view>

#include "baechi/cost/profile.h"

namespace baechi {

// The profiler writes a bare array of events, each an object.
bool looks_like_onnx_runtime_profile(std::string_view text);

// A node's time is the median over the runs in the file, without the first one, which warms up,
// where there are several. What ran in the CPU provider is measured for kind "cpu", in those of
// NPUs for "npu", in all others for "gpu". Throws InputError "file:line:column: $.path: reason".
Profile parse_onnx_runtime_profile(std::string_view text, const std::string& place);

}  // namespace baechi
