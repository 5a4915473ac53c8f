// SPDX-License-Identifier: Apache-2.0
#include "apps/console.h"

#include <unistd.h>

#include <cstdio>

#include "baechi/io/text/source_place.h"
#include "baechi/io/text/text_file.h"

namespace baechi::cli {

void print_result(std::string_view text) { write_standard_output(text); }

void print_text(std::string_view text) { print_result(printable_lines(text)); }

void print_words(std::string_view line) {
  std::fprintf(stderr, "%s\n", printable(line, std::string::npos).c_str());
}

bool writes_to_terminal() { return isatty(STDOUT_FILENO) == 1; }

void write_result(const std::string& path, std::string_view text) {
  if (path.empty() || path == "-")
    print_result(text);
  else
    write_text_file(path, text);
}

}  // namespace baechi::cli
