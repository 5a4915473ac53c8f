// SPDX-License-Identifier: Apache-2.0
#include "apps/console.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "baechi/base/error.h"
#include "baechi/io/text_file.h"

namespace baechi::cli {
namespace {

[[noreturn]] void throw_write_error() {
  throw InputError("standard output", std::string("cannot write: ") + std::strerror(errno));
}

}  // namespace

void print_result(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) throw_write_error();
}

void flush_results() {
  if (std::fflush(stdout) != 0) throw_write_error();
}

void print_words(std::string_view line) {
  std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
}

void write_result(const std::string& path, std::string_view text) {
  if (path.empty() || path == "-")
    print_result(text);
  else
    write_text_file(path, text);
}

}  // namespace baechi::cli
