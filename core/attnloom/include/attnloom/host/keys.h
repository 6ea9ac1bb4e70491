// A tile of keys and values, transformed and packed for the products.
#pragma once
#include "few.h"
#include "places.h"

namespace attnloom::host {

template <class S, class V>
struct Keys {
  using Lane = typename S::Lane;
  using Lanes = typename S::Arith::Lanes;
  using Key = typename S::Key;

  bool finite;  // every value is; otherwise weights of 0 must be kept from them
  alignas(64) Lane k[S::max_keys * S::d_padded];               // [panel][lane of the row][key of the panel]
  alignas(64) Lane v[S::max_keys / S::step * S::v_columns];    // [key or pair of keys][column]

  // What the transforms of a block row's keys are given.
  struct Source {
    const typename V::Params& params;
    Site site;  // of any of the keys, but for its index and position
    int kv_start;
    float k_scale, v_scale;
  };

  // Whether memory holds values as the products take them, so that they need no packing.
  static constexpr bool stored_as_lanes = S::kv == (S::step == 1 ? kF32 : kBF16);
  static constexpr bool keys_direct = stored_as_lanes && !V::has_key_transform && S::head_dim == S::d_floats;
  static constexpr bool values_direct = stored_as_lanes && !V::has_value_transform && S::head_dim_v == S::v_columns;

  // Rows up to which nothing is packed; each block of kFewRows of them reads K and V anew.
  static constexpr int rows_in_place = keys_direct && values_direct ? kRowsInPlace<typename S::Arith> : kFewRows;

  // Packs the keys at `at`; asks for those of the tile after it.
  void pack_keys(const Source& source, const Places<S>& at, const Places<S>& ahead) {
    for (int j = 0; j < at.padded; j += kLanes) {
      ahead.prefetch_keys(j, kLanes);
      pack_keys(source, at, j);
    }
  }

  // The same of the values.
  void pack_values(const Source& source, const Places<S>& at, const Places<S>& ahead) {
    Vec check = {};
    for (int j = 0; j < at.padded; j += S::step) {
      ahead.prefetch_values(j, S::step);
      check = pack_values(source, at, j, check);
    }
    finite = lanes_sum(check) == 0.0f;
  }

  ATTNLOOM_FN Packed<typename S::Arith> panel(int p) const {
    return {k + int64_t{p} * S::panel * S::d_padded, S::panel};
  }
  ATTNLOOM_FN Packed<typename S::Arith> values(int j) const {
    return {v + int64_t{j} / S::step * S::v_columns, S::v_columns};
  }

  // Products of keys [j, j + kLanes) with N rows of Q, without packing; asks for those of the tile after it.
  template <int N>
  ATTNLOOM_FN void multiply_few(const Source& source, const Places<S>& at, const Places<S>& ahead, int j,
                                const Lane* q, float* s, float scale) {
    alignas(64) Lane staged[keys_direct ? 1 : kLanes][keys_direct ? 1 : S::d_padded];
    if constexpr (!keys_direct)
      for (int i = 0; i < kLanes; i++) stage_key(source, at, j + i, staged[i]);
    const auto key = [&](int i) {
      ahead.prefetch_keys(j + i, 1);
      if constexpr (keys_direct) return reinterpret_cast<const Lane*>(at.key[j + i]);
      else return static_cast<const Lane*>(staged[i]);
    };
    Vec sum[N];
    dot_products<typename S::Arith, S::d_padded>(key, q, sum);
    ATTNLOOM_UNROLL
    for (int r = 0; r < N; r++) store(s + r * S::max_keys + j, sum[r] * scale);
  }

  // The values at `at`, where they lie, as the right operand of a product; asks for those of the tile after it.
  struct InPlace {
    const Places<S>& at;
    const Places<S>& ahead;

    ATTNLOOM_FN Lanes operator()(int i, int vector) const {
      if (vector == 0) ahead.prefetch_values(i * S::step, S::step);
      if constexpr (S::step == 1) return load(at.value[i] + vector * kLanes);
      else return join_halves(at.value[2 * i] + vector * kLanes, at.value[2 * i + 1] + vector * kLanes);
    }
  };

