// A weight matrix as the kernels read it, and the products with it.
//
// Panels of 32 outputs, the last filled up with zeros. Within a panel:
//   float32, float16:  [in][32]
//   int8:              [in / 4][32][4], weights plus 128 as unsigned bytes, and a scale [in / 32][32]
// A gated matrix has gate and up rows side by side: the vectors of a strip are one of each.

#pragma once

#include <type_traits>

#include "team.h"
#include "tile.h"

namespace herd {

enum Kind : int32_t { kFloat32 = 0, kFloat16 = 1, kInt8 = 2 };

constexpr int kGroup = 32;  // inputs that share a scale in int8: whole vectors

struct Matrix {
  const void* data;
  const float* scales;  // int8 only
  const float* bias;    // [outputs, filled up to whole panels] or null
  int32_t kind;
  int32_t outputs;
  int32_t inputs;  // int8: a multiple of kGroup
  int32_t gated;   // outputs counts gate and up together
};

inline int panels_of(const Matrix& matrix) { return (matrix.outputs + kPanel - 1) / kPanel; }

// Rows of activations in int8: each group of 32 has its own scale, so a row depends on nothing but
// itself, and an outlier only on those beside it.
struct QuantizedRows {
  int8_t* values;   // [rows][inputs]
  float* scales;    // [rows][inputs / 32]
  int32_t* offset;  // [rows][inputs / 32]: -128 times the group's sum
};

enum Activation : int32_t { kSilu = 0, kGeluTanh = 1 };

inline Floats activate(Floats x, int activation) {
  if (activation == kSilu) return x / (1.0f + exponential(-x));
  // tanh(y) = 1 - 2 / (exp(2y) + 1)
  const Floats y = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return x * (1.0f - 1.0f / (exponential(2.0f * y) + 1.0f));
}

// Where the sums of a strip go.
struct Sink {
  float* out;
  int64_t ldo;
  int outputs;
  bool gated;
  int activation;

  inline void put(int row, int column, Floats left, Floats right) const {
    float* to = out + row * ldo;
    if (gated) {
      write(to, column / 2, outputs / 2, activate(left, activation) * right);
    } else {
      write(to, column, outputs, left);
      write(to, column + kLanes, outputs, right);
    }
  }

  static inline void write(float* to, int column, int outputs, Floats value) {
    if (column + kLanes <= outputs) return store(to + column, value);
    for (int i = 0; column + i < outputs; ++i) to[column + i] = value[i];
  }
};

template <class W>
inline void float_panels(const Matrix& matrix, const float* x, int64_t ldx, int rows, int first,
                         int last, const Sink& sink) {
  const W* data = static_cast<const W*>(matrix.data);
  const int64_t size = static_cast<int64_t>(matrix.inputs) * kPanel;
  for (int i = 0; i < parts_of(rows, kMostRows); ++i) {
    const Part own = part(rows, kMostRows, i);
    const float* from = x + own.first * ldx;
    with_rows(own.count, [&](auto count) {
      constexpr int kRows = decltype(count)::value, kAtOnce = panels_at_once(kRows);
      for (int panel = first; panel < last;) {
        for (int strip = 0; strip < kStrips; ++strip) {
          const W* w = data + panel * size + strip * kStrip;
          const int column = panel * kPanel + strip * kStrip;
          const float* start = matrix.bias ? matrix.bias + column : nullptr;
          const auto put = [&](int p, int m, Floats left, Floats right) {
            sink.put(own.first + m, column + p * kPanel, left, right);
          };
          if (panel + kAtOnce <= last)
            tile<kRows, kAtOnce, kAhead>(from, ldx, w, kPanel, size, matrix.inputs, start, put);
          else
            tile<kRows, 1, kAhead>(from, ldx, w, kPanel, size, matrix.inputs, start, put);
        }
        panel += panel + kAtOnce <= last ? kAtOnce : 1;
      }
    });
  }
}

void int8_panels(const Matrix& matrix, const QuantizedRows& x, int rows, int first, int last,
                 const Sink& sink);

// Rows times the matrix, by the whole team: a part of it, without the barrier after it.
inline void multiply(Team& team, const Matrix& matrix, const float* x, int64_t ldx,
                     const QuantizedRows& quantized, int rows, const Sink& sink) {
  const int panels = panels_of(matrix);
  // Pieces small enough to share evenly, of whole groups of panels that go at once.
  int piece = panels / (team.size() * 8);
  piece = piece < 4 ? 4 : piece - piece % 4;
  for (int i; (i = team.claim()) * piece < panels;) {
    const int first = i * piece, last = first + piece < panels ? first + piece : panels;
    if (matrix.kind == kInt8)
      int8_panels(matrix, quantized, rows, first, last, sink);
    else if (matrix.kind == kFloat16)
      float_panels<Half>(matrix, x, ldx, rows, first, last, sink);
    else
      float_panels<float>(matrix, x, ldx, rows, first, last, sink);
  }
}

}  // namespace herd
