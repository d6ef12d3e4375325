// Products in int8: exact integer sums over groups of 32 inputs, scaled and added in float32.
//
//     out[m][n] = sum_g (sum_{k in g} x[m][k] w[n][k]) * x_scale[m][g] * w_scale[g][n]
//
// The integer sums are exact on every path (AMX tiles, VNNI, plain), and the float chain over the
// groups is the same, so a row has the same bits in any batch and on any CPU. Weights are stored
// plus 128 as unsigned bytes, what VNNI wants of one side; `offset` takes that off again.

#include <algorithm>

#include "matrix.h"

#if defined(__AMX_INT8__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace herd {
namespace {

constexpr int kFour = 4;
constexpr int kSteps = kGroup / kFour;

#if defined(__AVX512VNNI__)
inline Ints dot(Ints sum, const uint8_t* w, Ints x) {
  return (Ints)_mm512_dpbusd_epi32((__m512i)sum, _mm512_loadu_si512(w), (__m512i)x);
}
constexpr int kMostQuantized = 6;
#elif defined(__AVX2__)
// |w| and the sign on x: a pair of products is at most 2 * 127 * 128, which 16 bits hold. w - 128
// is never -128: weights are -127 to 127.
inline Ints dot(Ints sum, const uint8_t* w, Ints x) {
  const __m256i signed_w =
      _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)), _mm256_set1_epi8(-128));
  const __m256i pairs =
      _mm256_maddubs_epi16(_mm256_abs_epi8(signed_w), _mm256_sign_epi8((__m256i)x, signed_w));
  return sum + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
constexpr int kMostQuantized = 3;
#else
inline Ints dot(Ints sum, const uint8_t* w, Ints x) {
  int8_t bytes[kLanes * kFour];
  std::memcpy(bytes, &x, sizeof(bytes));
  for (int i = 0; i < kLanes * kFour; ++i) sum[i / kFour] += bytes[i] * (w[i] - 128);
  return sum;
}
constexpr int kMostQuantized = 3;
#endif

#if defined(__AVX512VNNI__)
constexpr bool kPlus128 = true;
#else
constexpr bool kPlus128 = false;  // `dot` takes it off itself
#endif

struct View {
  const uint8_t* data;
  const float* scales;
  int groups;

  View(const Matrix& matrix, int panel)
      : groups(matrix.inputs / kGroup) {
    const int64_t size = static_cast<int64_t>(matrix.inputs) * kPanel;
    data = static_cast<const uint8_t*>(matrix.data) + panel * size;
    scales = matrix.scales + static_cast<int64_t>(panel) * groups * kPanel;
  }
};

inline Ints four(const int8_t* x) {
  int32_t bytes;
  std::memcpy(&bytes, x, sizeof(bytes));
  return bytes - (Ints){};
}

// Rows against a strip of each of PANELS panels, at `column` within them.
template <int ROWS, int PANELS>
inline void strips(const View& view, int column, const QuantizedRows& x, int64_t inputs, int row,
                   Floats sums[PANELS][ROWS][2]) {
  const int64_t apart = inputs * kPanel, scales_apart = static_cast<int64_t>(view.groups) * kPanel;
  for (int g = 0; g < view.groups; ++g) {
    Ints exact[PANELS][ROWS][2];
    for (int m = 0; m < ROWS; ++m) {
      const int32_t offset = kPlus128 ? x.offset[(row + m) * view.groups + g] : 0;
      for (int p = 0; p < PANELS; ++p) exact[p][m][0] = exact[p][m][1] = offset - (Ints){};
    }
    const uint8_t* w = view.data + (static_cast<int64_t>(g) * kSteps * kPanel + column) * kFour;
    const int8_t* from = x.values + row * inputs + g * kGroup;
#pragma GCC unroll 4
    for (int k = 0; k < kSteps; ++k) {
#pragma GCC unroll 8
      for (int m = 0; m < ROWS; ++m) {
        const Ints value = four(from + m * inputs + k * kFour);
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; ++p) {
          const uint8_t* at = w + p * apart + k * kPanel * kFour;
          exact[p][m][0] = dot(exact[p][m][0], at, value);
          exact[p][m][1] = dot(exact[p][m][1], at + kLanes * kFour, value);
        }
      }
    }
    for (int p = 0; p < PANELS; ++p) {
      const float* scales = view.scales + p * scales_apart + g * kPanel + column;
      const Floats left = load(scales), right = load(scales + kLanes);
      for (int m = 0; m < ROWS; ++m) {
        const float scale = x.scales[(row + m) * view.groups + g];
        sums[p][m][0] += __builtin_convertvector(exact[p][m][0], Floats) * scale * left;
        sums[p][m][1] += __builtin_convertvector(exact[p][m][1], Floats) * scale * right;
      }
    }
  }
}

