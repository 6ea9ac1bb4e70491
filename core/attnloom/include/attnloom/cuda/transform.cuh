// Row functors over rows in shared memory, and fp8 rows made into 16-bit ones, in place.
#pragma once
#include "loader.cuh"
#include "narrow.cuh"
#include "row_map.cuh"

namespace attnloom::cuda {

// Makes fp8 rows [0, 16) at `memory` into rows of T, in place, by one warp: all is read before anything is written.
template <DType T, DType Stored, int D, class Tile>
ATTNLOOM_DEVICE void widen_rows(char* memory) {
  constexpr int pieces = D / 16, all = kSlice * pieces, turns = (all + 31) / 32;
  const int lane = lane_id();
  uint4 raw[turns];
#pragma unroll
  for (int i = 0; i < turns; i++) {
    const int n = lane + 32 * i;
    if (all % 32 == 0 || n < all) raw[i] = *reinterpret_cast<const uint4*>(memory + Tile::at(n / pieces, pieces + n % pieces));
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < turns; i++) {
    const int n = lane + 32 * i, row = n / pieces, piece = n % pieces * 2;
    if (all % 32 != 0 && n >= all) break;
    uint4 first, second;
    widen<T, Stored>(raw[i].x, first.x, first.y);
    widen<T, Stored>(raw[i].y, first.z, first.w);
    widen<T, Stored>(raw[i].z, second.x, second.y);
    widen<T, Stored>(raw[i].w, second.z, second.w);
    *reinterpret_cast<uint4*>(memory + Tile::at(row, piece)) = first;
    *reinterpret_cast<uint4*>(memory + Tile::at(row, piece + 1)) = second;
  }
  __syncwarp();
}

// How the lanes of a warp take rows of T or fp8 in shared memory that functors see. Rotated: so many elements turn, and their
// halves meet in a lane if it holds few enough; or 0.
template <DType T, DType Stored, int D, class Tile, int Rotated>
struct SharedRows {
  static constexpr bool narrow = Stored == kE4M3 || Stored == kE5M2;
  static constexpr int dims = D, half = Rotated > 0 && Rotated % (narrow || D > 128 ? 64 : 32) == 0 ? Rotated / 2 : D / 2;

  // Whether `lanes` with units of `width` elements share a row evenly, and halves of a pair meet in one.
  static constexpr bool fits(int lanes, int width) { return D % (lanes * width) == 0 && half % (lanes * width) == 0; }

  static constexpr int width = narrow || fits(16, 4) || (D <= 128 && half == 32 && fits(8, 4)) ? 4 : 2;
  // As many lanes as fit, but all of them, or of 16-bit rows in narrow units more than 8, only where registers are short.
  static constexpr int lanes = D == 256 && fits(32, width)                      ? 32
                               : (width == 4 || D > 128) && fits(16, width) ? 16
                               : fits(8, width)                             ? 8
                                                                            : 4;
  // Rows that the lanes take together have their pieces swizzled apart; so many follow each other in a lane.
  static constexpr int run = lanes * width / 8;
  static constexpr int passes = kSlice * lanes / 32;
  // Whether a lane finds angles of rows from the row before.
  static constexpr bool turns = 2 * half == Rotated && run > 2 && half / lanes <= 4;
  using Map = SpreadMap<D, lanes, width>;
  static_assert(Map::units % lanes == 0);

  // What a lane has of a row as it is stored.
  using Unit = std::conditional_t<narrow || width == 2, uint32_t, uint2>;
  struct Raw {
    Unit unit[Map::held];
  };

  char* memory;

  static ATTNLOOM_DEVICE int row(int pass) { return run * (lane_id() / lanes) + pass % run + pass / run * 8; }

  ATTNLOOM_DEVICE Raw load(int pass) const {
    Raw raw;
#pragma unroll
    for (int i = 0; i < Map::held; i++) raw.unit[i] = *at<Unit>(pass, i, narrow ? D / 16 : 0);
    return raw;
  }

