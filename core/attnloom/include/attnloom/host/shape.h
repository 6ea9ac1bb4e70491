// Sizes that follow from a kernel's configuration: what is padded to what.
#pragma once
#include "few.h"

namespace attnloom::host {

// Config: static constexpr DType q, kv, out; int head_dim, head_dim_v, t_q[2], t_kv[2].
template <class Config>
struct Shape : Config {
  using Arith = typename ArithOf<Config::q, Config::kv>::Type;
  using Lane = typename Arith::Lane;
  using Key = Stored<Config::kv>;

  static constexpr int larger(int a, int b) { return a > b ? a : b; }

  // Rows are multiplied in blocks of 4 and 6: of the block that `left` rows begin with, and of all their blocks.
  static constexpr int block(int left) { return left > 8 || left == 5 || left == 6 ? rows_at_once : kFewRows; }
  static constexpr int whole_blocks(int rows) { return rows <= kFewRows ? kFewRows : round_up(rows, 2); }

  static constexpr int step = Arith::step;
  static constexpr int rows_at_once = 6;  // at most; kFewRows where that wastes less
  static constexpr int panel = kTileVectors * kLanes;  // keys of a packed panel of K

  static constexpr int d_lanes = (Config::head_dim + step - 1) / step;    // lanes of a row of q or K ...
  static constexpr int d_padded = round_up(d_lanes, kLanes);              // ... as stored
  static constexpr int d_floats = d_padded * step;
  static constexpr int v_vectors = (Config::head_dim_v + kLanes - 1) / kLanes;
  static constexpr int v_columns = v_vectors * kLanes;

  static constexpr int max_rows = whole_blocks(larger(Config::t_q[0], Config::t_q[1]));
  static constexpr int max_keys = round_up(larger(Config::t_kv[0], Config::t_kv[1]), panel);
};

}  // namespace attnloom::host
