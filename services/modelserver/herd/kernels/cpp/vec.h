// Vectors of float as GCC has them, as wide as the CPU's, and what the kernels do with them.
//
// Every sum here is a chain in a fixed order, one fused multiply-add an element: a row's result is
// the same bits however many rows, and however many threads, work beside it.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace herd {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef int8_t Bytes __attribute__((vector_size(kLanes)));
typedef uint16_t Half;

inline Floats load(const float* from) {
  Floats v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

inline void store(float* to, Floats v) { std::memcpy(to, &v, sizeof(v)); }

inline Floats all(float x) { return x - (Floats){}; }

inline float half_to_float(Half h) {
#if defined(__F16C__)
  return _cvtsh_ss(h);
#else
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t magnitude = h & 0x7fff;
  union {
    uint32_t bits;
    float value;
  } x;
  // Scaling by 2**112 moves float16's exponents, those of its denormals too, to float32's place.
  x.bits = magnitude << 13;
  x.value *= 0x1p112f;
  if (magnitude >= 0x7c00) x.bits = 0x7f800000 | (magnitude & 0x3ff) << 13;
  x.bits |= sign;
  return x.value;
#endif
}

// To nearest, ties to even; beyond float16's range its largest number, as nothing here may become
// infinite that was not.
inline Half float_to_half(float x) {
  const float most = 65504.0f;
  x = x > most ? most : x < -most ? -most : x;
#if defined(__F16C__)
  return static_cast<Half>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
#else
  union {
    float value;
    uint32_t bits;
  } in{x}, magic;
  const uint32_t sign = (in.bits >> 16) & 0x8000;
  in.bits &= 0x7fffffff;
  if (in.bits >= 0x38800000) {
    const uint32_t odd = (in.bits >> 13) & 1;
    return static_cast<Half>(sign | ((in.bits - 0x38000000 + 0xfff + odd) >> 13));
  }
  magic.bits = (127 - 15 + (23 - 10) + 1) << 23;  // adding it rounds to float16's denormals
  in.value += magic.value;
  return static_cast<Half>(sign | (in.bits - magic.bits));
#endif
}

inline Floats load(const Half* from) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__F16C__)
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  Floats v;
  for (int i = 0; i < kLanes; ++i) v[i] = half_to_float(from[i]);
  return v;
#endif
}

inline void store(Half* to, Floats v) {
#if defined(__F16C__)
  const Floats most = all(65504.0f);
  v = v > most ? most : v;
  v = v < -most ? -most : v;
#endif
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kLanes; ++i) to[i] = float_to_half(v[i]);
#endif
}

// The lanes' sum by halves: always the same tree.
inline float sum(Floats v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

inline Floats largest(Floats a, Floats b) { return a > b ? a : b; }

inline float largest(Floats v) {
  float lanes[kLanes];
  store(lanes, v);
  float most = lanes[0];
  for (int i = 1; i < kLanes; ++i) most = lanes[i] > most ? lanes[i] : most;
  return most;
}

// Whole numbers, halves to even.
inline Floats nearest(Floats x) {
#if defined(__AVX512F__)
  return (Floats)_mm512_roundscale_ps((__m512)x, 0);
#elif defined(__AVX__)
  return (Floats)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  Floats n;
  for (int i = 0; i < kLanes; ++i) n[i] = __builtin_rintf(x[i]);
  return n;
#endif
}

// exp(x) for any x after Cephes' expf (2 ulp): 0 where float32 has nothing left, largest number
// above its range.
inline Floats exponential(Floats x) {
  const Floats low = all(-87.33654f), high = all(88.37626f);
  const auto vanishes = x < low;
  x = x < low ? low : x;
  x = x > high ? high : x;
  const Floats n = nearest(x * 1.44269504088896341f);
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Ints power = (__builtin_convertvector(n, Ints) + 127) << 23;
  const Floats value = p * (Floats)power;
  return vanishes ? (Floats){} : value;
}

}  // namespace herd