  static ATTNLOOM_DEVICE void widen_row(const Raw& raw, float (&x)[Map::held][width]) {
#pragma unroll
    for (int i = 0; i < Map::held; i++) {
      if constexpr (narrow) {
        uint32_t low, high;
        widen<kF16, Stored>(raw.unit[i], low, high);
        unpack<kF16>(low, x[i][0], x[i][1]);
        unpack<kF16>(high, x[i][2], x[i][3]);
      } else if constexpr (width == 4) {
        unpack<T>(raw.unit[i].x, x[i][0], x[i][1]);
        unpack<T>(raw.unit[i].y, x[i][2], x[i][3]);
      } else {
        unpack<T>(raw.unit[i], x[i][0], x[i][1]);
      }
    }
  }

  ATTNLOOM_DEVICE void store(const float (&x)[Map::held][width], int pass) const {
    if constexpr (narrow) __syncwarp();  // until all lanes have what stood here
#pragma unroll
    for (int i = 0; i < Map::held; i++) {
      if constexpr (width == 4) *at<uint2>(pass, i) = {pack<T>(x[i][0], x[i][1]), pack<T>(x[i][2], x[i][3])};
      else *at<uint32_t>(pass, i) = pack<T>(x[i][0], x[i][1]);
    }
  }

 private:
  // Where the lane's i-th unit lies, as a W, in rows that begin with piece `first`.
  template <class W>
  ATTNLOOM_DEVICE W* at(int pass, int i, int first = 0) const {
    constexpr int size = sizeof(W);
    if constexpr (Tile::swizzled && lanes * size / 16 == run) {
      // Neither adding a pass's rows nor a unit's pieces carries.
      const int corner = Tile::at(row(0), lane_id() % lanes * size / 16) + lane_id() % lanes * size % 16;
      const int beyond = Tile::at(pass / run * 8, run * i & ~7) + pass % run * Tile::row_bytes;
      return reinterpret_cast<W*>(memory + (corner ^ ((pass % run ^ run * i) & 7) * 16) + beyond);
    } else {
      const int byte = (lane_id() % lanes + lanes * i) * size;
      return reinterpret_cast<W*>(memory + Tile::at(row(pass), first + byte / 16) + byte % 16);
    }
  }
};

// Rows [0, 16) at `memory` through f(row, view), which sees 32-bit floats; by one warp.
template <class Rows, class F>
ATTNLOOM_DEVICE void transform_rows(char* memory, F f) {
  const Rows rows{memory};
  constexpr int at_once = Rows::narrow || Rows::dims > 192 ? 1 : 2;  // passes that share what a functor loads by column, as registers allow
#pragma unroll at_once
  for (int pass = 0; pass < Rows::passes; pass++) {
    Row<typename Rows::Map> view;
    Rows::widen_row(rows.load(pass), view.x.at);
    f(Rows::row(pass), view);
    rows.store(view.x.at, pass);
  }
  __syncwarp();
}

// The same where the rows' tokens follow each other.
template <class Rows, class F>
ATTNLOOM_DEVICE void transform_following_rows(char* memory, F f) {
  using Map = typename Rows::Map;
  const Rows rows{memory};
  typename Rows::Raw raw = rows.load(0);
#pragma unroll
  for (int first = 0; first < Rows::passes; first += Rows::run) {
    Turn<Map> turn;
    const auto take = [&]<bool After>(int pass) {
      Row<TurnMap<Map, After>> view{{{}, turn}};
      Rows::widen_row(raw, view.x.at);
      if (pass + 1 < Rows::passes) raw = rows.load(pass + 1);
      f(Rows::row(pass), view);
      rows.store(view.x.at, pass);
    };
    take.template operator()<false>(first);
#pragma unroll
    for (int n = 1; n < Rows::run; n++) take.template operator()<true>(first + n);
  }
  __syncwarp();
}

// What the transforms of an item's keys are given.
template <class V>
struct KeySite {
  int request, kv_head, qo_len, kv_len;
  float k_scale, v_scale;

