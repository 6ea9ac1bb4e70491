// A tile of keys and values: found through the pages, transformed, and packed for the products.
#pragma once
#include "rows.h"
#include "shape.h"

namespace attnloom::host {

template <class S, class V>
struct Keys {
  using Lane = typename S::Lane;
  using Lanes = typename S::Arith::Lanes;
  using Key = typename S::Key;

  int begin;    // ordinal of the first key in the block row
  int count;    // keys from there, those that no row sees included
  int padded;   // count, rounded up to whole vectors
  bool finite;  // every value is; otherwise weights of 0 must be kept from them

  int pos[S::max_keys];
  const Key* key[S::max_keys];
  const Key* value[S::max_keys];
  alignas(64) Lane k[S::max_keys * S::d_padded];               // [panel][lane of the row][key of the panel]
  alignas(64) Lane v[S::max_keys / S::step * S::v_columns];    // [key or pair of keys][column]

  // Forgets the last tile: keys [first, end) are now of no row.
  void reset(int first, int end) {
    begin = first;
    count = end - first;
    padded = round_up(count, kLanes);
    for (int j = 0; j < padded; j++) key[j] = value[j] = kNothing;
    for (int j = 0; j < count; j++) pos[j] = 0;
  }

  // Looks up where keys [first, end) of the block row lie.
  void locate(const RunArgs& args, const Item& item, int head, int first, int end) {
    const LevelView& level = args.index.levels[item.level];
    const int page_size = args.index.page_size;
    const int64_t slot = int64_t{item.kv_offset} + first;
    int64_t entry = item.page_begin + slot / page_size;
    int at = static_cast<int>(slot % page_size);
    const int64_t list = head * level.indices_head_stride;
    for (int j = first; j < end; entry++, at = 0) {
      const int64_t page = level.indices_are_64 ? static_cast<const int64_t*>(level.indices)[list + entry]
                                                : static_cast<const int32_t*>(level.indices)[list + entry];
      ATTNLOOM_CHECK(page >= 0 && page < args.num_pages, "page id", page);
      const int stop = min(end, j + page_size - at);
      const Key* k_at = static_cast<const Key*>(args.k.data) + page * args.k.stride_page + at * args.k.stride_slot +
                        head * args.k.stride_head;
      const Key* v_at = static_cast<const Key*>(args.v.data) + page * args.v.stride_page + at * args.v.stride_slot +
                        head * args.v.stride_head;
      const int first_pos = level.block_pos ? level.block_pos[entry] + at : item.kv_start + j;
      for (int i = 0; i < stop - j; i++) {
        key[j - begin + i] = k_at + i * args.k.stride_slot;
        value[j - begin + i] = v_at + i * args.v.stride_slot;
        pos[j - begin + i] = first_pos + i;
      }
      j = stop;
    }
    if (level.key_pos && level.key_pos_begin[item.level_row] >= 0) {
      const int32_t* listed = level.key_pos + level.key_pos_begin[item.level_row];
      for (int j = first; j < end; j++) pos[j - begin] = listed[j];
    }
  }

  // Packs the keys that `locate` found; `site` is that of the block row.
  void pack(const typename V::Params& params, const Site& site, int kv_start, float k_scale, float v_scale) {
    for (int j = 0; j < padded; j += kLanes) pack_keys(params, site, kv_start, k_scale, j);
    Vec check = {};
    for (int j = 0; j < padded; j += S::step) check = pack_values(params, site, kv_start, v_scale, j, check);
    finite = lanes_sum(check) == 0.0f;
  }

  ATTNLOOM_FN const Lane* panel(int p) const { return k + int64_t{p} * S::panel * S::d_padded; }
  ATTNLOOM_FN const Lane* values(int j) const { return v + int64_t{j} / S::step * S::v_columns; }

  float value_at(int j, int column) const {
    const Lane lane = values(j)[column];
    if constexpr (S::step == 1) return lane;
    else return bits_as<float>(j % 2 ? lane & 0xffff0000u : lane << 16);
  }

