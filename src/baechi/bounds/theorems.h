// SPDX-License-Identifier: Apache-2.0
// Paper 2.5, A, B: when communication counts as small, how many devices never run
// short of memory, and what the placers then guarantee. docs/explanation/bounds.md states and
// proves each theorem in our own words; the letters are the proofs'.
#pragma once

#include <cstddef>
#include <optional>

#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"

namespace baechi {

// rho = max c / min k: the longest transfer over the shortest operator, where c is the time of the
// edge on the fastest link of the cluster and k the time on the fastest device that can run the
// operator. Nothing to send: 0. Absent when min k = 0 < max c.
std::optional<double> rho(const CostModel& costs);

// rho <= 1 (Paper 2.4). Only then the LP of favorite children bounds the optimum from below, and
// only then the theorems about m-SCT hold.
bool sct_assumption_holds(const CostModel& costs);

// All devices and all links alike, every operator runs on every device, no pins, no colocation
// groups, and transfers that never wait: the machine that the theorems speak of.
bool theorem_machine(const CostModel& costs);

// C: the most communication on one chain of operators, every edge counted as a transfer on the
// slowest link.
Time longest_chain_communication(const CostModel& costs);

// How memory narrows a cluster of n equal devices, whatever has been placed already.
struct MemorySufficiency {
  std::size_t n = 0;  // devices
  std::size_t R = 0;  // so many of them, at least, always have room for every operator; 0: then no
                      // theorem applies
};
// d_i is all an operator can ever add to a device: permanent, temporary, outputs and copies of its
// inputs. A device lacks room only once it holds more than M - max d, so
// n - R = ceil(sum d / (M - max d)) - 1; and none does when sum d <= M, all may when max d >= M.
MemorySufficiency memory_sufficiency(const CostModel& costs);

// Appendix A. Any schedule in which no memory-sufficient device stands idle while an operator
// could start on it: makespan <= (1 + (n - 1) / R) w + C, where w is the optimum of the same
// operators on n devices without communication and without memory limits. With R = n this is the
// published (2 - 1/n) w + C. Requires 1 <= R <= n.
double m_etf_bound(std::size_t n, std::size_t R, double w, double C);

// (2 + 2 rho) / (2 + rho): favorite children chosen by the LP, rounded at 1/2, on infinitely many
// devices, against the optimum there. Requires 0 <= rho <= 1.
double favorite_child_ratio(double rho);

// Appendix B. m-SCT with such favorite children against the optimum w (with communication):
// makespan <= (n/R + (2 + 2 rho) / (2 + rho) (1 - 1/R)) w. With R = n this is the published
// (4 + 3 rho)/(2 + rho) - (2 + 2 rho)/(n (2 + rho)). Requires 1 <= R <= n, 0 <= rho <= 1.
double m_sct_bound(std::size_t n, std::size_t R, double rho, double w);

// What we can prove of m-SCT under the SCT assumption whatever its favorite children are, and of
// m-ETF: Appendix A with C <= rho w, so makespan <= (1 + (n - 1) / R + rho) w.
double any_favorites_bound(std::size_t n, std::size_t R, double rho, double w);

}  // namespace baechi
