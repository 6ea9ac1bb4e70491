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
  static constexpr int kKeys = Tile::step;  // of a part: what a warp takes at a time

  const Unit<S, V, R>& unit;
  char* memory;  // queries, then the stages of each warp
  int* noted;    // [warps][stages][keys of a part] listed positions
  Slice* found;  // [2], of this warp: where the keys lie that are copied next

  ATTNLOOM_DEVICE int warp() const { return warp_id(); }
  ATTNLOOM_DEVICE char* stage(int of_warp, int i) const {
    return memory + Tile::q_bytes + of_warp * Tile::warp_bytes + i * Tile::stage_bytes;
  }
  // m and d of row `r` of a warp, behind its O~.
  ATTNLOOM_DEVICE float2& md(int of_warp, int r) const {
    return reinterpret_cast<float2*>(stage(of_warp, 0) + Tile::o_bytes)[r];
  }
  ATTNLOOM_DEVICE int* noted_at(int i) const { return noted + (warp() * kStages + i) * kKeys; }
  ATTNLOOM_DEVICE static uint32_t values_at() { return kKeys * S::StoredKTile::row_bytes; }

  // The warp's next part of which some row sees a key, from the `part`-th on.
  ATTNLOOM_DEVICE int next_part(const Seen<slots>& seen, int part) const {
    static_assert((S::warps & (S::warps - 1)) == 0);
    for (;;) {
      const int next = seen.template next_tile<kKeys>(part);
      if (next == Seen<slots>::kNone) return next;
      part = next + ((warp() - next) & (S::warps - 1));
      if (slots == 1) return part * kKeys < seen.hi[0] ? part : Seen<slots>::kNone;
      if (seen.template next_tile<kKeys>(part) == part) return part;
    }
  }
  // The one after `part`.
  ATTNLOOM_DEVICE int part_after(const Seen<slots>& seen, int part) const {
    if constexpr (slots > 1) return next_part(seen, part + 1);
    else return (part + S::warps) * kKeys < seen.hi[0] ? part + S::warps : Seen<slots>::kNone;
  }

  ATTNLOOM_DEVICE void run() {
    constexpr int kNone = Seen<slots>::kNone;
    const Item& item = unit.item;
    const bool listed = unit.listed(), by_position = V::has_kv_range && listed;
    const Positions positions{unit.index, item, listed};
    const Source<S> source{unit.args, unit.index, item, unit.head};
    // Places are looked up two slices at a time, half a warp each, of one part or of two; the first two, if the ranges
    // leave them, while the rows are found.
    const Trail trail(source, 2 * S::warps * kSlice);
    const int half = lane_id() / kSlice, mine = lane_id() % kSlice;  // the lane's slice of the two, and its key
    int sought = item.kv_begin / kSlice + (S::slices == 2 ? 2 * warp() + half : warp() + half * S::warps);
    Place place;
    place.seek(trail, item, sought * kSlice + mine);
    place.look_up(trail, sought * kSlice + mine < item.kv_end);
    const bool once = __any_sync(~0u, item.flags & kItemReadOnce);  // the same on all lanes, as the compiler sees too
    const char *const first_keys = here(source.keys()), *const first_values = here(source.values());
    // Each warp finds the rows, one a lane, so that nobody waits for others before the first keys are asked for.
    const PackedRow<V> row = unit.row(lane_id(), by_position);
    Seen<slots> seen;
    seen.look_for_some(row, item, by_position);

    int part = next_part(seen, item.kv_begin / kKeys);
    int ahead = part;
    const auto find_two = [&](bool anew) {
      const int before = sought;
      sought = ahead;
      if constexpr (S::slices == 2) {
        if (ahead != kNone) sought = 2 * ahead + half;
      } else {
        const int second = ahead == kNone ? kNone : part_after(seen, ahead);
        if (half) sought = second;
      }
      if (anew && sought == before && seen.sees_every(sought * kSlice, min(sought * kSlice + kSlice, item.kv_end))) return;
      if (!anew && (slots == 1 || sought == before + 2 * S::warps)) place.step(trail);
      else place.seek(trail, item, sought * kSlice + mine);
      place.look_up(trail, sought != kNone && seen.sees(sought * kSlice + mine));
    };
    find_two(true);

    int to = 0;         // the stage to fill next
    bool first = true;  // of two parts whose slices are looked up together
    const auto ask = [&](const char* k_from, const char* v_from) {
      if (ahead != kNone) {
        const uint32_t k = shared_address(stage(warp(), to)), v = k + values_at();
        if (first) place.put_down(source, found[half]);
#pragma unroll
        for (int i = 0; i < S::slices; i++) positions.note(ahead * kKeys + i * kSlice, noted_at(to) + i * kSlice);
        __syncwarp();
        const auto copy = [&](auto... policy) {
#pragma unroll
          for (int i = 0; i < S::slices; i++) {
            const Slice& keys = found[S::slices == 2 ? i : !first];
            copy_keys<S>(k_from, keys, k + i * kSlice * S::StoredKTile::row_bytes, policy...);
            copy_values<S>(v_from, keys, v + i * kSlice * S::StoredVTile::row_bytes, policy...);
          }
        };
        if (once) copy(first_to_go());
        else copy();
        __syncwarp();
        ahead = part_after(seen, ahead);
        if (S::slices == 2 || !first) find_two(false);
        if (S::slices == 1) first = !first;
      }
      to = to + 1 == kStages ? 0 : to + 1;
    };
    // The first keys take longest; what they can be asked for without comes after them.
    if constexpr (kStages > 1) ask(first_keys, first_values);
    if (warp() == 0 && lane_id() < Tile::t_q) unit.rows.put(lane_id(), row);
    unit.note_facts(listed, OperandTypes<S, V>::query_factor);
    seen.look_for_all(row, item, by_position);
    const uint32_t q_at = unit.q_at(row);
    unit.template copy_queries<Tile>(shared_address(memory), [&](int r) { return __shfl_sync(~0u, q_at, r); });
    close_group();

    Queries<S, M, Tile::q_in_registers> q;
    const Units<V>& units = unit.facts.units;
    const Pairs<V> pairs{unit.params, item, positions, unit.head, unit.facts.masked, unit.facts.by_position};
    State16<S, V, M> state;
    state.clear();
    KeySite<V> key_site;
    int at = 0;  // the stage to use next
#pragma unroll 1
    for (int n = kStages == 1 ? 0 : 2 - kStages;; n++) {
      if (n >= 0) {
        if (n == 0) unit.note_merging();  // while the first keys come in
        wait_groups<kStages == 1 ? 0 : kStages - 2>();
        __syncwarp();
        if (n == 0) {
          sync<S>();
          if constexpr (V::has_query_transform) {
            unit.template transform_queries<Tile>(memory);
            sync<S>();
          }
          if constexpr (S::narrow) {
            arrange_queries<S, V>(memory, Tile::t_q);
            sync<S>();
          }
          q.take(shared_address(memory), 0);
          key_site = unit.key_site();
        }
        if (part == kNone) break;
      }
      ask(S::keys_ahead ? first_keys : source.keys(), source.values());
      close_group();
      if (n < 0) continue;
      if constexpr (kStages == 1) {
        wait_groups<0>();
        __syncwarp();
      }
      attend(q, state, pairs, key_site, seen, part * kKeys, stage(warp(), at), noted_at(at));
      if constexpr (kStages == 1) __syncwarp();
      part = part_after(seen, part);
      at = at + 1 == kStages ? 0 : at + 1;
    }
    wait_groups<0>();
    __syncwarp();
    join(state, units);
  }

  template <class Q>
  ATTNLOOM_DEVICE void attend(const Q& q, State16<S, V, M>& state, const Pairs<V>& pairs,
                              const KeySite<V>& key_site, const Seen<slots>& seen, int first, char* at, const int* noted) {
    const SliceTransforms<V> transforms{unit.params, key_site, pairs.positions, first, noted};
    float s[M][kKeys / 8][4];
    multiply_stored_keys<S>(s, q, at, transforms);
    Weights<M, kKeys / 8> p;
    const Units<V>& units = unit.facts.units;
    weigh<S, V, OperandTypes<S, V>::values>(s, p, state, read<V, M>(pairs, unit.rows, units, 0, first), pairs, unit.rows, units, 0, first,
                                            noted, !pairs.masked && seen.sees_all(first, first + kKeys))
        .apply(state.o);
    multiply_stored_values<S>(state.o, p, at + values_at(), transforms, seen);
  }

  // Where column `column` of O~ of row `r` lies in a warp's stages.
  static ATTNLOOM_DEVICE int o_at(int r, int column) {
    const int swizzle = S::narrow ? (r & 1) << 4 : (r & 3) << 3;
    return r * S::head_dim_v + (S::head_dim_v % 32 == 0 ? (column & ~31) + ((column & 31) ^ swizzle) : column);
  }

  // Lays what this lane has of row `r`, in o[..][2 h] and o[..][2 h + 1], into the warp's O~.
  static ATTNLOOM_DEVICE void lay_row(float* to, const float (&o)[S::o_tiles][4], int h, int r) {
    const int c = lane_id() % 4;
#pragma unroll
    for (int t = 0; t < S::o_tiles; t += S::narrow ? 2 : 1) {
      if constexpr (S::narrow)  // even and odd columns
        *reinterpret_cast<float4*>(to + o_at(r, 8 * t + 4 * c)) = {o[t][2 * h], o[t + 1][2 * h], o[t][2 * h + 1], o[t + 1][2 * h + 1]};
      else *reinterpret_cast<float2*>(to + o_at(r, 8 * t + 2 * c)) = {o[t][2 * h], o[t][2 * h + 1]};
    }
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
        lay_row(o, state.o[i], h, r);
        if (lane_id() % 4 == 0) md(warp(), r) = {state.m[i][h], state.d[i][h]};
      }
    sync<S>();
    unit.by_half_warps([&](int r, bool real) { join_row(r, real, units); });
  }

  ATTNLOOM_DEVICE void join_row(int r, bool real, const Units<V>& units) {
    using Map = HalfWarpMap<S>;
    float weight[S::warps];
    State whole{kLowest, 0.0f};
#pragma unroll
    for (int w = 0; w < S::warps; w++) whole.m = fmaxf(whole.m, md(w, r).x);
#pragma unroll
    for (int w = 0; w < S::warps; w++) {
      weight[w] = V::use_softmax ? exp2((md(w, r).x - whole.m) * units.step) : 1.0f;
      whole.d += weight[w] * md(w, r).y;
    }
    Row<Map> row;
#pragma unroll
    for (int n = 0; n < Map::held; n++) {
      clear(row.x.at[n]);
      if (!Map::holds(n)) continue;
#pragma unroll
      for (int w = 0; w < S::warps; w++) {
        const float* o = reinterpret_cast<const float*>(stage(w, 0)) + o_at(r, Map::width * Map::unit(n));
        add_scaled(row.x.at[n], weight[w], *reinterpret_cast<const float4*>(o));
      }
    }
    whole = natural(whole.m, whole.d, units.unit);
    if (!unit.partial())
      write_row<S, V>(unit.args, unit.params, whole, row, unit.rows.token[r], unit.rows.site(r, unit.head), real);
    else if (real) write_part<S>(unit.args, whole, row, unit.part() + r);
  }
};

}  // namespace attnloom::cuda
