// Sizes that follow from a kernel's configuration.
#pragma once
#include <type_traits>

#include "swizzle.cuh"

namespace attnloom::cuda {

constexpr int kSlice = 16;  // keys that one warp copies at a time

// Config: static constexpr DType q, kv, out; int head_dim, head_dim_v, t_q[2], t_kv[2], warps, copiers, stages, blocks; bool wgmma[2].
template <class Config>
struct Shape : Config {
  static constexpr DType T = Config::q;
  static constexpr bool narrow = Config::kv == kE4M3 || Config::kv == kE5M2;
  static constexpr int key_bytes = narrow ? 1 : 2;
  static constexpr int slices = narrow ? 2 : 1;  // that a warp of few rows takes at a time
  static constexpr bool keys_ahead = false;  // see keys_ahead.cuh
  static constexpr int threads = 32 * Config::warps;
  static constexpr int all_threads = threads + 32 * Config::copiers;  // of a block
  static constexpr int team = 0;  // see sync()
  static constexpr int k_steps = Config::head_dim / 16;
  static constexpr int o_tiles = Config::head_dim_v / 8;
  using QTile = Tiled<Config::head_dim>;
  using KTile = Tiled<Config::head_dim>;
  using VTile = Tiled<Config::head_dim_v>;
  using StoredKTile = Tiled<Config::head_dim * key_bytes / 2>;  // rows as the cache has them
  using StoredVTile = Tiled<Config::head_dim_v * key_bytes / 2>;

  static constexpr int larger(int a, int b) { return a > b ? a : b; }
  static constexpr bool one_class = Config::t_q[0] == Config::t_q[1] && Config::t_kv[0] == Config::t_kv[1];
  static constexpr int max_t_kv = larger(Config::t_kv[0], Config::t_kv[1]);
  static constexpr int max_t_q = larger(Config::t_q[0], Config::t_q[1]);
};

// One tile class of a kernel. Few rows: every warp holds all of them and takes its own keys, and the states of the warps
// merge at the end. Many rows: every warp holds some of them, and all take the same keys.
template <class S, int C>
struct Class {
  static constexpr int t_q = S::t_q[C], t_kv = S::t_kv[C];
  static constexpr bool wgmma = S::wgmma[C];
  static constexpr bool split_keys = !wgmma && (t_q == 16 || (t_q == 32 && S::head_dim <= 128 && S::head_dim_v <= 128));
  static constexpr int m_tiles = split_keys ? t_q / 16 : (t_q + 16 * S::warps - 1) / (16 * S::warps);
  static constexpr int step = split_keys ? S::slices * kSlice : m_tiles == 2 || t_kv < 64 ? 32 : 64;  // keys of one step of the online softmax
  // Beside a second class the compiler runs out of registers for them.
  static constexpr bool q_in_registers = S::one_class && m_tiles * S::k_steps <= 8;

  // Of one warp: a stage; all stages, or the O~, m and d that take their place at the end.
  static constexpr int stage_bytes = S::slices * kSlice * (S::StoredKTile::row_bytes + S::StoredVTile::row_bytes);
  static constexpr int o_bytes = t_q * S::head_dim_v * 4;
  static constexpr int warp_bytes = S::larger(S::stages * stage_bytes, o_bytes + t_q * 8);
  using QTile = std::conditional_t<wgmma, Blocked<S::head_dim, t_q>, typename S::QTile>;
  using KTile = std::conditional_t<wgmma, Blocked<S::head_dim, t_kv>, typename S::KTile>;
  using VTile = std::conditional_t<wgmma, Blocked<S::head_dim_v, t_kv>, typename S::VTile>;
  static constexpr int q_bytes = QTile::bytes(t_q);
  static constexpr int kv_bytes = split_keys ? S::warps * warp_bytes : 2 * (KTile::bytes(t_kv) + VTile::bytes(t_kv));
  static constexpr int bytes = q_bytes + kv_bytes;

  static_assert(t_q % 16 == 0 && t_kv % kSlice == 0);
  static_assert(wgmma || m_tiles <= 2, "a warp holds at most 32 rows");
  static_assert(!wgmma || (t_q == 128 && t_kv == (S::copiers > 0 ? 128 : 64)));
};

}  // namespace attnloom::cuda
