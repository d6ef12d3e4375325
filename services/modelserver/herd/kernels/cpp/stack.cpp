// A model's whole pass over a step's tokens in one call: no Python between its parts.
//
// Everything is float32 but the weights (matrix.h) and, if so chosen, the KV pool. The torch form
// of the same pass is the model's own file under models/; the two are tested against each other.
// Plain C interface over raw pointers, so that building needs no torch headers.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "attention.h"
#include "matrix.h"
#include "pack.h"

namespace herd {
namespace {

struct Layer {
  Matrix qkv, attention_out, gate_up, down;
  const float* attention_norm;
  const float* mlp_norm;
  const float* after_attention;  // norms of what is added to the residual; or null
  const float* after_mlp;
  const float* query_norm;  // [dim], of each head before it is rotated; or null
  const float* key_norm;
  int32_t rope;    // which of the model's frequencies
  int32_t window;  // 0: sees all before it
};

struct Model {
  const Layer* layers;
  const float* norm;
  Matrix head;
  const Half* embedding;           // [vocab][hidden]; null: the head's rows, not in int8
  const float* frequencies[2];     // [dim / 2]
  int32_t count, hidden, heads, kv_heads, dim, intermediate, vocab;
  int32_t activation;
  float eps, attention_scale, embedding_scale;
};

struct Batch {
  const int64_t* tokens;
  const int64_t* positions;
  const int64_t* slots;  // block * 32 + offset, where keys and values of the row go
  const Span* spans;
  const int64_t* sample_rows;
  const Pool* pools;  // of each layer
  int64_t rows, span_count, samples;
  float* logits;    // [samples][vocab] or null
  int64_t* best;    // [samples]: the first of the largest logits; with `logits`
  float* states;    // [samples][hidden]: what the head is given; or null
  int32_t* finite;  // 1, or 0: keys and values of the last layer, or what is given, are no numbers
};

// Where a pass spends its time, as the thread that called it sees it, barriers included.
enum Part { kEmbedding, kNorms, kProducts, kPlacing, kAttention, kRounding, kHead, kPartCount };

class Stopwatch {
 public:
  void start() { since_ = Clock::now(); }

  void mark(Part part) {
    const Clock::time_point now = Clock::now();
    seconds_[part] += std::chrono::duration<double>(now - since_).count();
    since_ = now;
  }

