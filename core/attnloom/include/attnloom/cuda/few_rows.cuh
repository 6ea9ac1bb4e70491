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
  Slice* found;  // [2], of this warp: where the keys lie that are copied next

  ATTNLOOM_DEVICE int warp() const { return warp_id(); }
  ATTNLOOM_DEVICE char* stage(int of_warp, int i) const {
    return memory + Tile::q_bytes + (of_warp * kStages + i) * Tile::stage_bytes;
  }
  ATTNLOOM_DEVICE int* noted_at(int i) const { return noted + (warp() * kStages + i) * kSlice; }
  ATTNLOOM_DEVICE static uint32_t values_at() { return kSlice * S::KTile::row_bytes; }

  // The warp's next slice of which some row sees a key, from the `slice`-th on.
  ATTNLOOM_DEVICE int next_slice(const Seen<slots>& seen, int slice) const {
    static_assert((S::warps & (S::warps - 1)) == 0);
    for (;;) {
      const int next = seen.template next_tile<kSlice>(slice);
      if (next == Seen<slots>::kNone) return next;
      slice = next + ((warp() - next) & (S::warps - 1));
      if (slots == 1) return slice * kSlice < seen.hi[0] ? slice : Seen<slots>::kNone;
      if (seen.template next_tile<kSlice>(slice) == slice) return slice;
    }
  }
  // The one after `slice`.
  ATTNLOOM_DEVICE int slice_after(const Seen<slots>& seen, int slice) const {
    if constexpr (slots > 1) return next_slice(seen, slice + 1);
    else return (slice + S::warps) * kSlice < seen.hi[0] ? slice + S::warps : Seen<slots>::kNone;
  }

  ATTNLOOM_DEVICE void run() {
    constexpr int kNone = Seen<slots>::kNone;
    const Item& item = unit.item;
    const bool listed = unit.listed(), by_position = V::has_kv_range && listed;
    const Positions positions{unit.index, item, listed};
    const Source<S> source{unit.args, unit.index, item, unit.head};
    // Places are looked up two slices at a time, half a warp each; the first two, if the ranges leave them, while the
    // rows are found.
    const Trail trail(source, 2 * S::warps * kSlice);
    const int half = lane_id() / kSlice, mine = lane_id() % kSlice;  // the lane's slice of the two, and its key
    int sought = item.kv_begin / kSlice + warp() + half * S::warps;
    Place place;
    place.seek(trail, item, sought * kSlice + mine);
    place.look_up(trail, sought * kSlice + mine < item.kv_end);
    // Each warp finds the rows, one a lane, so that nobody waits for others before the first keys are asked for.
    const PackedRow<V> row = unit.row(lane_id(), by_position);
    if (warp() == 0 && lane_id() < Tile::t_q) unit.rows.put(lane_id(), row);
    unit.note_facts(listed);
    Seen<slots> seen;
    seen.look(row, item, by_position);

    int slice = next_slice(seen, item.kv_begin / kSlice);
    int ahead = slice;
    const auto find_two = [&](bool anew) {
      const int second = ahead == kNone ? kNone : slice_after(seen, ahead), before = sought;
      sought = half ? second : ahead;
      if (anew && sought == before && seen.sees_all(sought * kSlice, sought * kSlice + kSlice)) return;
      if (!anew && (slots == 1 || sought == before + 2 * S::warps)) place.step(trail);
      else place.seek(trail, item, sought * kSlice + mine);
      place.look_up(trail, sought != kNone && seen.sees(sought * kSlice + mine));
    };
    find_two(true);

    const auto ask_queries = [&] {
      unit.template copy_queries<Tile>(shared_address(memory), [&](int r) {
        return int2{__shfl_sync(~0u, row.token, r), __shfl_sync(~0u, row.site.qo_head, r)};
      });
    };
    if constexpr (kStages == 1) {
      ask_queries();
      close_group();
    }
    Queries<S, M, Tile::q_in_registers> q;
    const Units<V>& units = unit.facts.units;
    const Pairs<V> pairs{unit.params, item, positions, unit.head, unit.facts.masked, unit.facts.by_position};
    State16<S, V, M> state;
    state.clear();
    KeySite<V> key_site;
    float step;
    int to = 0, at = 0;  // stages: the next to fill, the next to use
    bool first = true;   // of two slices
#pragma unroll 1
    for (int n = 1 - kStages;; n++) {
      if (n >= 0) {
        wait_groups<kStages == 1 ? 0 : kStages - 2>();
        __syncwarp();
        if (n == 0) {
          __syncthreads();
          if constexpr (V::has_query_transform) {
            unit.template transform_queries<Tile>(memory);
            __syncthreads();
          }
          q.take(shared_address(memory), 0);
          key_site = unit.key_site();
          step = units.step;
        }
        if (slice == kNone) break;
      }
      if (ahead != kNone) {
        char* stage = this->stage(warp(), to);
        if (first) place.template put_down<S>(unit.args, found[half]);
        positions.note(ahead * kSlice, noted_at(to));
        __syncwarp();
        const Slice& keys = found[!first];
        copy_keys(source, keys, shared_address(stage));
        copy_values(source, keys, shared_address(stage) + values_at());
        __syncwarp();
        ahead = slice_after(seen, ahead);
        if (!first) find_two(false);
        first = !first;
      }
      if (kStages > 1 && n == 1 - kStages) ask_queries();  // after the first keys, which take longest
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
        if (16 * i + 8 * h >= unit.count) continue;
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
