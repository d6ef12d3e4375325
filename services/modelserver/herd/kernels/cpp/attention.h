// Attention of a step over the paged KV pool: decoding rows and chunks of prompts alike.
//
// Of each layer the pool has, for a block and a KV head, keys [dim][32] and values [32][dim]: both
// products are `tile`s. A row walks its context in segments of 256 positions, with an online
// softmax (Milakov and Gimelshein, 2018) over the blocks of a segment, and adds up its segments in
// order. So its numbers depend on its own context alone; who else reads a segment, and which thread
// does, decides only how often it is read from memory: once for all rows that share its blocks.

#pragma once

#include "team.h"
#include "tile.h"

namespace herd {

constexpr int kSegmentBlocks = 8;
constexpr int kSegment = kSegmentBlocks * kPanel;
constexpr int kTileTokens = 16;  // of a chunk, that walk a context together

// A sequence's tokens of this step: rows `row` to `row + count`, positions `context - count` to
// `context`; `table` names the blocks of its context.
struct Span {
  int64_t row;
  int64_t count;
  int64_t context;
  const int64_t* table;
};

struct AttentionShape {
  int32_t heads, kv_heads, dim;
  int32_t window;  // a position sees itself and the window - 1 before it; 0: all before it
  float scale;
};

// One layer's part of the pool, of type E.
struct Pool {
  void* keys;    // [blocks][kv_heads][dim][32]
  void* values;  // [blocks][kv_heads][32][dim]
  int32_t half;  // whether E is float16
};

class Attention {
 public:
  // Spans of one token share the reading of the segments that they have in common.
  void plan(const Span* spans, int count, const AttentionShape& shape);

  // By the whole team, with a barrier inside and none after it. query and out: [rows][heads][dim].
  void run(Team& team, const Pool& pool, const AttentionShape& shape, const float* query,
           int64_t ldq, float* out, int64_t ldo);

 private:
  // A unit of work: rows that walk one segment (or, of a chunk, all segments) together.
  struct Walk {
    int first, count;  // of members_: spans; or a tile of the tokens of one span
    int segment;       // -1: all
    int token;         // of a chunk: the first of the tile
  };

  template <class E>
  void walk_shared(const Walk& walk, int head, const Pool& pool, const AttentionShape& shape,
                   const float* query, int64_t ldq);
  template <class E>
  void walk_chunk(const Walk& walk, int head, const Pool& pool, const AttentionShape& shape,
                  const float* query, int64_t ldq, float* out, int64_t ldo);
  void add_up(int span, const AttentionShape& shape, float* out, int64_t ldo);
  float* part_of(int span, int segment, int head);

  const Span* spans_ = nullptr;
  int count_ = 0;
  std::vector<Walk> walks_;
  std::vector<int> members_;
  std::vector<int> single_;            // spans of one token
  std::vector<int64_t> parts_at_;      // per span: where its partial results begin
  std::vector<float> parts_;           // [segment][head][dim + 2]: sums, then highest and total
  int64_t part_size_ = 0;
  int heads_ = 0;
};

}  // namespace herd