template <int ROWS, int PANELS>
void some_panels(const Matrix& matrix, const QuantizedRows& x, int row, int panel,
                 const Sink& sink) {
  const View view(matrix, panel);
  for (int at = 0; at < kPanel; at += kStrip) {
    const int column = panel * kPanel + at;
    Floats sums[PANELS][ROWS][2];
    for (int p = 0; p < PANELS; ++p)
      for (int m = 0; m < ROWS; ++m)
        for (int v = 0; v < 2; ++v)
          sums[p][m][v] =
              matrix.bias ? load(matrix.bias + column + p * kPanel + v * kLanes) : (Floats){};
    strips<ROWS, PANELS>(view, at, x, matrix.inputs, row, sums);
    for (int p = 0; p < PANELS; ++p)
      for (int m = 0; m < ROWS; ++m)
        sink.put(row + m, column + p * kPanel, sums[p][m][0], sums[p][m][1]);
  }
}

void by_dots(const Matrix& matrix, const QuantizedRows& x, int rows, int first, int last,
             const Sink& sink) {
  for (int i = 0; i < parts_of(rows, kMostQuantized); ++i) {
    const Part own = part(rows, kMostQuantized, i);
    with_rows<kMostQuantized>(own.count, [&](auto count) {
      constexpr int kRows = decltype(count)::value, kAtOnce = panels_at_once(kRows);
      int panel = first;
      for (; panel + kAtOnce <= last; panel += kAtOnce)
        some_panels<kRows, kAtOnce>(matrix, x, own.first, panel, sink);
      for (; panel < last; ++panel) some_panels<kRows, 1>(matrix, x, own.first, panel, sink);
    });
  }
}

#if defined(__AMX_INT8__) && defined(__linux__)

constexpr int kTileRows = 16;

struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};

// The kernel gives a process leave to use tiles when it asks, and may say no.
bool may_use_tiles() {
  constexpr int kRequest = 0x1023, kTileData = 18;
  static const bool granted = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return granted;
}

// Tiles 0, 1: sums of 16 rows with 16 columns each; 2: rows of x; 3, 4: 16 columns of w each.
void set_tiles(int rows) {
  TileShapes shapes;
  for (int i = 0; i < 5; ++i) {
    shapes.bytes[i] = i == 2 ? kGroup : 64;
    shapes.rows[i] = static_cast<uint8_t>(i < 3 ? rows : kSteps);
  }
  _tile_loadconfig(&shapes);
}

void by_tiles(const Matrix& matrix, const QuantizedRows& x, int rows, int first, int last,
              const Sink& sink) {
  static_assert(kLanes == 16, "a CPU with tiles has vectors of 16 floats");
  alignas(64) int32_t exact[2][kTileRows][16];
  alignas(64) float sums[kTileRows][kPanel];
  int shaped = 0;
  for (int panel = first; panel < last; ++panel) {
    const View view(matrix, panel);
    const int column = panel * kPanel;
    for (int i = 0; i < parts_of(rows, kTileRows); ++i) {
      const Part own = part(rows, kTileRows, i);
      if (own.count != shaped) set_tiles(shaped = own.count);
      for (int m = 0; m < own.count; ++m)
        for (int v = 0; v < 2; ++v)
          store(sums[m] + v * kLanes,
                matrix.bias ? load(matrix.bias + column + v * kLanes) : (Floats){});
      for (int g = 0; g < view.groups; ++g) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_loadd(2, x.values + static_cast<int64_t>(own.first) * matrix.inputs + g * kGroup,
                    matrix.inputs);
        const uint8_t* w = view.data + static_cast<int64_t>(g) * kGroup * kPanel;
        if (i == 0) prefetch(w + kAhead, kGroup * kPanel);
        _tile_loadd(3, w, kPanel * kFour);
        _tile_dpbsud(0, 2, 3);
        _tile_loadd(4, w + kTileRows * kFour, kPanel * kFour);
        _tile_dpbsud(1, 2, 4);
        _tile_stored(0, exact[0], 64);
        _tile_stored(1, exact[1], 64);
        const Floats scales[2] = {load(view.scales + g * kPanel),
                                  load(view.scales + g * kPanel + kLanes)};
        for (int m = 0; m < own.count; ++m) {
          const int64_t at = static_cast<int64_t>(own.first + m) * view.groups + g;
          const int32_t offset = x.offset[at];
          const float scale = x.scales[at];
          for (int v = 0; v < 2; ++v) {
            Ints whole;
            std::memcpy(&whole, exact[v][m], sizeof(whole));
            const Floats before = load(sums[m] + v * kLanes);
            store(sums[m] + v * kLanes,
                  before + __builtin_convertvector(whole + offset, Floats) * scale * scales[v]);
          }
        }
      }
      for (int m = 0; m < own.count; ++m)
        sink.put(own.first + m, column, load(sums[m]), load(sums[m] + kLanes));
    }
  }
  _tile_release();
}

#endif

}  // namespace

void int8_panels(const Matrix& matrix, const QuantizedRows& x, int rows, int first, int last,
                 const Sink& sink) {
#if defined(__AMX_INT8__) && defined(__linux__)
  if (rows >= 4 && may_use_tiles()) return by_tiles(matrix, x, rows, first, last, sink);
#endif
  by_dots(matrix, x, rows, first, last, sink);
}

}  // namespace herd
