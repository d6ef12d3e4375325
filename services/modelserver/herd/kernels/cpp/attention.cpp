#include "attention.h"

#include <algorithm>

namespace herd {
namespace {

constexpr float kLowest = -1e30f;
constexpr float kHidden = -__builtin_inff();

// The running softmax of some query rows over one segment.
struct State {
  float* highest;  // [rows]
  float* total;    // [rows]
  float* sums;     // [rows][dim]
};

void begin(State state, int rows, int dim) {
  for (int r = 0; r < rows; ++r) state.highest[r] = kLowest, state.total[r] = 0.0f;
  std::fill(state.sums, state.sums + static_cast<int64_t>(rows) * dim, 0.0f);
}

// scores [rows][32] of one block, of which `tokens` are there.
template <class E>
void score(const float* query, int rows, int dim, const E* keys, float* scores) {
  for (int i = 0; i < parts_of(rows, kMostRows); ++i) {
    const Part own = part(rows, kMostRows, i);
    with_rows(own.count, [&](auto count) {
      constexpr int kRows = decltype(count)::value;
      for (int at = 0; at < kPanel; at += kStrip)
        tile<kRows, 1, 0>(query + static_cast<int64_t>(own.first) * dim, dim, keys + at, kPanel, 0,
                       dim, nullptr, [&](int, int m, Floats left, Floats right) {
                         float* to = scores + (own.first + m) * kPanel + at;
                         store(to, left);
                         store(to + kLanes, right);
                       });
    });
  }
}

// Turns scores into weights and makes the state ready for their values. shrink [rows].
void weigh(float* scores, int rows, State state, float* shrink) {
  for (int r = 0; r < rows; ++r) {
    float* own = scores + r * kPanel;
    Floats most = load(own);
    for (int at = kLanes; at < kPanel; at += kLanes) most = largest(most, load(own + at));
    const float before = state.highest[r];
    const float in_block = largest(most);
    const float now = in_block > before ? in_block : before;
    Floats added = {};
    for (int at = 0; at < kPanel; at += kLanes) {
      const Floats weights = exponential(load(own + at) - now);
      store(own + at, weights);
      added += weights;
    }
    shrink[r] = exponential(all(before - now))[0];
    state.highest[r] = now;
    state.total[r] = state.total[r] * shrink[r] + sum(added);
  }
}

// sums = sums * shrink + weights [rows][32] x values [tokens][dim].
template <class E>
void mix(const float* weights, const float* shrink, int rows, int dim, const E* values, int tokens,
         float* sums) {
  for (int i = 0; i < parts_of(rows, kMostRows); ++i) {
    const Part own = part(rows, kMostRows, i);
    with_rows(own.count, [&](auto count) {
      constexpr int kRows = decltype(count)::value;
      for (int at = 0; at < dim; at += kStrip)
        tile<kRows, 1, 0>(weights + own.first * kPanel, kPanel, values + at, dim, 0, tokens, nullptr,
                       [&](int, int m, Floats left, Floats right) {
                         const int r = own.first + m;
                         float* to = sums + static_cast<int64_t>(r) * dim + at;
                         store(to, load(to) * shrink[r] + left);
                         store(to + kLanes, load(to + kLanes) * shrink[r] + right);
                       });
    });
  }
}

void prefetch_block(const void* block, int64_t bytes) {
  const char* at = static_cast<const char*>(block);
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, 2);
}

// A thread's working memory, grown when needed.
struct Scratch {
  std::vector<float> query, scores, shrink, highest, total, sums, all_highest, all_total, all_sums;

