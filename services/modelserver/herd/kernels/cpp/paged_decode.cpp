// Decode attention over paged, token-major KV: the CPU kernel behind paged_attention_cpu.py.
//
// A sequence's blocks are walked once, with an online softmax (Milakov and Gimelshein, 2018) over a
// block at a time. Heads and sequences share nothing, and each adds in the same order whatever the
// batch and the thread count: a row's result is bit-identical in any batch.
//
// Plain C interface over raw pointers, so that building needs no torch headers (4 s, not 80).

#include <cstdint>

namespace {

constexpr int kMaxBlock = 64;
constexpr int kMaxGroup = 16;
constexpr int kMaxHeads = 256;
constexpr float kLowest = -1e30f;

// exp(x) for x <= 0, after Cephes' expf: 2 ulp, and 0 below where float32 has nothing left.
inline float exp_nonpositive(float x) {
  x = x < -87.0f ? -87.0f : x;
  const float n = __builtin_floorf(x * 1.44269504088896341f + 0.5f);
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  union {
    int32_t bits;
    float value;
  } scale;
  scale.bits = (static_cast<int32_t>(n) + 127) << 23;
  return p * scale.value;
}

// The next block is anywhere in the pool: no hardware prefetcher will guess it.
inline void prefetch(const float* rows, int width, int tokens, int64_t row) {
  for (int t = 0; t < tokens; ++t)
    for (int i = 0; i < width; i += 16) __builtin_prefetch(rows + t * row + i, 0, 2);
}

// One block's tokens into the running softmax of each query head of a KV head's group. kDim and
// kGroup are the sizes where known to the compiler (it then keeps queries and sums in registers),
// or 0.
template <int kDim, int kGroup>
inline void add_block(const float* q, const float* keys, const float* values, int tokens,
                      int64_t row, int group_size, int dim, float scale, float* highest,
                      float* total, float* mixed) {
  const int size = kDim ? kDim : dim;
  const int group = kGroup ? kGroup : group_size;
  float scores[kMaxGroup][kMaxBlock];
  for (int t = 0; t < tokens; ++t) {
    const float* key = keys + t * row;
    for (int g = 0; g < group; ++g) {
      float sum = 0.0f;
      for (int i = 0; i < size; ++i) sum += q[g * size + i] * key[i];
      scores[g][t] = sum * scale;
    }
  }
  for (int g = 0; g < group; ++g) {
    float top = highest[g];
    for (int t = 0; t < tokens; ++t) top = scores[g][t] > top ? scores[g][t] : top;
    const float shrink = exp_nonpositive(highest[g] - top);
    highest[g] = top;
    float sum = 0.0f;
    for (int t = 0; t < tokens; ++t) {
      scores[g][t] = exp_nonpositive(scores[g][t] - top);
      sum += scores[g][t];
    }
    total[g] = total[g] * shrink + sum;
    for (int i = 0; i < size; ++i) mixed[g * size + i] *= shrink;
  }
  // A strip of the sums at a time, so that they stay in registers over all tokens.
  constexpr int kStrip = 32;
  for (int start = 0; start < size; start += kStrip) {
    const int width = kDim ? kStrip : (size - start < kStrip ? size - start : kStrip);
    float sums[kGroup ? kGroup : kMaxGroup][kStrip];
    for (int g = 0; g < group; ++g)
      for (int i = 0; i < width; ++i) sums[g][i] = mixed[g * size + start + i];
    for (int t = 0; t < tokens; ++t) {
      const float* value = values + t * row + start;
      for (int g = 0; g < group; ++g)
        for (int i = 0; i < width; ++i) sums[g][i] += scores[g][t] * value[i];
    }
    for (int g = 0; g < group; ++g)
      for (int i = 0; i < width; ++i) mixed[g * size + start + i] = sums[g][i];
  }
}

template <int kDim, int kGroup>
void decode(const float* query, int64_t query_stride, const float* keys, const float* values,
            const int64_t* tables, const int64_t* table_starts, const int64_t* contexts,
            const int64_t* rows, float* out, int64_t batch, int heads, int kv_heads, int dim,
            int block, float scale, int threads) {
  const int size = kDim ? kDim : dim;
  const int group = heads / kv_heads;
  const int64_t row = static_cast<int64_t>(kv_heads) * size;
  // A whole sequence a task reads its blocks in one stream; one head a task only where there would
  // be too few tasks for the threads.
  const int split = batch >= threads ? 1 : kv_heads;
  const int each = kv_heads / split;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t task = 0; task < batch * split; ++task) {
    const int64_t sequence = task / split;
    const int first_head = static_cast<int>(task % split);
    const int64_t at = rows[sequence];
    const float* q = query + at * query_stride + static_cast<int64_t>(first_head) * group * size;
    float* mixed = out + at * heads * size + static_cast<int64_t>(first_head) * group * size;
    float highest[kMaxHeads], total[kMaxHeads];
    for (int h = 0; h < each * group; ++h) highest[h] = kLowest, total[h] = 0.0f;
    for (int i = 0; i < each * group * size; ++i) mixed[i] = 0.0f;
    const int64_t* table = tables + table_starts[sequence];
    for (int64_t first = 0; first < contexts[sequence]; first += block) {
      const int64_t left = contexts[sequence] - first;
      const int tokens = left < block ? static_cast<int>(left) : block;
      const int64_t offset = table[first / block] * block * row + first_head * size;
      if (left > block) {
        const int64_t next = table[first / block + 1] * block * row + first_head * size;
        prefetch(keys + next, each * size, block, row);
        prefetch(values + next, each * size, block, row);
      }
      for (int h = 0; h < each; ++h)
        add_block<kDim, kGroup>(q + h * group * size, keys + offset + h * size, values + offset + h * size,
                        tokens, row, group, size, scale, highest + h * group, total + h * group,
                        mixed + h * group * size);
    }
    for (int h = 0; h < each * group; ++h)
      for (int i = 0; i < size; ++i) mixed[h * size + i] /= total[h];
  }
}

template <int kDim>
auto* pick_group(int group) {
  switch (group) {
    case 1: return decode<kDim, 1>;
    case 2: return decode<kDim, 2>;
    case 3: return decode<kDim, 3>;
    case 4: return decode<kDim, 4>;
    case 7: return decode<kDim, 7>;
    case 8: return decode<kDim, 8>;
    default: return decode<kDim, 0>;
  }
}

auto* pick(int dim, int group) {
  return dim == 64 ? pick_group<64>(group) : dim == 128 ? pick_group<128>(group) : decode<0, 0>;
}

}  // namespace

// query [rows, heads, dim] with query_stride floats between rows; keys, values
// [blocks, block, kv_heads, dim]; out [rows, heads, dim] contiguous, written at `rows` only.
// Sequence i reads contexts[i] >= 1 tokens through tables[table_starts[i]...].
// Limits that the caller checks: block <= 64, heads / kv_heads <= 16, heads <= 256.
extern "C" void herd_paged_decode(const float* query, int64_t query_stride, const float* keys,
                                  const float* values, const int64_t* tables,
                                  const int64_t* table_starts, const int64_t* contexts,
                                  const int64_t* rows, float* out, int64_t batch, int32_t heads,
                                  int32_t kv_heads, int32_t dim, int32_t block, float scale,
                                  int32_t threads) {
  auto* run = pick(dim, heads / kv_heads);
  run(query, query_stride, keys, values, tables, table_starts, contexts, rows, out, batch, heads,
      kv_heads, dim, block, scale, threads);
}
