// Units of few rows, mostly decode: every warp holds all rows and streams keys of its own through its own stages, without
// a word to the other warps until their states merge at the end.
#pragma once
#include "unit.cuh"

namespace attnloom::cuda {

template <class S, class V, int C, class R>
struct FewRows {
  using Tile = Class<S, C>;
  static constexpr int M = Tile::m_tiles;
  static constexpr int slots = R::slots;
  static constexpr int kStages = S::stages;

  const Unit<S, V, R>& unit;
  char* memory;  // queries, then the stages of each warp
  float* md;     // [warps][t_q][2]
  int* noted;    // [warps][stages][16] listed positions
  Slice* found;  // [warps]: where the keys lie that are copied next

  ATTNLOOM_DEVICE int warp() const { return warp_id(); }
  ATTNLOOM_DEVICE char* stage(int of_warp, int i) const {
    return memory + Tile::q_bytes + (of_warp * kStages + i) * Tile::stage_bytes;
  }
  ATTNLOOM_DEVICE int* noted_at(int i) const { return noted + (warp() * kStages + i) * kSlice; }
  ATTNLOOM_DEVICE static uint32_t values_at() { return kSlice * S::KTile::row_bytes; }

  // The warp's next slice of which some row sees a key, from the `slice`-th on.
  ATTNLOOM_DEVICE int next_slice(const Seen<slots>& seen, int slice) const {
    for (;;) {
      const int next = seen.template next_tile<kSlice>(slice);
      if (next == Seen<slots>::kNone) return next;
      slice = next + (warp() - next % S::warps + S::warps) % S::warps;
      if (seen.template next_tile<kSlice>(slice) == slice) return slice;
    }
  }
  // The one after `slice`.
  ATTNLOOM_DEVICE int slice_after(const Seen<slots>& seen, int slice) const {
    if constexpr (slots > 1) return next_slice(seen, slice + 1);
    else return (slice + S::warps) * kSlice < seen.hi[0] ? slice + S::warps : Seen<slots>::kNone;
  }

  ATTNLOOM_DEVICE void run() {
    const Item& item = unit.item;
    const Positions positions{unit.index, item, unit.facts.listed};
    const Source<S> source{unit.args, unit.index, item, unit.head};
    const Trail trail(source, S::warps * kSlice);
    const int mine = lane_id() % kSlice;  // the lane's key of a slice
    // The place of the first slice, if the ranges leave it: its page id comes in while the rows are described.
    int ahead = item.kv_begin / kSlice + warp();
    Place place;
    place.seek(trail, item, ahead * kSlice + mine);
    place.look_up(trail, ahead * kSlice + mine < item.kv_end);
    unit.describe(Tile::t_q);
    unit.template copy_queries<Tile>(shared_address(memory));
    close_group();

    Seen<slots> seen;
    seen.look(unit.rows, 0, unit.count, item, unit.facts.by_position);
    const auto look_up = [&] { place.look_up(trail, ahead != Seen<slots>::kNone && seen.sees(ahead * kSlice + mine)); };
    int slice = next_slice(seen, item.kv_begin / kSlice);
    if (slice != ahead || !seen.sees_all(slice * kSlice, slice * kSlice + kSlice)) {
      ahead = slice;
      place.seek(trail, item, ahead * kSlice + mine);
      look_up();
    }

    Queries<S, M, Tile::q_in_registers> q;
    const Units<V>& units = unit.facts.units;
    const float step = units.step;
    const Pairs<V> pairs{unit.params, item, positions, unit.head, unit.facts.masked, unit.facts.by_position};
    const KeySite<V> key_site = unit.key_site();
    State16<S, V, M> state;
    state.clear();
    int to = 0, at = 0;  // stages: the next to fill, the next to use
#pragma unroll 1
    for (int n = 1 - kStages;; n++) {
      if (n == 0) {
        wait_groups<kStages - 1>();
        __syncthreads();
        if constexpr (V::has_query_transform) {
          unit.template transform_queries<Tile>(memory);
          __syncthreads();
        }
        q.take(shared_address(memory), 0);
      }
      if (n >= 0) {
        if (slice == Seen<slots>::kNone) break;
        wait_groups<kStages == 1 ? 0 : kStages - 2>();
        __syncwarp();
      }
      if (ahead != Seen<slots>::kNone) {
        char* stage = this->stage(warp(), to);
        Slice& keys = found[warp()];
        place.template put_down<S>(unit.args, keys);
        positions.note(ahead * kSlice, noted_at(to));
        __syncwarp();
        copy_keys(source, keys, shared_address(stage));
        copy_values(source, keys, shared_address(stage) + values_at());
        __syncwarp();
        const int before = ahead;
        ahead = slice_after(seen, ahead);
        if (slots == 1 || ahead == before + S::warps) place.step(trail);
        else place.seek(trail, item, ahead * kSlice + mine);
        look_up();
      }
      close_group();
      to = to + 1 == kStages ? 0 : to + 1;
      if (n < 0) continue;
      if constexpr (kStages == 1) {
        wait_groups<0>();
        __syncwarp();
      }
      attend(q, state, step, pairs, key_site, seen, slice, stage(warp(), at), noted_at(at));
      if constexpr (kStages == 1) __syncwarp();
      slice = slice_after(seen, slice);
      at = at + 1 == kStages ? 0 : at + 1;
    }
    wait_groups<0>();
    __syncwarp();
    join(state, units);
  }