  float value_at(int j, int column) const {
    const Lane lane = v[int64_t{j} / S::step * S::v_columns + column];
    if constexpr (S::step == 1) return lane;
    else return bits_as<float>(j % 2 ? lane & 0xffff0000u : lane << 16);
  }

 private:
  static ATTNLOOM_FN Site key_site(const Source& source, const Places<S>& at, int j) {
    Site site = source.site;
    site.kv_index = source.kv_start + at.begin + j;
    site.kv_pos = at.pos[j];
    return site;
  }

  void pack_keys(const Source& source, const Places<S>& at, int j) {
    Lane* to = k + int64_t{j} / S::panel * S::panel * S::d_padded + j % S::panel;
    alignas(64) Lane staged[keys_direct ? 1 : kLanes][keys_direct ? 1 : S::d_padded];
    if constexpr (!keys_direct)
      for (int i = 0; i < kLanes; i++) stage_key(source, at, j + i, staged[i]);
    for (int d = 0; d < S::d_padded; d += kLanes) {
      UVec square[kLanes];
      ATTNLOOM_UNROLL
      for (int i = 0; i < kLanes; i++) {
        const void* row = keys_direct ? static_cast<const void*>(at.key[j + i]) : staged[i];
        square[i] = *reinterpret_cast<const UVecAt*>(static_cast<const char*>(row) + d * sizeof(Lane));
      }
      transpose(square);
      ATTNLOOM_UNROLL
      for (int i = 0; i < kLanes; i++) *reinterpret_cast<UVecAt*>(to + (d + i) * S::panel) = square[i];
    }
  }

  void stage_key(const Source& source, const Places<S>& at, int j, Lane* lanes) {
    alignas(64) float row[S::d_floats] = {};
    load_row<S::kv, S::head_dim>(at.key[j], row);
    if constexpr (V::has_key_transform) {
      if (at.key[j] != Places<S>::kNothing) {
        ATTNLOOM_LOOP
        for (int d = 0; d < S::head_dim; d++) row[d] *= source.k_scale;
        Row<HostMap<S::head_dim>> view{row};
        V::key_transform(source.params, view, key_site(source, at, j));
      }
    }
    pack_row<typename S::Arith>(row, S::d_floats, lanes);
  }

  // Packs the values of keys [j, j + step); NaN in the result where one is not finite.
  ATTNLOOM_FN Vec pack_values(const Source& source, const Places<S>& at, int j, Vec check) {
    Lane* to = v + int64_t{j} / S::step * S::v_columns;
    alignas(64) float rows[S::step][values_direct ? 1 : S::v_columns];
    if constexpr (!values_direct)
      for (int i = 0; i < S::step; i++) stage_value(source, at, j + i, rows[i]);
    ATTNLOOM_UNROLL
    for (int c = 0; c < S::v_columns; c += kLanes) {
      Lanes lanes;
      if constexpr (S::step == 1 && values_direct) lanes = load(at.value[j] + c);
      else if constexpr (S::step == 1) lanes = load(rows[0] + c);
      else if constexpr (values_direct) lanes = join_halves(at.value[j] + c, at.value[j + 1] + c);
      else lanes = pair_lanes(load(rows[0] + c), load(rows[S::step - 1] + c));
      store(to + c, lanes);
      check = S::Arith::multiply_add(check, lanes, Lanes{});
    }
    return check;
  }

  void stage_value(const Source& source, const Places<S>& at, int j, float* row) {
    load_row<S::kv, S::head_dim_v>(at.value[j], row);
    if constexpr (V::has_value_transform) {
      if (at.value[j] == Places<S>::kNothing) return;
      ATTNLOOM_LOOP
      for (int d = 0; d < S::head_dim_v; d++) row[d] *= source.v_scale;
      Row<HostMap<S::head_dim_v>> view{row};
      V::value_transform(source.params, view, key_site(source, at, j));
    }
  }

  static ATTNLOOM_FN UVec join_halves(const uint16_t* low, const uint16_t* high) {
    typedef uint16_t Half __attribute__((vector_size(kLanes * 2), aligned(1), may_alias));
    const UVec a = __builtin_convertvector(*reinterpret_cast<const Half*>(low), UVec);
    const UVec b = __builtin_convertvector(*reinterpret_cast<const Half*>(high), UVec);
    return a | (b << 16);
  }
};

}  // namespace attnloom::host
