// Sizes that follow from a kernel's configuration: what is padded to what.
#pragma once
#include "product.h"

namespace attnloom::host {

// Config: static constexpr DType q, kv, out; int head_dim, head_dim_v, t_q[2], t_kv[2].
template <class Config>
struct Shape : Config {
  using Arith = typename ArithOf<Config::q, Config::kv>::Type;
  using Lane = typename Arith::Lane;
  using Key = Stored<Config::kv>;

  static constexpr int larger(int a, int b) { return a > b ? a : b; }

  static constexpr int step = Arith::step;
  static constexpr int rows_at_once = 4;
  static constexpr int panel = kTileVectors * kLanes;  // keys of a packed panel of K

  static constexpr int d_lanes = (Config::head_dim + step - 1) / step;    // lanes of a row of q or K ...
  static constexpr int d_padded = round_up(d_lanes, kLanes);              // ... as stored
  static constexpr int d_floats = d_padded * step;
  static constexpr int v_vectors = (Config::head_dim_v + kLanes - 1) / kLanes;
  static constexpr int v_columns = v_vectors * kLanes;

  static constexpr int max_rows = round_up(larger(Config::t_q[0], Config::t_q[1]), rows_at_once);
  static constexpr int max_keys = round_up(larger(Config::t_kv[0], Config::t_kv[1]), panel);
};

}  // namespace attnloom::host
