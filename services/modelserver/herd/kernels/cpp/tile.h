// The inner product of the float kernels: a few rows against 32 columns, kept in registers.
//
//     out[m][n] = start[n] + sum_k x[m][k] * w[k][n]
//
// w is packed so that 32 columns of one k lie side by side (a panel, see pack.h; a block of the KV
// cache has the same form). One chain of fused multiply-adds a number, in the order of k.

#pragma once

#include "vec.h"

namespace herd {

constexpr int kPanel = 32;
constexpr int kStrip = 2 * kLanes;          // columns of one pass: two vectors
constexpr int kStrips = kPanel / kStrip;    // passes a panel
constexpr int kMostRows = kLanes == 16 ? 14 : 6;

// Weights are asked for so many bytes before they are needed: the CPU's own prefetching ends at each
// page, and a panel is a few of them.
constexpr int kAhead = 2048;

inline void prefetch(const void* from, int bytes) {
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(from) + i);
}

// ROWS rows against PANELS strips, `apart` elements from one to the next. x has ldx floats a row, w
// ldw elements a k; AHEAD bytes of w beyond what is needed are asked for. `finish(panel, row, left, right)` takes the sums.
template <int ROWS, int PANELS, int AHEAD, class W, class Finish>
inline void tile(const float* x, int64_t ldx, const W* w, int64_t ldw, int64_t apart, int depth,
                 const float* start, Finish finish) {
  Floats sums[PANELS][ROWS][2];
  for (int p = 0; p < PANELS; ++p)
    for (int m = 0; m < ROWS; ++m)
      for (int v = 0; v < 2; ++v)
        sums[p][m][v] = start ? load(start + p * kPanel + v * kLanes) : (Floats){};
  for (int k = 0; k < depth; ++k) {
    Floats columns[PANELS][2];
#pragma GCC unroll 8
    for (int p = 0; p < PANELS; ++p) {
      if constexpr (AHEAD > 0)
        prefetch(reinterpret_cast<const char*>(w + p * apart + k * ldw) + AHEAD, kStrip * sizeof(W));
      columns[p][0] = load(w + p * apart + k * ldw);
      columns[p][1] = load(w + p * apart + k * ldw + kLanes);
    }
#pragma GCC unroll 16
    for (int m = 0; m < ROWS; ++m) {
      const Floats value = all(x[m * ldx + k]);
#pragma GCC unroll 8
      for (int p = 0; p < PANELS; ++p) {
        sums[p][m][0] += value * columns[p][0];
        sums[p][m][1] += value * columns[p][1];
      }
    }
  }
  for (int p = 0; p < PANELS; ++p)
    for (int m = 0; m < ROWS; ++m) finish(p, m, sums[p][m][0], sums[p][m][1]);
}

// How many panels so few rows take at once: one chain a number leaves the multipliers waiting
// unless there are about eight chains.
constexpr int panels_at_once(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

// Calls `run` with a constant of the number of rows, 1 to kMostRows.
template <int ROWS = kMostRows, class Run>
inline void with_rows(int rows, Run run) {
  if constexpr (ROWS >= 1) {
    if (rows == ROWS) return run(std::integral_constant<int, ROWS>());
    with_rows<ROWS - 1>(rows, run);
  }
}

// The rows of the i-th of the fewest equal parts of `rows` that are at most `most` each.
struct Part {
  int first, count;
};

inline int parts_of(int rows, int most) { return (rows + most - 1) / most; }

inline Part part(int rows, int most, int i) {
  const int parts = parts_of(rows, most);
  const int each = rows / parts, extra = rows % parts;
  return {i * each + (i < extra ? i : extra), each + (i < extra ? 1 : 0)};
}

}  // namespace herd