 private:
  static constexpr Key kNothing[S::larger(S::head_dim, S::head_dim_v)] = {};
  static constexpr bool stored_as_lanes = S::kv == (S::step == 1 ? kF32 : kBF16);
  static constexpr bool keys_direct =
      stored_as_lanes && !V::has_key_transform && S::head_dim == S::d_floats;
  static constexpr bool values_direct = stored_as_lanes && !V::has_value_transform && S::head_dim_v == S::v_columns;

  ATTNLOOM_FN Site key_site(Site site, int kv_start, int j) const {
    site.kv_index = kv_start + begin + j;
    site.kv_pos = pos[j];
    return site;
  }

  void pack_keys(const typename V::Params& params, const Site& site, int kv_start, float k_scale, int j) {
    Lane* to = k + int64_t{j} / S::panel * S::panel * S::d_padded + j % S::panel;
    alignas(64) Lane staged[keys_direct ? 1 : kLanes][keys_direct ? 1 : S::d_padded];
    if constexpr (!keys_direct)
      for (int i = 0; i < kLanes; i++) stage_key(params, site, kv_start, k_scale, j + i, staged[i]);
    for (int d = 0; d < S::d_padded; d += kLanes) {
      UVec square[kLanes];
      ATTNLOOM_UNROLL
      for (int i = 0; i < kLanes; i++) {
        const auto* row = keys_direct ? reinterpret_cast<const char*>(key[j + i]) : reinterpret_cast<const char*>(staged[i]);
        square[i] = *reinterpret_cast<const UVecAt*>(row + d * sizeof(Lane));
      }
      transpose(square);
      ATTNLOOM_UNROLL
      for (int i = 0; i < kLanes; i++) *reinterpret_cast<UVecAt*>(to + (d + i) * S::panel) = square[i];
    }
  }

  void stage_key(const typename V::Params& params, const Site& site, int kv_start, float k_scale, int j, Lane* lanes) {
    alignas(64) float row[S::d_floats] = {};
    load_row<S::kv, S::head_dim>(key[j], row);
    if constexpr (V::has_key_transform) {
      if (key[j] != kNothing) {
        ATTNLOOM_LOOP
        for (int d = 0; d < S::head_dim; d++) row[d] *= k_scale;
        Row<HostMap<S::head_dim>> view{row};
        V::key_transform(params, view, key_site(site, kv_start, j));
      }
    }
    pack_row<typename S::Arith>(row, S::d_floats, lanes);
  }

  // Packs the values of keys [j, j + step); NaN in the result where one is not finite.
  ATTNLOOM_FN Vec pack_values(const typename V::Params& params, const Site& site, int kv_start, float v_scale, int j,
                              Vec check) {
    Lane* to = v + int64_t{j} / S::step * S::v_columns;
    alignas(64) float rows[S::step][values_direct ? 1 : S::v_columns];
    if constexpr (!values_direct)
      for (int i = 0; i < S::step; i++) stage_value(params, site, kv_start, v_scale, j + i, rows[i]);
    ATTNLOOM_UNROLL
    for (int c = 0; c < S::v_columns; c += kLanes) {
      Lanes lanes;
      if constexpr (S::step == 1 && values_direct) lanes = load(value[j] + c);
      else if constexpr (S::step == 1) lanes = load(rows[0] + c);
      else if constexpr (values_direct) lanes = join_halves(value[j] + c, value[j + 1] + c);
      else lanes = pair_lanes(load(rows[0] + c), load(rows[S::step - 1] + c));
      store(to + c, lanes);
      check = S::Arith::multiply_add(check, lanes, Lanes{});
    }
    return check;
  }

  void stage_value(const typename V::Params& params, const Site& site, int kv_start, float v_scale, int j, float* row) {
    load_row<S::kv, S::head_dim_v>(value[j], row);
    if constexpr (V::has_value_transform) {
      if (value[j] == kNothing) return;
      ATTNLOOM_LOOP
      for (int d = 0; d < S::head_dim_v; d++) row[d] *= v_scale;
      Row<HostMap<S::head_dim_v>> view{row};
      V::value_transform(params, view, key_site(site, kv_start, j));
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
