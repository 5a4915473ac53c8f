// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/text/text_file.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "baechi/base/error.h"

namespace baechi {
namespace {

namespace fs = std::filesystem;

struct TemporaryFolder {  // gone with the test
  fs::path path =
      fs::temp_directory_path() / ("baechi_text_file_test_" + std::to_string(::getpid()));
  TemporaryFolder() { fs::create_directory(path); }
  ~TemporaryFolder() { fs::remove_all(path); }
};

std::size_t num_files(const fs::path& folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder)) ++count;
  return count;
}

TEST_CASE("text file: what is written is read back, and nothing is left beside it") {
  const TemporaryFolder folder;
  const fs::path file = folder.path / "a.json";
  for (const std::string& text : {std::string("one"), std::string(300'000, 'x'), std::string()}) {
    write_text_file(file, text);
    CHECK(read_text_file(file).text == text);
    CHECK(num_files(folder.path) == 1);
  }
  CHECK(read_text_file(file).name == file.string());
}

TEST_CASE("text file: writing keeps permissions and follows links") {
  const TemporaryFolder folder;
  const fs::path file = folder.path / "real", link = folder.path / "link";
  write_text_file(file, "old");
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink(file, link);
  write_text_file(link, "new");
  CHECK(fs::is_symlink(link));
  CHECK(read_text_file(file).text == "new");
  CHECK(fs::status(file).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
}

TEST_CASE("text file: what cannot be opened is named with the system's reason") {
  const TemporaryFolder folder;
  const std::string missing = (folder.path / "no" / "file").string();
  CHECK_THROWS_WITH_AS(read_text_file(missing),
                       (missing + ": cannot open: No such file or directory").c_str(), InputError);
  CHECK_THROWS_AS(write_text_file(missing, "x"), InputError);
  CHECK_THROWS_AS(read_text_file(folder.path), InputError);
  CHECK_THROWS_AS(write_text_file(folder.path, "x"), InputError);
  CHECK_THROWS_AS(write_text_file("/dev/full", "x"), InputError);
  write_text_file("/dev/null", "x");
}

}  // namespace
}  // namespace baechi
