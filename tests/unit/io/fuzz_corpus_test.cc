// SPDX-License-Identifier: Apache-2.0
// Replays what the fuzzers have found worth keeping, and the files of tests/data.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "baechi/io/text/text_file.h"
#include "fuzz/parser_fuzz.h"
#include "unit/test_paths.h"

namespace baechi {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_below(const std::string& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

TEST_CASE("fuzz corpus: every parser keeps its promises on its own corpus") {
  for (const fuzz::Body& body : fuzz::kParserBodies) {
    const std::string name(body.name);
    const auto files = files_below(BAECHI_SOURCE_DIR "/tests/fuzz/corpus/" + name);
    CAPTURE(name);
    CHECK(files.size() >= 5);
    for (const fs::path& file : files) {
      CAPTURE(file.string());
      CHECK_NOTHROW(body.run(read_text_file(file).text));
    }
  }
}

TEST_CASE("fuzz corpus: every parser keeps its promises on every bad file, its own or not") {
  const auto files = files_below(BAECHI_TEST_DATA_DIR "/bad");
  CHECK(files.size() >= 60);
  for (const fs::path& file : files) {
    CAPTURE(file.string());
    const std::string text = read_text_file(file).text;
    for (const fuzz::Body& body : fuzz::kParserBodies) CHECK_NOTHROW(body.run(text));
  }
}

// Every cut of a good file is a file that somebody's full disk will make one day.
TEST_CASE("fuzz corpus: every beginning of a good file is refused or read, never worse") {
  for (const fs::path& file : files_below(BAECHI_TEST_DATA_DIR "/good")) {
    CAPTURE(file.string());
    const std::string text = read_text_file(file).text;
    for (std::size_t size = 0; size < text.size(); size += 1 + text.size() / 500)
      for (const fuzz::Body& body : fuzz::kParserBodies)
        CHECK_NOTHROW(body.run(std::string_view(text).substr(0, size)));
  }
}

}  // namespace
}  // namespace baechi