  // Of key `key` (or the item's last one if there are fewer); `noted`: where the position stands if it is listed.
  ATTNLOOM_DEVICE Site at(const Positions& positions, int key, const int* noted) const {
    const int index = positions.item.kv_start + min(key, positions.last());
    return {request, -1, kv_head, -1, index, 0, positions.listed ? *noted : index, qo_len, kv_len};
  }
};

// The row transforms of 16 keys of an item, from ordinal `first` on.
template <class V>
struct SliceTransforms {
  const typename V::Params& params;
  const KeySite<V>& site;
  const Positions& positions;
  int first;
  const int* noted;  // where the positions stand if they are listed

  // Whether the keys follow each other.
  ATTNLOOM_DEVICE bool consecutive() const {
    return !positions.listed || !__any_sync(~0u, noted[lane_id() % kSlice] != noted[0] + lane_id() % kSlice);
  }

  template <bool Scaled = true, class Row>
  ATTNLOOM_DEVICE void key(int j, Row& row) const {
    if constexpr (Scaled) scale(row, site.k_scale);
    V::key_transform(params, row, site.at(positions, first + j, noted + j));
  }
  // Zeros where no row sees the key.
  template <class Row, class Seen>
  ATTNLOOM_DEVICE void value(int j, Row& row, const Seen& seen) const {
    scale(row, site.v_scale);
    V::value_transform(params, row, site.at(positions, first + j, noted + j));
    if (!seen.sees(first + j)) row.each([](int, float& x) { x = 0.0f; });
  }

 private:
  template <class Row>
  static ATTNLOOM_DEVICE void scale(Row& row, float factor) {
    if (factor != 1.0f) row.each([factor](int, float& x) { x *= factor; });
  }
};

template <class S, class V, class Tile>
using KeyRows = SharedRows<S::T, S::kv, S::head_dim, Tile, V::rotated_dims>;

// The 16 keys of `transforms`, which lie at `memory`, through their transforms; by one warp.
template <class S, class V, class Tile>
ATTNLOOM_DEVICE void transform_keys(char* memory, const SliceTransforms<V>& transforms) {
  using Rows = KeyRows<S, V, Tile>;
  if constexpr (Rows::turns) {
    if ((S::narrow || transforms.site.k_scale == 1.0f) && transforms.consecutive())
      return transform_following_rows<Rows>(memory, [&](int row, auto& view) { transforms.template key<S::narrow>(row, view); });
  }
  transform_rows<Rows>(memory, [&](int row, auto& view) { transforms.key(row, view); });
}

// Makes the 16 keys, or values, from ordinal `first` on ready for the products, in shared memory, after their copy has
// come in.
template <class S, class V, class Tile>
ATTNLOOM_DEVICE void prepare_keys(char* memory, const typename V::Params& params, const KeySite<V>& site,
                                  const Positions& positions, int first, const int* noted) {
  const SliceTransforms<V> transforms{params, site, positions, first, noted};
  if constexpr (V::has_key_transform) transform_keys<S, V, Tile>(memory, transforms);
  else if constexpr (S::narrow) widen_rows<S::T, S::kv, S::head_dim, Tile>(memory);
}
template <class S, class V, class Tile, class Seen>
ATTNLOOM_DEVICE void prepare_values(char* memory, const typename V::Params& params, const KeySite<V>& site,
                                    const Positions& positions, int first, const int* noted, const Seen& seen) {
  const SliceTransforms<V> transforms{params, site, positions, first, noted};
  if constexpr (V::has_value_transform)
    transform_rows<SharedRows<S::T, S::kv, S::head_dim_v, Tile, 0>>(
        memory, [&](int row, auto& view) { transforms.value(row, view, seen); });
  else if constexpr (S::narrow) widen_rows<S::T, S::kv, S::head_dim_v, Tile>(memory);
}

}  // namespace attnloom::cuda
