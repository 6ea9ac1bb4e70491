// What two teams of a block share: the copiers, who find units and copy their queries and keys, and those who compute.
#pragma once
#include "boxes.cuh"
#include "key_tiles.cuh"
#include "wgmma.cuh"

namespace attnloom::cuda {

// Some of the warps that copy, as a team of its own.
template <class S, int Warps>
struct Copying : S {
  static constexpr int warps = Warps, threads = 32 * Warps, team = 1;
};

enum class Work { kTall, kShort, kEnd };

// What copiers have found: a unit of many rows, an item of few rows, or that there is nothing left.
template <class S, class V>
struct Found {
  using R = Rows<V, S::max_t_q>;
  using Sight = Seen<R::slots>;

  alignas(16) Item item;
  R rows;
  Facts<V> facts;
  Merging merging;
  Route route;
  int head, count;  // kv head, packed rows
  Work work;
  Sight whole, of[2];  // what the unit's rows see, and those of each warpgroup
};

// Units that are found at a time: one is written, one is multiplied, and of one the first keys are copied.
constexpr int kFound = 3;
// Tiles whose listed positions are kept: some rows may weigh one when others wait for the next but one.
constexpr int kNotedTiles = 4;

// Where the tiles of units of many rows lie in a block's memory: queries, keys, values, by how many came before.
template <class S, class V, int C>
struct Places {
  using Tile = Class<S, C>;

  // Bytes of shared memory that a block of Hopper may have, and that static memory besides found units takes at most.
  static constexpr int kShared = 227 * 1024, kRest = 12 * 1024;
  // A unit's queries come in while those before are used, where there is room for both.
  static constexpr int kQueries = Tile::bytes + Tile::q_bytes + kFound * sizeof(Found<S, V>) + kRest <= kShared ? 2 : 1;
  static constexpr int bytes = Tile::bytes + (kQueries - 1) * Tile::q_bytes;

  char* memory;

  ATTNLOOM_DEVICE char* queries(uint32_t n) const { return memory + n % kQueries * Tile::q_bytes; }
  ATTNLOOM_DEVICE char* keys(uint32_t n) const { return memory + kQueries * Tile::q_bytes + n % 2 * kKeyBytes; }
  ATTNLOOM_DEVICE char* values(uint32_t n) const { return memory + kQueries * Tile::q_bytes + 2 * kKeyBytes + n % 2 * kValueBytes; }

 private:
  static constexpr int kKeyBytes = Tile::KTile::bytes(Tile::t_kv), kValueBytes = Tile::VTile::bytes(Tile::t_kv);
};

// How far a warp that computes has come: it stands in shared memory, for want of registers.
template <int Queries>
struct Progress {
  Cursor<kFound> units;
  Cursor<Queries> queries;
  Cursor<2> tiles;
};

// Who waits for whom.
template <int Queries>
struct Pipeline {
  Ring<kFound> units;
  Ring<Queries> queries;
  Ring<2> keys, values;

  // Of so many warps that compute. Two find units, which a warp that copies keys and one that copies values read too.
  ATTNLOOM_DEVICE void make(int warps) {
    // All lanes arrive for units: they write and read the rows, one by one.
    units.make(32 * 2, 32 * (warps + 2)), queries.make(2, warps), keys.make(1, warps), values.make(1, warps);
  }
};

}  // namespace attnloom::cuda
