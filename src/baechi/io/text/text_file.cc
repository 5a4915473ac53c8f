// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/text/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>
#include <system_error>
#include <utility>

#include "baechi/base/error.h"

namespace baechi {
namespace {

// Beyond any graph that we could place, and before a machine runs out of memory.
constexpr std::size_t kMostBytes = std::size_t{16} << 30;
constexpr std::size_t kMostDeviceBytes = std::size_t{64} << 20;  // from /dev/zero and its like

std::atomic<const CancelFlag*> stop_flag{nullptr};

// Ctrl-C while a system call waits: it fails, or says how far it got. One that was there before
// (it ended a search, whose plan is written now) does not count.
class Interruption {
 public:
  void throw_if_new() const {
    if (!before_) throw_if_cancelled(stop_flag);
  }

 private:
  static bool requested() {
    const CancelFlag* const flag = stop_flag;
    return flag != nullptr && flag->requested();
  }
  bool before_ = requested();
};

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
std::string read_all(int fd, std::size_t expected, std::size_t most, const std::string& place) {
  std::string text(expected + 1, '\0');  // one more than expected, to see the end without growing
  std::size_t size = 0;
  const Interruption interruption;
  while (true) {
    if (size > most)
      throw InputError(place, "cannot read: more than " + std::to_string(most >> 20) +
                                  " MiB, which cannot be one of our files");
    if (size == text.size()) text.resize(std::max<std::size_t>(64 * 1024, 2 * text.size()));
    const ssize_t got = ::read(fd, text.data() + size, text.size() - size);
    if (got == 0) break;
    if (got < 0 && errno == EINTR) {
      interruption.throw_if_new();
      continue;
    }
    if (got < 0) throw_system_error(place, "cannot read");
    size += static_cast<std::size_t>(got);
  }
  text.resize(size);
  return text;
}

void write_all(int fd, std::string_view text, const std::string& place) {
  const Interruption interruption;
  while (!text.empty()) {
    const ssize_t put = ::write(fd, text.data(), text.size());
    if (put < 0 && errno != EINTR) throw_system_error(place, "cannot write");
    interruption.throw_if_new();
    if (put < 0) continue;
    text.remove_prefix(static_cast<std::size_t>(put));
  }
}

// A new file beside `target`. The process id and a counter make its name: whoever has one already
// keeps it.
int create_beside(const std::string& target, std::string& path) {
  for (int i = 0;; ++i) {
    path = target + "." + std::to_string(::getpid()) + "-" + std::to_string(i) + ".tmp";
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0 || errno != EEXIST || i == 100) return fd;
  }
}

// A named pipe opens when someone opens its other end: that can take for ever.
int open_existing(const std::string& name, int mode) {
  const Interruption interruption;
  for (;;) {
    const int fd = ::open(name.c_str(), mode | O_CLOEXEC);
    if (fd >= 0 || errno != EINTR) return fd;
    interruption.throw_if_new();
  }
}

SourceText read_opened(int fd, const std::string& name) {
  struct stat status = {};
  if (::fstat(fd, &status) != 0) throw_system_error(name, "cannot read");
  if (S_ISDIR(status.st_mode)) throw InputError(name, "cannot read: it is a directory");
  const std::size_t size = S_ISREG(status.st_mode) ? static_cast<std::size_t>(status.st_size) : 0;
  if (size > kMostBytes)
    throw InputError(name, "cannot read: it has " + std::to_string(size >> 30) +
                               " GiB, which cannot be one of our files");
  const bool device = S_ISCHR(status.st_mode) || S_ISBLK(status.st_mode);
  return {name, read_all(fd, size, device ? kMostDeviceBytes : kMostBytes, name)};
}

struct TemporaryFile {  // removed unless it was renamed
  std::string path;
  TemporaryFile() = default;
  TemporaryFile(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (!path.empty()) ::unlink(path.c_str());
  }
};

// A file whose whole new text lies beside it until it is put in place.
class StagedFile {
 public:
  StagedFile(const std::filesystem::path& path, std::string_view text);
  void put_in_place();

 private:
  std::string name_;
  std::filesystem::path target_;
  std::string_view text_;  // for a device, which is written in place
  std::optional<FileDescriptor> device_;
  TemporaryFile beside_;
};

StagedFile::StagedFile(const std::filesystem::path& path, std::string_view text)
    : name_(path.string()), target_(path), text_(text) {
  if (name_.empty()) throw InputError("the path is empty");
  std::error_code error;
  if (std::filesystem::is_symlink(path, error)) {
    target_ = std::filesystem::canonical(path, error);
    if (error) throw InputError(name_, "cannot write: " + error.message());
  }
  struct stat status = {};
  const bool exists = ::stat(target_.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) throw InputError(name_, "cannot write: it is a directory");
  if (exists && !S_ISREG(status.st_mode)) {
    device_.emplace(open_existing(target_.string(), O_WRONLY));
    if (!device_->is_open()) throw_system_error(name_, "cannot write");
    return;
  }
  std::string path_beside;
  FileDescriptor file(create_beside(target_.string(), path_beside));
  if (!file.is_open()) throw_system_error(name_, "cannot write");
  beside_.path = std::move(path_beside);
  write_all(file.get(), text, name_);
  if ((exists && ::fchmod(file.get(), status.st_mode & static_cast<mode_t>(07777)) != 0) ||
      ::fsync(file.get()) != 0 || file.close() != 0)
    throw_system_error(name_, "cannot write");
}

void StagedFile::put_in_place() {
  if (device_.has_value()) return write_all(device_->get(), text_, name_);
  if (::rename(beside_.path.c_str(), target_.c_str()) != 0)
    throw_system_error(name_, "cannot write");
  beside_.path.clear();
}

}  // namespace

void stop_files_at(const CancelFlag* flag) { stop_flag = flag; }

SourceText read_text_file(const std::filesystem::path& path) {
  const std::string name = path == "-" ? "<stdin>" : path.string();
  if (name.empty()) throw InputError("the path is empty");
  if (name.find('\0') != std::string::npos) throw InputError("a file name contains a zero byte");
  return reading(name, [&] {
    if (path == "-") return read_opened(STDIN_FILENO, name);
    const FileDescriptor file(open_existing(name, O_RDONLY));
    if (!file.is_open()) throw_system_error(name, "cannot open");
    return read_opened(file.get(), name);
  });
}

void write_text_files(const std::vector<NewText>& files) {
  std::list<StagedFile> staged;
  for (const NewText& file : files) staged.emplace_back(file.path, file.text);
  for (StagedFile& file : staged) file.put_in_place();
}

void write_standard_output(std::string_view text) {
  write_all(STDOUT_FILENO, text, "standard output");
}

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  write_text_files({{path, text}});
}

}  // namespace baechi