  void fit(int rows, int dim) {
    const size_t wide = static_cast<size_t>(rows) * dim;
    if (query.size() >= wide && shrink.size() >= static_cast<size_t>(rows)) return;
    query.resize(wide), sums.resize(wide), all_sums.resize(wide);
    scores.resize(static_cast<size_t>(rows) * kPanel);
    for (auto* each : {&shrink, &highest, &total, &all_highest, &all_total}) each->resize(rows);
  }
};

Scratch& scratch() {
  thread_local Scratch own;
  return own;
}

// The rows' states of one segment after those before it: sums of both, as if of one softmax.
inline void join(float* highest, float* total, float* sums, float own_highest, float own_total,
                 const float* own_sums, int dim) {
  const float most = own_highest > *highest ? own_highest : *highest;
  const float keep = exponential(all(*highest - most))[0];
  const float take = exponential(all(own_highest - most))[0];
  *highest = most;
  *total = *total * keep + own_total * take;
  for (int i = 0; i < dim; i += kLanes) store(sums + i, load(sums + i) * keep + load(own_sums + i) * take);
}

// Hides what a row at `position` must not see of the block that begins at `first`.
inline void hide(float* scores, int64_t first, int64_t position, int window) {
  const int64_t end = position + 1 - first;  // columns from here on come after it
  for (int64_t t = end < 0 ? 0 : end; t < kPanel; ++t) scores[t] = kHidden;
  const int64_t begin = window ? position + 1 - window - first : 0;
  for (int64_t t = 0; t < begin && t < kPanel; ++t) scores[t] = kHidden;
}

}  // namespace

// Where a row of one token begins to see.
static int first_segment(const Span& span, const AttentionShape& shape) {
  const int64_t hidden = shape.window ? span.context - shape.window : 0;
  return hidden > 0 ? static_cast<int>(hidden / kSegment) : 0;
}

void Attention::plan(const Span* spans, int count, const AttentionShape& shape) {
  spans_ = spans, count_ = count, heads_ = shape.heads;
  part_size_ = shape.dim + kLanes;  // sums keep their alignment
  walks_.clear(), members_.clear(), single_.clear();
  parts_at_.assign(count, 0);
  int64_t parts = 0;
  int64_t longest = 0;
  for (int i = 0; i < count; ++i) {
    if (spans[i].count == 1) {
      single_.push_back(i);
      const int64_t segments = (spans[i].context + kSegment - 1) / kSegment;
      parts_at_[i] = parts;
      parts += segments * shape.heads * part_size_;
      longest = std::max(longest, segments);
    } else {
      for (int token = 0; token < spans[i].count; token += kTileTokens) {
        members_.push_back(i);
        walks_.push_back({static_cast<int>(members_.size()) - 1, 1, -1, token});
      }
    }
  }
  if (static_cast<int64_t>(parts_.size()) < parts) parts_.resize(parts);
  // The chunks' last tiles have most to do: they come first, and the small walks fill the ends.
  std::stable_sort(walks_.begin(), walks_.end(), [&](const Walk& a, const Walk& b) {
    const Span &x = spans[members_[a.first]], &y = spans[members_[b.first]];
    return x.context - x.count + a.token > y.context - y.count + b.token;
  });
  std::vector<int> there;
  for (int64_t segment = 0; segment < longest; ++segment) {
    there.clear();
    for (int i : single_)
      if (spans[i].context > segment * kSegment && first_segment(spans[i], shape) <= segment)
        there.push_back(i);
    const auto blocks_in = [&](int i) {
      const int64_t left = spans[i].context - segment * kSegment;
      return static_cast<int>(std::min<int64_t>(kSegmentBlocks, (left + kPanel - 1) / kPanel));
    };
    const auto less = [&](int a, int b) {
      const int64_t *x = spans[a].table + segment * kSegmentBlocks,
                    *y = spans[b].table + segment * kSegmentBlocks;
      return std::lexicographical_compare(x, x + blocks_in(a), y, y + blocks_in(b));
    };
    std::stable_sort(there.begin(), there.end(), less);
    for (size_t at = 0; at < there.size();) {
      size_t end = at + 1;
      while (end < there.size() && !less(there[at], there[end])) ++end;
      const int first = static_cast<int>(members_.size());
      members_.insert(members_.end(), there.begin() + at, there.begin() + end);
      walks_.push_back({first, static_cast<int>(end - at), static_cast<int>(segment), 0});
      at = end;
    }
  }
}