  const double* seconds() const { return seconds_; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point since_;
  double seconds_[kPartCount] = {};
};

void normalize(const float* x, const float* weight, int size, float eps, float* out) {
  Floats squares[2] = {};
  int i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
    const Floats a = load(x + i), b = load(x + i + kLanes);
    squares[0] += a * a;
    squares[1] += b * b;
  }
  float total = sum(squares[0] + squares[1]);
  for (; i < size; ++i) total += x[i] * x[i];
  const float factor = 1.0f / std::sqrt(total / static_cast<float>(size) + eps);
  for (int j = 0; j < size; ++j) out[j] = x[j] * factor * weight[j];
}

bool all_finite(const float* x, int size) {
  float poison = 0.0f;
  for (int i = 0; i < size; ++i) poison += x[i] * 0.0f;
  return poison == 0.0f;
}

// The first of the largest, and whether that is a number and nothing is NaN.
bool find_best(const float* x, int size, int64_t* best) {
  const int whole = size - size % kLanes;
  Floats most = all(-__builtin_inff()), poison = {};
  Ints at = {}, now = {};
  for (int lane = 0; lane < kLanes; ++lane) now[lane] = lane;
  for (int i = 0; i < whole; i += kLanes) {
    const Floats own = load(x + i);
    const auto more = own > most;
    most = more ? own : most;
    at = more ? now : at;
    poison += own != own ? all(1.0f) : all(0.0f);
    now += kLanes;
  }
  float top = -__builtin_inff();
  int64_t first = 0;
  for (int lane = 0; lane < kLanes && whole; ++lane)
    if (most[lane] > top || (most[lane] == top && at[lane] < first)) top = most[lane], first = at[lane];
  bool broken = sum(poison) > 0.0f;
  for (int i = whole; i < size; ++i) {
    if (x[i] > top) top = x[i], first = i;
    broken |= x[i] != x[i];
  }
  *best = first;
  return !broken && std::isfinite(top);
}

// The halves-apart form: pairs (x[i], x[i + dim / 2]).
void rotate(float* x, const float* cos, const float* sin, int dim) {
  const int half = dim / 2;
  for (int i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

class Stack {
 public:
  Stack(const Model& model, int threads) : model_(model), team_(threads) {}

  // Layers `first` to `last`; the first begins with the embedding, the last ends with the head.
  void run(const Batch& batch, int first, int last) {
    if (first == 0) {
      fit(batch);
      plan(batch);
      rows_ = static_cast<int>(batch.rows);
      pending_ = nullptr;
      finite_.store(true, std::memory_order_relaxed);
    }
    watch_.start();
    team_.run([&] {
      if (first == 0) embed(batch);
      for (int i = first; i < last; ++i) run_layer(batch, i);
      if (last == model_.count) finish(batch);
    });
    *batch.finite = finite_.load(std::memory_order_relaxed);
  }

  const double* seconds() const { return watch_.seconds(); }

 private:
  int qkv_size() const { return (model_.heads + 2 * model_.kv_heads) * model_.dim; }
  int q_size() const { return model_.heads * model_.dim; }

  static int padded(int inputs) { return (inputs + kGroup - 1) / kGroup * kGroup; }

  void fit(const Batch& batch) {
    const size_t rows = batch.rows;
    const auto grow = [](auto& buffer, size_t size) {
      if (buffer.size() < size) buffer.resize(size);
    };
    grow(x_, rows * model_.hidden);
    grow(normed_, rows * model_.hidden);
    grow(added_, rows * model_.hidden);
    grow(qkv_, rows * qkv_size());
    grow(attended_, rows * q_size());
    grow(acted_, rows * model_.intermediate);
    grow(angles_, rows * model_.dim * 2);
    const size_t widest = padded(std::max({model_.hidden, q_size(), model_.intermediate}));
    grow(whole_, rows * widest);
    grow(scales_, rows * widest / kGroup);
    grow(offsets_, rows * widest / kGroup);
  }

  void plan(const Batch& batch) {
    for (int i = 0; i < model_.count; ++i) {
      const int window = model_.layers[i].window;
      if (std::find(windows_.begin(), windows_.end(), window) == windows_.end()) {
        windows_.push_back(window);
        attentions_.push_back(std::make_unique<Attention>());
      }
    }
    for (size_t i = 0; i < windows_.size(); ++i)
      attentions_[i]->plan(batch.spans, static_cast<int>(batch.span_count), shape(windows_[i]));
  }

  AttentionShape shape(int window) const {
    return {model_.heads, model_.kv_heads, model_.dim, window, model_.attention_scale};
  }

  // `work(row)` for all rows, a few at a time, and a barrier. most: that one thread takes at once.
  template <class Work>
  void rows_part(int rows, Work work, int most = 8) {
    const int each = rows >= 64 ? most : 1;
    for (int i; (i = team_.claim() * each) < rows;)
      for (int row = i; row < std::min(rows, i + each); ++row) work(row);
    team_.barrier();
  }

  // After each part, by all.
  void mark(Part part) {
    if (team_.leads()) watch_.mark(part);
  }

  QuantizedRows quantized() { return {whole_.data(), scales_.data(), offsets_.data()}; }

  void quantize(const float* x, int count, int row) {
    const int inputs = padded(count), groups = inputs / kGroup;
    quantize_row(x, count, inputs, whole_.data() + static_cast<int64_t>(row) * inputs,
                 scales_.data() + static_cast<int64_t>(row) * groups,
                 offsets_.data() + static_cast<int64_t>(row) * groups);
  }

  void product(const Matrix& matrix, const float* x, int64_t ldx, int rows, float* out,
               int64_t ldo, Part part = kProducts) {
    const Sink sink{out, ldo, matrix.outputs, matrix.gated != 0, model_.activation};
    multiply(team_, matrix, x, ldx, quantized(), rows, sink);
    team_.barrier();
    mark(part);
  }

  void embed(const Batch& batch) {
    const int hidden = model_.hidden, half = model_.dim / 2;
    rows_part(rows_, [&](int row) {
      const int64_t token = batch.tokens[row];
      float* x = x_.data() + static_cast<int64_t>(row) * hidden;
      if (model_.embedding) {
        for (int i = 0; i < hidden; ++i) x[i] = half_to_float(model_.embedding[token * hidden + i]);
      } else {
        const int64_t first = token / kPanel * hidden * kPanel + token % kPanel;
        for (int64_t i = 0; i < hidden; ++i)
          x[i] = model_.head.kind == kFloat16
                     ? half_to_float(static_cast<const Half*>(model_.head.data)[first + i * kPanel])
                     : static_cast<const float*>(model_.head.data)[first + i * kPanel];
      }
      for (int i = 0; i < hidden; ++i) x[i] *= model_.embedding_scale;
      float* angles = angles_.data() + static_cast<int64_t>(row) * half * 4;
      for (int kind = 0; kind < 2; ++kind) {
        if (!model_.frequencies[kind]) continue;
        for (int i = 0; i < half; ++i) {
          const float angle = static_cast<float>(batch.positions[row]) * model_.frequencies[kind][i];
          angles[(2 * kind) * half + i] = std::cos(angle);
          angles[(2 * kind + 1) * half + i] = std::sin(angle);
        }
      }
    });
    mark(kEmbedding);
  }

  // x += what the block before gave; then the norm that the next matrix is given.
  void add_and_normalize(const float* after, const float* norm, bool quantizes) {
    const int hidden = model_.hidden;
    const float* added = pending_;
    rows_part(rows_, [&](int row) {
      const int64_t at = static_cast<int64_t>(row) * hidden;
      float* x = x_.data() + at;
      float* normed = normed_.data() + at;
      if (added && after) {
        normalize(added + at, after, hidden, model_.eps, normed);
        for (int i = 0; i < hidden; ++i) x[i] += normed[i];
      } else if (added) {
        for (int i = 0; i < hidden; ++i) x[i] += added[at + i];
      }
      normalize(x, norm, hidden, model_.eps, normed);
      if (quantizes) quantize(normed, hidden, row);
    });
    mark(kNorms);
  }

  void run_layer(const Batch& batch, int index) {
    const Layer& layer = model_.layers[index];
    const int hidden = model_.hidden;
    const float* after = index ? model_.layers[index - 1].after_mlp : nullptr;
    add_and_normalize(after, layer.attention_norm, layer.qkv.kind == kInt8);
    product(layer.qkv, normed_.data(), hidden, rows_, qkv_.data(), qkv_size());
    // A block's keys of one dimension share a cache line: its rows are best one thread's.
    const auto place_row = [&](int row) {
      place(batch, layer, batch.pools[index], row);
      // What is no number stays none from layer to layer: the last one tells of all.
      if (index + 1 == model_.count)
        check(qkv_.data() + static_cast<int64_t>(row) * qkv_size() + q_size(),
              2 * model_.kv_heads * model_.dim);
    };
    rows_part(rows_, place_row, kPanel);
    mark(kPlacing);
    const size_t at = std::find(windows_.begin(), windows_.end(), layer.window) - windows_.begin();
    attentions_[at]->run(team_, batch.pools[index], shape(layer.window), qkv_.data(), qkv_size(),
                         attended_.data(), q_size());
    team_.barrier();
    mark(kAttention);
    if (index + 1 == model_.count) keep_sampled(batch);
    if (layer.attention_out.kind == kInt8)
      rows_part(rows_, [&](int row) {
        quantize(attended_.data() + static_cast<int64_t>(row) * q_size(), q_size(), row);
      });
    mark(kRounding);
    product(layer.attention_out, attended_.data(), q_size(), rows_, added_.data(), hidden);
    set_pending();
    add_and_normalize(layer.after_attention, layer.mlp_norm, layer.gate_up.kind == kInt8);
    product(layer.gate_up, normed_.data(), hidden, rows_, acted_.data(), model_.intermediate);
    if (layer.down.kind == kInt8)
      rows_part(rows_, [&](int row) {
        quantize(acted_.data() + static_cast<int64_t>(row) * model_.intermediate,
                 model_.intermediate, row);
      });
    mark(kRounding);
    product(layer.down, acted_.data(), model_.intermediate, rows_, added_.data(), hidden);
  }

  // Rotates queries and keys and stores keys and values.
  void place(const Batch& batch, const Layer& layer, const Pool& pool, int row) {
    const int dim = model_.dim, half = dim / 2, heads = model_.heads, kv_heads = model_.kv_heads;
    float* x = qkv_.data() + static_cast<int64_t>(row) * qkv_size();
    const float* cos = angles_.data() + (static_cast<int64_t>(row) * 4 + 2 * layer.rope) * half;
    for (int head = 0; head < heads + kv_heads; ++head) {
      float* own = x + head * dim;
      const float* norm = head < heads ? layer.query_norm : layer.key_norm;
      if (norm) normalize(own, norm, dim, model_.eps, own);
      rotate(own, cos, cos + half, dim);
    }
    if (pool.half)
      write<Half>(pool, batch.slots[row], x + heads * dim);
    else
      write<float>(pool, batch.slots[row], x + heads * dim);
  }

  template <class E>
  void write(const Pool& pool, int64_t slot, const float* from) {
    const int dim = model_.dim, kv_heads = model_.kv_heads;
    const int64_t block = slot / kPanel, offset = slot % kPanel;
    for (int head = 0; head < kv_heads; ++head) {
      const int64_t at = (block * kv_heads + head) * dim * kPanel;
      E* keys = static_cast<E*>(pool.keys) + at + offset;
      const float* key = from + head * dim;
      for (int i = 0; i < dim; i += kLanes) {
        E some[kLanes];
        store(some, load(key + i));
        for (int lane = 0; lane < kLanes; ++lane) keys[(i + lane) * kPanel] = some[lane];
      }
      const float* value = from + (kv_heads + head) * dim;
      E* values = static_cast<E*>(pool.values) + at + offset * dim;
      for (int i = 0; i < dim; i += kLanes) store(values + i, load(value + i));
    }
  }

  void check(const float* x, int size) {
    if (!all_finite(x, size)) finite_.store(false, std::memory_order_relaxed);
  }

  // Beyond the last attention only the sampled rows matter. They are in ascending order.
  void keep_sampled(const Batch& batch) {
    if (team_.claim() == 0) {
      for (int64_t i = 0; i < batch.samples; ++i) {
        const int64_t row = batch.sample_rows[i];
        std::copy_n(x_.data() + row * model_.hidden, model_.hidden, x_.data() + i * model_.hidden);
        std::copy_n(attended_.data() + row * q_size(), q_size(), attended_.data() + i * q_size());
      }
    }
    team_.barrier();
    if (team_.claim() == 0) rows_ = static_cast<int>(batch.samples);
    team_.barrier();
  }

  void set_pending() {
    if (team_.claim() == 0) pending_ = added_.data();
    team_.barrier();
  }

  void finish(const Batch& batch) {
    const int hidden = model_.hidden;
    add_and_normalize(model_.layers[model_.count - 1].after_mlp, model_.norm,
                      batch.logits && model_.head.kind == kInt8);
    if (batch.states) {
      if (team_.claim() == 0) {
        std::copy_n(normed_.data(), static_cast<int64_t>(rows_) * hidden, batch.states);
        check(batch.states, rows_ * hidden);
      }
      team_.barrier();
    }
    if (!batch.logits) return;
    product(model_.head, normed_.data(), hidden, rows_, batch.logits, model_.vocab, kHead);
    rows_part(rows_, [&](int row) {
      if (!find_best(batch.logits + static_cast<int64_t>(row) * model_.vocab, model_.vocab,
                     batch.best + row))
        finite_.store(false, std::memory_order_relaxed);
    });
    mark(kHead);
  }

  const Model model_;
  Team team_;
  Stopwatch watch_;
  int rows_ = 0;
  std::atomic<bool> finite_{true};
  const float* pending_ = nullptr;
  std::vector<int> windows_;
  std::vector<std::unique_ptr<Attention>> attentions_;
  std::vector<float> x_, normed_, added_, qkv_, attended_, acted_, angles_, scales_;
  std::vector<int8_t> whole_;
  std::vector<int32_t> offsets_;
};

}  // namespace
}  // namespace herd

using namespace herd;

extern "C" {

// Columns of a strip: what a gated matrix was packed for, and part of what names the library.
int32_t herd_lanes() { return kLanes; }

// Bytes of the packed matrix, and of its scales.
int64_t herd_packed_bytes(int32_t kind, int32_t outputs, int32_t inputs) {
  const int64_t columns = static_cast<int64_t>(outputs + kPanel - 1) / kPanel * kPanel;
  if (kind == kInt8) return columns * ((inputs + kGroup - 1) / kGroup * kGroup);
  return columns * inputs * (kind == kFloat16 ? 2 : 4);
}

int64_t herd_scale_bytes(int32_t kind, int32_t outputs, int32_t inputs) {
  if (kind != kInt8) return 0;
  const int64_t columns = static_cast<int64_t>(outputs + kPanel - 1) / kPanel * kPanel;
  return columns * ((inputs + kGroup - 1) / kGroup) * 4;
}

// weight [outputs][inputs]. A gated matrix: see matrix.h; its halves must divide by the lanes.
void herd_pack(int32_t threads, int32_t kind, int32_t gated, const float* weight, int32_t outputs,
               int32_t inputs, void* data, float* scales) {
  const int panels = (outputs + kPanel - 1) / kPanel;
  const int groups = (inputs + kGroup - 1) / kGroup;
  const int64_t size = static_cast<int64_t>(inputs) * kPanel;
  Team team(threads);
  const auto work = [&](int panel) {
    if (kind == kInt8)
      pack_int8(weight, outputs, inputs, gated, panel,
                static_cast<uint8_t*>(data) + static_cast<int64_t>(panel) * groups * kGroup * kPanel,
                scales + static_cast<int64_t>(panel) * groups * kPanel);
    else if (kind == kFloat16)
      pack_floats(weight, outputs, inputs, gated, panel, static_cast<Half*>(data) + panel * size);
    else
      pack_floats(weight, outputs, inputs, gated, panel, static_cast<float*>(data) + panel * size);
  };
  team.run([&] {
    for (int panel; (panel = team.claim()) < panels;) work(panel);
  });
}

void* herd_stack_new(const Model* model, int32_t threads) { return new Stack(*model, threads); }

void herd_stack_delete(void* stack) { delete static_cast<Stack*>(stack); }

void herd_stack_run(void* stack, const Batch* batch, int32_t first, int32_t last) {
  static_cast<Stack*>(stack)->run(*batch, first, last);
}

// Of all passes so far, by part.
void herd_stack_seconds(const void* stack, double* seconds) {
  std::copy_n(static_cast<const Stack*>(stack)->seconds(), kPartCount, seconds);
}

// One layer's attention, for tests: query and out [rows][heads][dim].
void herd_attend(int32_t threads, const Span* spans, int32_t count, const AttentionShape* shape,
                 const Pool* pool, const float* query, float* out) {
  Team team(threads);
  Attention attention;
  attention.plan(spans, count, *shape);
  const int64_t width = static_cast<int64_t>(shape->heads) * shape->dim;
  team.run([&] { attention.run(team, *pool, *shape, query, width, out, width); });
}

// One product, for tests: x [rows][inputs] -> out [rows][outputs] (half as many if gated).
void herd_multiply(int32_t threads, const Matrix* matrix, int32_t activation, const float* x,
                   int32_t rows, float* out) {
  Team team(threads);
  const int inputs = matrix->inputs, groups = inputs / kGroup;
  std::vector<int8_t> values(static_cast<size_t>(rows) * inputs);
  std::vector<float> scales(static_cast<size_t>(rows) * (groups + 1));
  std::vector<int32_t> offsets(static_cast<size_t>(rows) * (groups + 1));
  if (matrix->kind == kInt8)
    for (int row = 0; row < rows; ++row)
      quantize_row(x + static_cast<int64_t>(row) * inputs, inputs, inputs,
                   values.data() + static_cast<int64_t>(row) * inputs, scales.data() + row * groups,
                   offsets.data() + row * groups);
  const int outputs = matrix->gated ? matrix->outputs / 2 : matrix->outputs;
  const Sink sink{out, outputs, matrix->outputs, matrix->gated != 0, activation};
  team.run([&] {
    multiply(team, *matrix, x, inputs, {values.data(), scales.data(), offsets.data()}, rows, sink);
  });
}

}  // extern "C"
