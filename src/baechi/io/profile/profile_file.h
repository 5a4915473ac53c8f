// SPDX-License-Identifier: Apache-2.0
// profile.json in and out, ONNX Runtime's profiles in: measured costs by operator
// (docs/reference/file_formats.md).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "baechi/cost/profile.h"

namespace baechi {

// Every fault is an InputError of one line: "file:line:column: $.json.path: reason".
Profile read_profile(const std::filesystem::path& path);
// `place` stands for the file name in errors.
Profile parse_profile(std::string_view text, const std::string& place);

// Equal profiles give equal text.
std::string profile_to_json(const Profile& profile);

}  // namespace baechi