float* Attention::part_of(int span, int segment, int head) {
  return parts_.data() + parts_at_[span] + (static_cast<int64_t>(segment) * heads_ + head) * part_size_;
}

template <class E>
void Attention::walk_shared(const Walk& walk, int head, const Pool& pool,
                            const AttentionShape& shape, const float* query, int64_t ldq) {
  const int dim = shape.dim, group = shape.heads / shape.kv_heads, rows = walk.count * group;
  Scratch& own = scratch();
  own.fit(rows, dim);
  const State state{own.highest.data(), own.total.data(), own.sums.data()};
  begin(state, rows, dim);
  int64_t most = 0;
  for (int m = 0; m < walk.count; ++m) {
    const Span& span = spans_[members_[walk.first + m]];
    most = std::max(most, span.context);
    for (int g = 0; g < group; ++g) {
      const float* from = query + span.row * ldq + (head * group + g) * dim;
      float* to = own.query.data() + (m * group + g) * dim;
      for (int i = 0; i < dim; ++i) to[i] = from[i] * shape.scale;
    }
  }
  const int64_t* table = spans_[members_[walk.first]].table;
  const int64_t size = static_cast<int64_t>(kPanel) * dim;
  const E *keys = static_cast<const E*>(pool.keys), *values = static_cast<const E*>(pool.values);
  const int64_t from = static_cast<int64_t>(walk.segment) * kSegment;
  const int64_t end = std::min(most, from + kSegment);
  for (int64_t first = from; first < end; first += kPanel) {
    const int64_t at = (table[first / kPanel] * shape.kv_heads + head) * size;
    if (first + kPanel < end) {
      const int64_t next = (table[first / kPanel + 1] * shape.kv_heads + head) * size;
      prefetch_block(keys + next, size * sizeof(E));
      prefetch_block(values + next, size * sizeof(E));
    }
    score(own.query.data(), rows, dim, keys + at, own.scores.data());
    for (int m = 0; m < walk.count; ++m) {
      const int64_t position = spans_[members_[walk.first + m]].context - 1;
      if (position >= first + kPanel - 1 && !shape.window) continue;
      for (int g = 0; g < group; ++g)
        hide(own.scores.data() + (m * group + g) * kPanel, first, position, shape.window);
    }
    weigh(own.scores.data(), rows, state, own.shrink.data());
    const int tokens = static_cast<int>(std::min<int64_t>(kPanel, end - first));
    mix(own.scores.data(), own.shrink.data(), rows, dim, values + at, tokens, state.sums);
  }
  for (int m = 0; m < walk.count; ++m)
    for (int g = 0; g < group; ++g) {
      const int r = m * group + g;
      float* part = part_of(members_[walk.first + m], walk.segment, head * group + g);
      std::copy_n(state.sums + static_cast<int64_t>(r) * dim, dim, part);
      part[dim] = state.highest[r], part[dim + 1] = state.total[r];
    }
}

void Attention::add_up(int index, const AttentionShape& shape, float* out, int64_t ldo) {
  const Span& span = spans_[index];
  const int segments = static_cast<int>((span.context + kSegment - 1) / kSegment);
  for (int head = 0; head < shape.heads; ++head) {
    float highest = kLowest, total = 0.0f;
    float* to = out + span.row * ldo + head * shape.dim;
    std::fill(to, to + shape.dim, 0.0f);
    for (int segment = first_segment(span, shape); segment < segments; ++segment) {
      const float* part = part_of(index, segment, head);
      join(&highest, &total, to, part[shape.dim], part[shape.dim + 1], part, shape.dim);
    }
    for (int i = 0; i < shape.dim; ++i) to[i] /= total;
  }
}

