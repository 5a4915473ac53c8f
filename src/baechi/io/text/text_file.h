// SPDX-License-Identifier: Apache-2.0
// Whole text files in and out: the only code that opens files.
#pragma once

#include <filesystem>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/base/error.h"

namespace baechi {

// The text of one input and the name that errors call it by.
struct SourceText {
  std::string name;
  std::string text;
};

// "-" is standard input. Throws InputError with the path and the system's reason; so it does for
// what is too large to be a file of ours (more than 16 GiB; 64 MiB from a device).
SourceText read_text_file(const std::filesystem::path& path);

// For a process whose signal handler sets `flag`: from now on a signal that interrupts the opening,
// reading or writing of a file ends it with Cancelled when the flag is set. Otherwise it goes on.
void stop_files_at(const CancelFlag* flag);

// What `read` makes of the file `name`; running out of memory is the file's fault.
template <class Read>
auto reading(const std::string& name, const Read& read) try {
  return read();
} catch (const std::bad_alloc&) {
  throw InputError(name, "cannot read: it takes more memory than there is");
}

// The file is either the old one or the whole new one, never a part: writes a temporary file beside
// it, syncs, renames. Writes through symbolic links and into devices such as /dev/stdout. Throws
// InputError with the path and the system's reason.
void write_text_file(const std::filesystem::path& path, std::string_view text);

// Unbuffered, so that a full disk is noticed by who writes.
void write_standard_output(std::string_view text);

struct NewText {
  std::filesystem::path path;
  std::string_view text;
};

// The same for several: when one cannot be written, none is.
void write_text_files(const std::vector<NewText>& files);

}  // namespace baechi
