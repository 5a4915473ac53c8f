// SPDX-License-Identifier: Apache-2.0
// Whole text files in and out: the only code that opens files.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace baechi {

// The text of one input and the name that errors call it by.
struct SourceText {
  std::string name;
  std::string text;
};

// "-" is standard input. Throws InputError with the path and the system's reason.
SourceText read_text_file(const std::filesystem::path& path);

// The file is either the old one or the whole new one, never a part: writes a temporary file beside
// it, syncs, renames. Writes through symbolic links and into devices such as /dev/stdout. Throws
// InputError with the path and the system's reason.
void write_text_file(const std::filesystem::path& path, std::string_view text);

}  // namespace baechi