template <class E>
void Attention::walk_chunk(const Walk& walk, int head, const Pool& pool,
                           const AttentionShape& shape, const float* query, int64_t ldq,
                           float* out, int64_t ldo) {
  const Span& span = spans_[members_[walk.first]];
  const int dim = shape.dim, group = shape.heads / shape.kv_heads;
  const int tokens = static_cast<int>(std::min<int64_t>(kTileTokens, span.count - walk.token));
  const int rows = tokens * group;
  Scratch& own = scratch();
  own.fit(rows, dim);
  for (int t = 0; t < tokens; ++t)
    for (int g = 0; g < group; ++g) {
      const float* from = query + (span.row + walk.token + t) * ldq + (head * group + g) * dim;
      float* to = own.query.data() + (t * group + g) * dim;
      for (int i = 0; i < dim; ++i) to[i] = from[i] * shape.scale;
    }
  const int64_t position = span.context - span.count + walk.token;  // of the tile's first token
  const int64_t end = position + tokens;
  const int64_t begins = shape.window ? std::max<int64_t>(0, position + 1 - shape.window) : 0;
  const int64_t size = static_cast<int64_t>(kPanel) * dim;
  const E *keys = static_cast<const E*>(pool.keys), *values = static_cast<const E*>(pool.values);
  const State whole{own.all_highest.data(), own.all_total.data(), own.all_sums.data()};
  const State state{own.highest.data(), own.total.data(), own.sums.data()};
  begin(whole, rows, dim);
  for (int64_t segment = begins / kSegment * kSegment; segment < end; segment += kSegment) {
    begin(state, rows, dim);
    const int64_t until = std::min(end, segment + kSegment);
    for (int64_t first = std::max(segment, begins / kPanel * kPanel); first < until; first += kPanel) {
      const int64_t at = (span.table[first / kPanel] * shape.kv_heads + head) * size;
      score(own.query.data(), rows, dim, keys + at, own.scores.data());
      const bool hidden = shape.window ? true : first + kPanel - 1 > position;
      for (int t = 0; hidden && t < tokens; ++t)
        for (int g = 0; g < group; ++g)
          hide(own.scores.data() + (t * group + g) * kPanel, first, position + t, shape.window);
      weigh(own.scores.data(), rows, state, own.shrink.data());
      const int there = static_cast<int>(std::min<int64_t>(kPanel, end - first));
      mix(own.scores.data(), own.shrink.data(), rows, dim, values + at, there, state.sums);
    }
    for (int r = 0; r < rows; ++r)
      join(whole.highest + r, whole.total + r, whole.sums + static_cast<int64_t>(r) * dim,
           state.highest[r], state.total[r], state.sums + static_cast<int64_t>(r) * dim, dim);
  }
  for (int t = 0; t < tokens; ++t)
    for (int g = 0; g < group; ++g) {
      const int r = t * group + g;
      float* to = out + (span.row + walk.token + t) * ldo + (head * group + g) * dim;
      for (int i = 0; i < dim; ++i)
        to[i] = whole.sums[static_cast<int64_t>(r) * dim + i] / whole.total[r];
    }
}

void Attention::run(Team& team, const Pool& pool, const AttentionShape& shape, const float* query,
                    int64_t ldq, float* out, int64_t ldo) {
  const int kv_heads = shape.kv_heads;
  const int pieces = static_cast<int>(walks_.size()) * kv_heads;
  for (int i; (i = team.claim()) < pieces;) {
    const Walk& walk = walks_[i / kv_heads];
    const int head = i % kv_heads;
    if (walk.segment < 0) {
      if (pool.half)
        walk_chunk<Half>(walk, head, pool, shape, query, ldq, out, ldo);
      else
        walk_chunk<float>(walk, head, pool, shape, query, ldq, out, ldo);
    } else {
      if (pool.half)
        walk_shared<Half>(walk, head, pool, shape, query, ldq);
      else
        walk_shared<float>(walk, head, pool, shape, query, ldq);
    }
  }
  if (single_.empty()) return;
  team.barrier();
  const int spans = static_cast<int>(single_.size());
  for (int i; (i = team.claim()) < spans;) add_up(single_[i], shape, out, ldo);
}

}  // namespace herd
