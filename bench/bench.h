// SPDX-License-Identifier: Apache-2.0
// What every benchmark shares: a clock of this process's work, and a table of results. Each result
// carries a checksum, so that a faster wrong answer is seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace baechi::bench {

double cpu_seconds();  // spent by this process so far

// Sums up an answer (FNV-1a over 64-bit words).
class Checksum {
 public:
  Checksum& add(std::int64_t value);
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325ULL;
};

struct Measured {
  std::string name;
  std::size_t work = 0;  // operators, tensors, ...: what the time is divided by
  int repeats = 5;
};

// Runs `body` `repeats` times and prints the median and the least
// CPU time, the time per unit of work, and the checksum, which must be the same every time.
void report(const Measured& measured, const std::function<std::uint64_t()>& body);

// The graph.json files of the command line.
std::span<const std::string> graph_files();

struct Benchmark {
  std::string_view name;  // "bounds": the command line picks by it
  void (*run)();
};

void bench_bounds();
void bench_favorites();
void bench_exact();
void bench_gap();
void bench_optimizer_table();
void bench_refine();
void bench_verify();
void bench_lp();
void bench_lp_large();

}  // namespace baechi::bench