  template <class Q>
  ATTNLOOM_DEVICE void attend(const Q& q, State16<S, V, M>& state, float step, const Pairs<V>& pairs,
                              const KeySite<V>& key_site, const Seen<slots>& seen, int slice, char* at, const int* noted) {
    const int first = slice * kSlice;
    const uint32_t k = shared_address(at), v = k + values_at();
    prepare_keys<S, V>(at, unit.params, key_site, pairs.positions, first, noted);
    float s[M][kSlice / 8][4];
    multiply_keys<S>(s, q, k);
    score<S, V>(s, pairs, unit.rows, unit.facts.units, 0, first, noted, !pairs.masked && seen.sees_all(first, first + kSlice));
    Weights<M, kSlice / 8> p;
    weigh<S, V>(s, p, state, step);
    prepare_values<S, V>(at + values_at(), unit.params, key_site, pairs.positions, first, noted, seen);
    multiply_values<S>(state.o, p, v);
  }

  // Where column `column` of O~ of row `r` lies in a warp's stages.
  static ATTNLOOM_DEVICE int o_at(int r, int column) {
    return r * S::head_dim_v + (S::head_dim_v % 32 == 0 ? column ^ (r & 3) << 3 : column);
  }

  // Merges the warps' states, warp after warp, and writes the rows.
  ATTNLOOM_DEVICE void join(State16<S, V, M>& state, const Units<V>& units) {
    float* o = reinterpret_cast<float*>(stage(warp(), 0));
    state.join_lanes();
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int r = 16 * i + 8 * h + lane_id() / 4;
#pragma unroll
        for (int t = 0; t < S::o_tiles; t++)
          *reinterpret_cast<float2*>(o + o_at(r, 8 * t + 2 * (lane_id() % 4))) = {state.o[i][t][2 * h], state.o[i][t][2 * h + 1]};
        if (lane_id() % 4 == 0) *reinterpret_cast<float2*>(md + 2 * (warp() * Tile::t_q + r)) = {state.m[i][h], state.d[i][h]};
      }
    __syncthreads();
    for (int r = warp(); r < unit.count; r += S::warps) join_row(r, units);
  }

  ATTNLOOM_DEVICE void join_row(int r, const Units<V>& units) {
    using Map = SpreadMap<S::head_dim_v, 32>;
    float weight[S::warps];
    State whole{kLowest, 0.0f};
#pragma unroll
    for (int w = 0; w < S::warps; w++) whole.m = fmaxf(whole.m, md[2 * (w * Tile::t_q + r)]);
#pragma unroll
    for (int w = 0; w < S::warps; w++) {
      weight[w] = V::use_softmax ? fast_exp2((md[2 * (w * Tile::t_q + r)] - whole.m) * units.step) : 1.0f;
      whole.d += weight[w] * md[2 * (w * Tile::t_q + r) + 1];
    }
    Row<Map> row;
#pragma unroll
    for (int n = 0; n < Map::held; n++) {
      row.x.at[n][0] = row.x.at[n][1] = 0.0f;
      if (!Map::holds(n)) continue;
#pragma unroll
      for (int w = 0; w < S::warps; w++) {
        const float* o = reinterpret_cast<const float*>(stage(w, 0)) + o_at(r, 2 * Map::unit(n));
        const float2 x = *reinterpret_cast<const float2*>(o);
        row.x.at[n][0] += weight[w] * x.x;
        row.x.at[n][1] += weight[w] * x.y;
      }
    }
    whole = natural(whole.m, whole.d, units.unit);
    if (unit.partial()) write_part<S, 32>(unit.args, whole, row, unit.part() + r);
    else write_row<S, V, 32>(unit.args, unit.params, whole, row, unit.rows.token[r], unit.rows.site(r, unit.head), true);
  }
};

}  // namespace attnloom::cuda
