// SPDX-License-Identifier: Apache-2.0
#include "apps/system.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace baechi::cli {
namespace {

CancelFlag* interrupted = nullptr;

}  // namespace

bool output_is_terminal() { return isatty(STDOUT_FILENO) == 1; }
bool errors_are_terminal() { return isatty(STDERR_FILENO) == 1; }

std::size_t terminal_width() {
  constexpr std::size_t kUsual = 100;
  struct winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kUsual;
}

void catch_interrupts(CancelFlag& flag) {
  interrupted = &flag;
  signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of write(), which says so
  // Who started us may have said that Ctrl-C is not for us (nohup, a shell's background job).
  struct sigaction inherited = {};
  if (sigaction(SIGINT, nullptr, &inherited) == 0 && inherited.sa_handler == SIG_IGN) return;
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted->request(); };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
}

std::string installed_python() {
  if (const char* named = std::getenv("BAECHI_PYTHON"); named != nullptr && *named != '\0')
    return named;
  std::error_code error;
  const auto here = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* name : {"python3", "python"})
    if (!error && access((here / name).c_str(), X_OK) == 0) return here / name;
  return "python3";
}

std::string become(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execvp(arguments.front(), arguments.data());
  return std::generic_category().message(errno);
}

}  // namespace baechi::cli
