// SPDX-License-Identifier: Apache-2.0
// baechi_bench [NAME...] [GRAPH.json...]: runs the benchmarks with these names, or all of them;
// those that compare algorithms look at these graphs, too.
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "bench.h"

namespace baechi::bench {
namespace {

constexpr std::array kBenchmarks{
    Benchmark{"bounds", bench_bounds},
    Benchmark{"exact", bench_exact},
    Benchmark{"gap", bench_gap},
    Benchmark{"favorites", bench_favorites},
    Benchmark{"optimizer_table", bench_optimizer_table},
    Benchmark{"verify", bench_verify},
    Benchmark{"lp", bench_lp},
    Benchmark{"lp_large", bench_lp_large},
    Benchmark{"refine", bench_refine},
};

std::vector<std::string> files;

}  // namespace

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Checksum& Checksum::add(std::int64_t value) {
  value_ = (value_ ^ static_cast<std::uint64_t>(value)) * 0x100000001b3ULL;
  return *this;
}

void report(const Measured& measured, const std::function<std::uint64_t()>& body) {
  std::vector<double> seconds;
  std::uint64_t checksum = 0;
  for (int i = 0; i < measured.repeats; ++i) {
    const double before = cpu_seconds();
    const std::uint64_t answer = body();
    seconds.push_back(cpu_seconds() - before);
    if (i > 0 && answer != checksum) {
      std::fprintf(stderr, "%s: the answer changes from run to run\n", measured.name.c_str());
      std::exit(1);
    }
    checksum = answer;
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  std::printf("%-58s %10.3f ms  (least %10.3f)  %8.1f ns each  %016llx\n", measured.name.c_str(),
              median * 1e3, seconds.front() * 1e3,
              median * 1e9 / static_cast<double>(measured.work),
              static_cast<unsigned long long>(checksum));
  std::fflush(stdout);
}

std::span<const std::string> graph_files() { return files; }

}  // namespace baechi::bench

int main(int argc, char** argv) {
  using baechi::bench::kBenchmarks;
  std::vector<std::string_view> wanted(argv + 1, argv + argc);
  std::erase_if(wanted, [](std::string_view name) {
    if (!name.ends_with(".json")) return false;
    baechi::bench::files.emplace_back(name);
    return true;
  });
  for (const std::string_view name : wanted) {
    const bool known = std::any_of(kBenchmarks.begin(), kBenchmarks.end(),
                                   [&](const auto& benchmark) { return benchmark.name == name; });
    if (known) continue;
    std::fprintf(stderr, "unknown benchmark '%.*s'; there are:", static_cast<int>(name.size()),
                 name.data());
    for (const auto& benchmark : kBenchmarks) std::fprintf(stderr, " %s", benchmark.name.data());
    std::fprintf(stderr, "\n");
    return 2;
  }
  for (const auto& benchmark : kBenchmarks)
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), benchmark.name) != wanted.end())
      benchmark.run();
  return 0;
}
