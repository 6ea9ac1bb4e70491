// The words the scheduler's sources share: key tiles, q tiles, pieces of work, and how they are dealt to workers.
#pragma once
#include <attnloom/scheduler.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "loads.h"

namespace attnloom::scheduler {

constexpr int64_t kMaxItems = int64_t{1} << 22;
constexpr int64_t kMaxInt = INT32_MAX;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Thrown for input that cannot be planned; the text names both values.
struct Failure {
  char text[256];
};
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);

// A q tile: at most t_q packed rows of one block row, and the keys they see as up to two runs of key tiles. Key tiles
// are numbered over both runs, so that a cut never falls on keys that nobody sees. As an item it holds what its items
// have in common.
struct Tile : Item {
  int64_t unit;   // cost of the tile's keys for one kv head
  int32_t first;  // key tiles [first, last) are the tile's work
  int32_t last;
  int32_t begin[2];  // row ordinal of the first key of each run
  int32_t keys[2];   // keys of each run
  int32_t run_tiles;  // key tiles of the first run
  int32_t t_kv;
  bool whole;    // never split
  bool partial;  // its rows have other items too

  int64_t keys_before(int64_t tile) const {
    if (tile <= run_tiles) return std::min<int64_t>(tile * t_kv, keys[0]);
    return keys[0] + std::min<int64_t>((tile - run_tiles) * t_kv, keys[1]);
  }
  int64_t keys_of(int64_t from, int64_t to) const { return keys_before(to) - keys_before(from); }
  int64_t begin_of(int64_t tile) const {
    return tile < run_tiles || keys[1] == 0 ? begin[0] + tile * t_kv : begin[1] + (tile - run_tiles) * t_kv;
  }
  int64_t end_of(int64_t tile) const {
    if (tile <= run_tiles) return begin[0] + std::min<int64_t>(tile * t_kv, keys[0]);
    return begin[1] + std::min<int64_t>((tile - run_tiles) * t_kv, keys[1]);
  }
};

// What one item will do: heads and key tiles of one q tile.
struct Piece {
  int32_t tile;
  int32_t head0;
  int32_t heads;
  int32_t first;
  int32_t last;
  int32_t worker;
  int32_t part_row;  // -1: writes through
  int32_t merge_id;  // -1 until the merge lists are made
};

// The batch, cut to q tiles.
struct Job {
  const PlanInput* input;
  std::vector<Tile> tiles;  // by level, block row, token, key
  std::vector<int32_t> rows_of_token;
  int64_t total;      // cost of all tiles, all heads, unsplit
  int64_t keys;       // of all tiles, one head
  int64_t row_keys;   // keys of all block rows, seen or not
  int64_t min_tiles[2];  // key tiles of the smallest piece worth splitting off
  int32_t most_tokens[2];  // of a tile
  bool prefill;       // some block row has more rows than one short tile
  bool read_once;     // every key is, and all are few: items say so

  int64_t cost(const Tile& tile, int64_t from, int64_t to) const {
    const TileClass& c = input->classes[tile.tile_class];
    return c.alpha + key_cost(tile) * tile.keys_of(from, to);
  }
  int64_t key_cost(const Tile& tile) const {
    const TileClass& c = input->classes[tile.tile_class];
    return c.beta + c.row_beta * rows(tile);
  }
  int64_t rows(const Tile& tile) const { return int64_t{tile.q_tokens} * input->group; }
  bool divisible(const Tile& tile) const {
    return !tile.whole && tile.last - tile.first >= 2 * min_tiles[tile.tile_class];
  }
};

// One way to deal the batch to the workers. Pieces lie by tile, head, key.
struct Partition {
  std::vector<Piece> pieces;
  std::vector<int32_t> queue_order;   // pieces as workers take them; empty: as they lie
  std::vector<int32_t> queue_length;  // pieces of each worker
  std::vector<int32_t> partials;      // pieces that do not write through
  int64_t busiest;
  int64_t total;
  int64_t part_rows;
  int64_t makespan;
  bool parts_of_one_token;  // every piece that does not write through has one query token
};

// One chunk of a tile, for every head.
struct Entry {
  int64_t cost;
  int32_t tile;
  int32_t first;
  int32_t last;
  int32_t chunks;  // of its tile
  int32_t piece;   // that holds the first heads of it
};

struct Partitioners {
  Partition cut;
  Partition longest;
  std::vector<Entry> entries;
  Loads loads;
};

// The plan as bytes, in a buffer that grows and is reused.
struct Buffer {
  char* data = nullptr;
  int64_t capacity = 0;
  void reserve(int64_t bytes);
  ~Buffer();
};

struct EmitScratch {
  std::vector<Item*> next_item;  // of each worker
  std::vector<int32_t> partials;  // in KV order for every token
  std::vector<int32_t> slot_of_token;
  std::vector<int32_t> tokens;
  std::vector<int32_t> counts;  // [slot, qo head]: parts, then the place of the next part
  std::vector<int32_t> entry;   // [slot, qo head]: merge entry
  std::vector<int32_t> seen_up_to;
};

void check_input(const PlanInput& input);
void collect_tiles(const PlanInput& input, Job& job);
void restart(Partition& out, int32_t workers);
// Of all rows that are made of parts, for the worker that is done last.
int64_t merge_cost(const PlanInput& input, int64_t part_rows);
void cut_contiguously(const Job& job, Partition& out);
// The better partition; `kind` says which it is.
Partition& divide(const Job& job, Partitioners& scratch, Partitioner& kind);
PlanSummary write_plan(const Job& job, Partition& partition, EmitScratch& scratch, Buffer& buffer);

}  // namespace attnloom::scheduler
