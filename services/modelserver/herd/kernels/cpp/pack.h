// Weights into panels: from [outputs][inputs] float32, once, when a model is loaded.

#pragma once

#include <algorithm>
#include <cmath>

#include "matrix.h"

namespace herd {

// The row of the source that column n of the panels has, or -1 where there is none.
inline int source_row(int n, int outputs, bool gated) {
  if (!gated) return n < outputs ? n : -1;
  const int half = outputs / 2, strip = n / kStrip, lane = n % kStrip;
  const int row = strip * kLanes + lane % kLanes;
  return row < half ? row + (lane < kLanes ? 0 : half) : -1;
}

template <class W>
void pack_floats(const float* weight, int outputs, int inputs, bool gated, int panel, W* to) {
  for (int k = 0; k < inputs; ++k)
    for (int n = 0; n < kPanel; ++n) {
      const int row = source_row(panel * kPanel + n, outputs, gated);
      const float value = row < 0 ? 0.0f : weight[static_cast<int64_t>(row) * inputs + k];
      if constexpr (std::is_same_v<W, Half>)
        to[k * kPanel + n] = float_to_half(value);
      else
        to[k * kPanel + n] = value;
    }
}

// inputs: of the source; what is missing to a whole group counts as zeros.
inline void pack_int8(const float* weight, int outputs, int inputs, bool gated, int panel,
                      uint8_t* to, float* scales) {
  const int groups = (inputs + kGroup - 1) / kGroup;
  for (int n = 0; n < kPanel; ++n) {
    const int row = source_row(panel * kPanel + n, outputs, gated);
    const float* from = row < 0 ? nullptr : weight + static_cast<int64_t>(row) * inputs;
    for (int g = 0; g < groups; ++g) {
      const int count = inputs - g * kGroup < kGroup ? inputs - g * kGroup : kGroup;
      float most = 0.0f;
      for (int k = 0; from && k < count; ++k)
        most = std::max(most, std::fabs(from[g * kGroup + k]));
      const float scale = most / 127.0f, inverse = most > 0.0f ? 127.0f / most : 0.0f;
      scales[g * kPanel + n] = scale;
      for (int k = 0; k < kGroup; ++k) {
        const float value = from && k < count ? from[g * kGroup + k] * inverse : 0.0f;
        const int at = g * kGroup + k;
        to[(at / 4 * kPanel + n) * 4 + at % 4] = static_cast<uint8_t>(std::lrintf(value) + 128);
      }
    }
  }
}

// A group of a row: see QuantizedRows. What is not a number, or infinite, makes the scale so, and
// with it all that the row gives.
inline void quantize_group(const float* x, int8_t* values, float* scale, int32_t* offset) {
  constexpr int kVectors = kGroup / kLanes;
  Floats most = {}, poison = {};
  for (int v = 0; v < kVectors; ++v) {
    const Floats own = load(x + v * kLanes);
    most = largest(most, own < 0.0f ? -own : own);
    poison += own * 0.0f;
  }
  const float top = largest(most);
  const float inverse = top > 0.0f ? 127.0f / top : 0.0f;
  Ints total = {};
  for (int v = 0; v < kVectors; ++v) {
    const Ints whole = __builtin_convertvector(nearest(load(x + v * kLanes) * inverse), Ints);
    const Bytes narrow = __builtin_convertvector(whole, Bytes);
    std::memcpy(values + v * kLanes, &narrow, sizeof(narrow));
    total += whole;
  }
  int32_t sum_of_all = 0;
  for (int i = 0; i < kLanes; ++i) sum_of_all += total[i];
  *scale = top / 127.0f + sum(poison);
  *offset = -128 * sum_of_all;
}

// One row of activations; `inputs` is `count` filled up to whole groups.
inline void quantize_row(const float* x, int count, int inputs, int8_t* values, float* scales,
                         int32_t* offsets) {
  const int whole = count / kGroup;
  for (int g = 0; g < whole; ++g)
    quantize_group(x + g * kGroup, values + g * kGroup, scales + g, offsets + g);
  if (count == inputs) return;
  float rest[kGroup] = {};
  std::copy(x + whole * kGroup, x + count, rest);
  quantize_group(rest, values + whole * kGroup, scales + whole, offsets + whole);
}

}  // namespace herd
