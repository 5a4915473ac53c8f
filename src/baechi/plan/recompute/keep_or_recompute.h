// SPDX-License-Identifier: Apache-2.0
// Which outputs of a device's forward pass to keep, and which to make again, within so much memory:
// dynamic programming over where regions begin and end. Beyond the paper.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "baechi/base/units.h"

namespace baechi {

// An operator of the forward pass, in the order in which its device runs them.
struct ForwardRun {
  bool may = false;                       // run again
  bool needed = false;                    // its backward readers need what it makes
  Time time;                              // that it takes
  Bytes bytes;                            // held for the backward pass if it is kept
  std::vector<std::size_t> readers = {};  // among these runs, by index
};

// The forward pass is cut into regions, one after the other. A region keeps what later ones read, and
// what takes long to make for its size; the rest of it runs again, all at once, when the backward pass
// comes to it: then it holds what all regions up to this one keep and what it made again. On a chain
// whose gradients need no memory this is exact: the least time of all choices.
class KeepOrRecompute {
 public:
  explicit KeepOrRecompute(std::vector<ForwardRun> runs);

  // Which runs to repeat so that it takes the least time within `limit`; nothing when no choice is
  // within it.
  std::optional<std::vector<bool>> within(Bytes limit) const;
  Bytes least() const { return least_; }  // memory that it can do with
  // Whole regions, as long as `limit` lets them be: at least least().
  std::vector<bool> regions_within(Bytes limit) const;

 private:
  struct Region {            // a way to do one
    std::size_t from = 0;    // a cut
    double most = 0;         // runs that take longer per byte are kept
    bool keep_last = false;  // the last run, too, whoever reads it
    Bytes kept = {}, again = {};
    Time time = {};
  };
  struct Label {  // what is reached at a cut
    Bytes kept;
    Time time;
    const Region* region;  // the last one
    std::size_t before;    // label of the cut where it begins
  };
  // For every cut, the region that ends at it in the choice that keeps least.
  std::optional<std::vector<const Region*>> least_kept(Bytes limit) const;
  Region region(std::size_t begin, std::size_t end, const Region& way,
                std::vector<bool>* repeated) const;
  void choose_cuts();

  std::vector<ForwardRun> runs_;
  std::vector<std::size_t> last_reader_;
  std::vector<std::size_t> cuts_;             // the first is 0, the last the number of runs
  std::vector<std::vector<Region>> regions_;  // by the cut that they end at
  Bytes least_;
};

}  // namespace baechi
