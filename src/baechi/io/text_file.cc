// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "baechi/base/error.h"

namespace baechi {
namespace {

[[noreturn]] void throw_system_error(const std::string& place, const char* what) {
  throw InputError(place, std::string(what) + ": " + std::strerror(errno));
}

class FileDescriptor {  // closes itself
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  int close() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

// Reads to the end, whatever the size was believed to be: pipes have none, files may grow.
std::string read_all(int fd, std::size_t expected, const std::string& place) {
  std::string text(expected + 1, '\0');  // one more than expected, to see the end without growing
  std::size_t size = 0;
  while (true) {
    if (size == text.size()) text.resize(std::max<std::size_t>(64 * 1024, 2 * text.size()));
    const ssize_t got = ::read(fd, text.data() + size, text.size() - size);
    if (got == 0) break;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_system_error(place, "cannot read");
    size += static_cast<std::size_t>(got);
  }
  text.resize(size);
  return text;
}

void write_all(int fd, std::string_view text, const std::string& place) {
  while (!text.empty()) {
    const ssize_t put = ::write(fd, text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw_system_error(place, "cannot write");
    text.remove_prefix(static_cast<std::size_t>(put));
  }
}

struct TemporaryFile {  // removed unless it was renamed
  std::string path;
  ~TemporaryFile() {
    if (!path.empty()) ::unlink(path.c_str());
  }
};

// A new file beside `target`. The process id and a counter make its name: whoever has one already
// keeps it.
int create_beside(const std::string& target, std::string& path) {
  for (int i = 0;; ++i) {
    path = target + "." + std::to_string(::getpid()) + "-" + std::to_string(i) + ".tmp";
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0 || errno != EEXIST || i == 100) return fd;
  }
}

}  // namespace

SourceText read_text_file(const std::filesystem::path& path) {
  if (path == "-") return {"<stdin>", read_all(STDIN_FILENO, 0, "<stdin>")};
  const std::string name = path.string();
  if (name.empty()) throw InputError("the path is empty");
  if (name.find('\0') != std::string::npos) throw InputError("a file name contains a zero byte");
  const FileDescriptor file(::open(name.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) throw_system_error(name, "cannot open");
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) throw_system_error(name, "cannot read");
  if (S_ISDIR(status.st_mode)) throw InputError(name, "cannot read: it is a directory");
  const std::size_t size = S_ISREG(status.st_mode) ? static_cast<std::size_t>(status.st_size) : 0;
  return {name, read_all(file.get(), size, name)};
}

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  const std::string name = path.string();
  if (name.empty()) throw InputError("the path is empty");
  std::error_code error;
  std::filesystem::path target = path;
  if (std::filesystem::is_symlink(path, error)) {
    target = std::filesystem::canonical(path, error);
    if (error) throw InputError(name, "cannot write: " + error.message());
  }
  struct stat status = {};
  const bool exists = ::stat(target.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) throw InputError(name, "cannot write: it is a directory");
  if (exists && !S_ISREG(status.st_mode)) {
    const FileDescriptor device(::open(target.c_str(), O_WRONLY | O_CLOEXEC));
    if (!device.is_open()) throw_system_error(name, "cannot write");
    return write_all(device.get(), text, name);
  }

  std::string path_beside;
  FileDescriptor file(create_beside(target.string(), path_beside));
  if (!file.is_open()) throw_system_error(name, "cannot write");
  TemporaryFile temporary{path_beside};
  write_all(file.get(), text, name);
  if ((exists && ::fchmod(file.get(), status.st_mode & static_cast<mode_t>(07777)) != 0) ||
      ::fsync(file.get()) != 0 || file.close() != 0 ||
      ::rename(temporary.path.c_str(), target.c_str()) != 0)
    throw_system_error(name, "cannot write");
  temporary.path.clear();
}

}  // namespace baechi
