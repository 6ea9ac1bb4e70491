// Units of many rows and keys on Hopper: four warps each are a warpgroup of 64 rows, whose products run while it works on weights.
// Other warps find the units and copy their queries and keys: see copiers.cuh.
#pragma once
#include "pipeline.cuh"
#include "standing.cuh"

namespace attnloom::cuda {

// Which tiles of N keys some of a unit's rows see, from the last to the first, and of which some of these rows see all. Rows' last
// keys are those that not all of them see, and with ALiBi those of their largest logits. `apart`: no tile counts as seen by all.
template <class Sight, int N>
struct Tiles {
  const Sight &unit, &rows;
  bool apart;

  ATTNLOOM_DEVICE int before(int tile) const { return unit.template tile_before<N>(tile); }
  ATTNLOOM_DEVICE bool all_seen(int tile) const { return !apart && rows.sees_all(tile * N, (tile + 1) * N); }
};
// The same of one range, in registers: shared memory is slow behind copies.
template <int N>
struct Tiles<Seen<1>, N> {
  int begin, all_begin, all_end;

  ATTNLOOM_DEVICE Tiles(const Seen<1>& unit, const Seen<1>& rows, bool apart)
      : begin(unit.lo[0] / N), all_begin((rows.all_lo[0] + N - 1) / N), all_end(apart ? 0 : rows.all_hi[0] / N) {}
  ATTNLOOM_DEVICE int before(int tile) const { return tile > begin ? tile - 1 : Seen<1>::kNone; }
  ATTNLOOM_DEVICE bool all_seen(int tile) const { return all_begin <= tile && tile < all_end; }
};

template <class S, class V, int C>
struct TeamRows {
  using Tile = Class<S, C>;
  using QTile = typename Tile::QTile;
  using KTile = typename Tile::KTile;
  using VTile = typename Tile::VTile;
  using Sight = typename Found<S, V>::Sight;
  static constexpr int kKeys = Tile::t_kv, kNone = Sight::kNone;
  static constexpr int kTurns = 2, kOwn = 4;  // numbered barriers of each warpgroup: its turn at the tensor cores; its threads

  using Goal = typename Unit<S, V, typename Found<S, V>::R>::template Goal<1>;
  using Scores = float[1][kKeys / 8][4];
  using Operands = Weights<1, kKeys / 8>;
  using Places = cuda::Places<S, V, C>;
  using Progress = cuda::Progress<Places::kQueries>;

  const Unit<S, V, typename Found<S, V>::R>& unit;
  const Found<S, V>& found;
  Pipeline<Places::kQueries>& pipeline;
  const int* noted;  // [kNotedTiles][t_kv] listed positions
  Places places;
  Progress* progresses;  // of the warps
  RowCurve* curves;      // [t_q] of the unit's rows, where they may have some

  static ATTNLOOM_DEVICE int warpgroup() { return warp_id() / 4; }
  static ATTNLOOM_DEVICE int first_row() { return 16 * warp_id(); }

  // How far this warp has come; where that stands is found anew each time, for want of registers.
  static ATTNLOOM_DEVICE Progress& own(Progress* progresses) { return progresses[warp_id()]; }

  // Before the first unit: the first warpgroup begins.
  static ATTNLOOM_DEVICE void begin_turns() {
    if (warpgroup() == 1) give_turn();
  }

  // Runs the unit, and tells whether its rows are partial.
  ATTNLOOM_DEVICE bool run() {
    const Positions positions{unit.index, unit.item, unit.facts.listed};
    const Pairs<V> pairs{unit.params, unit.item, positions, unit.head, unit.facts.masked, unit.facts.by_position};
    State16<S, V, 1> state;
    state.clear();
    settle(state.o[0]);
    const int first = found.whole.template last_tile<kKeys>();
    pipeline.queries.wait_full(own(progresses).queries);
    if constexpr (V::has_query_transform) {
      unit.template transform_queries<Tile>(queries());
      publish();
      meet(kOwn + warpgroup(), 128);
    }
    Cursor<2> at = own(progresses).tiles;
    Goal goal;
    bool partial;
    if (first != kNone) {
      partial = multiply(state, at, first, pairs, goal);
    } else {
      give_queries_back();
      partial = finish(state, goal);
    }
    __syncwarp();
    if (lane_id() == 0) own(progresses).queries.passed++, own(progresses).tiles = at;
    if (partial) unit.write_parts(state, first_row());
    else unit.write_rows(state, goal);
    return partial;
  }

 private:
  static ATTNLOOM_DEVICE void wait_turn() { meet(kTurns + warpgroup(), S::threads); }
  static ATTNLOOM_DEVICE void give_turn() { pass(kTurns + (warpgroup() ^ 1), S::threads); }

  ATTNLOOM_DEVICE char* queries() const { return places.queries(own(progresses).queries.passed); }
  ATTNLOOM_DEVICE void give_queries_back() const { arrive_by_warp(pipeline.queries.empty[own(progresses).queries.place()]); }

  ATTNLOOM_DEVICE uint32_t queries_at() const {
    return operand_at(shared_address(queries()) + 64 * warpgroup() * QTile::row_bytes, QTile::block_bytes);
  }
  ATTNLOOM_DEVICE uint32_t keys_at(int i) const { return operand_at(shared_address(places.keys(i)), KTile::block_bytes); }
  ATTNLOOM_DEVICE uint32_t values_at(int i) const { return operand_at(shared_address(places.values(i)), VTile::block_bytes); }

  // Multiplies the rows with the keys of the unit, from the tile `first` back, and finishes them.
  ATTNLOOM_DEVICE bool multiply(State16<S, V, 1>& state, Cursor<2>& at, int first, const Pairs<V>& pairs, Goal& goal) const {
    Ring<2>&keys = pipeline.keys, &values = pipeline.values;
    const Units<V> units = unit.facts.units;
    Scores s;
    Operands p;
    const uint32_t q_at = queries_at();
    keys.wait_full(at);
    begin_products();
    ask_scores(s, Operand(q_at), Operand(keys_at(at.place())));
    close_products();
    // Not all there is to a key is its product where a tile is `apart`.
    bool beyond = false, apart = pairs.masked || units.scaled || (V::linear_in_distance && unit.facts.listed);
    if constexpr (V::may_curve) apart |= !describe_curves(pairs, units);
    const Tiles<Sight, kKeys> tiles{found.whole, found.of[warpgroup()], apart};
    uint32_t k_at = keys_at(at.place() ^ 1), v_at = values_at(at.place());
    int next = tiles.before(first);
    wait_products<0>();
    settle(s[0]);
    arrive_by_warp(keys.empty[at.place()]);
    weigh_rows<true>(s, p, state, read_tile(first, units, pairs), at, first, units, pairs, tiles.all_seen(first));
    for (;;) {
      const Cursor<2> ahead{at.passed + 1};
      settle(p[0]);
      while (!(ends_soon(values.full[at.place()], at.parity()) &
               (next == kNone || ends_soon(keys.full[ahead.place()], ahead.parity())))) {
      }
      const Operand q(q_at), k(k_at), v(v_at);
      if (next == kNone) {
        give_queries_back();
        begin_products();
        ask_values(state, p, v);
        close_products();
        break;
      }
      wait_turn();
      begin_products();
      ask_scores(s, q, k);
      close_products();
      ask_values(state, p, v);
      close_products();
      give_turn();
      // What is read from shared memory is read while products run.
      at.passed++;
      k_at = keys_at(at.place() ^ 1), v_at = values_at(at.place());
      const int tile = next;
      next = tiles.before(tile);
      const auto reading = read_tile(tile, units, pairs);
      wait_products<1>();
      settle(s[0]);
      arrive_by_warp(keys.empty[at.place()]);
      const bool stands = kReadsProducts<V> && tiles.all_seen(tile);
      const auto standing_row = [&](int h) { return weigh_standing(s, h, state, reading, curves_of_lane(), beyond, units); };
      RowWeights<kKeys / 8> first_row;
      if (kMadeAside<V> && stands) first_row = standing_row(0);
      wait_products<0>();
      settle(state.o[0]);
      arrive_by_warp(values.empty[at.place() ^ 1]);
      if (!kMadeAside<V> && stands) first_row = standing_row(0);
      if (!stands || !take_standing(first_row, standing_row(1), p, state, beyond))
        weigh_rows<false>(s, p, state, reading, at, tile, units, pairs, tiles.all_seen(tile)).apply(state.o);
    }
    const bool partial = finish(state, goal);
    wait_products<0>();
    settle(state.o[0]);
    arrive_by_warp(values.empty[at.place()]);
    at.passed++;
    return partial;
  }

  // Finds what rows need besides their O~, of which the last product may still run, and tells whether they are partial.
  ATTNLOOM_DEVICE bool finish(State16<S, V, 1>& state, Goal& goal) const {
    unit.finish(state);
    __syncwarp();
    const bool partial = unit.partial();
    if (!partial) unit.aim(goal, state, first_row());
    return partial;
  }

  // Notes the curves of the warp's rows, a lane each, and tells whether all are known.
  ATTNLOOM_DEVICE bool describe_curves(const Pairs<V>& pairs, const Units<V>& units) const {
    const int r = first_row() + lane_id() / 2;
    if (lane_id() % 2 == 0) curves[r] = {pairs, unit.rows, units, r};
    __syncwarp();
    return __all_sync(~0u, curves[r].most >= 0.0f);
  }
  // Whether the lane's row g + 8 h is one of the unit's. Queries past the last may be another request's, which have no say.
  ATTNLOOM_DEVICE bool exists(int h) const { return first_row() + lane_id() / 4 + 8 * h < unit.count; }
  ATTNLOOM_DEVICE const RowCurve* curves_of_lane() const { return curves + first_row() + lane_id() / 4; }

  // How the scores of a tile will be read.
  ATTNLOOM_DEVICE Reading<V, 1> read_tile(int tile, const Units<V>& units, const Pairs<V>& pairs) const {
    return read<V, 1>(pairs, unit.rows, units, first_row(), tile * kKeys);
  }
  // Takes weights that were made as though m stood, or finds that it may have to move.
  ATTNLOOM_DEVICE bool take_standing(const RowWeights<kKeys / 8>& first, const RowWeights<kKeys / 8>& second, Operands& p,
                                     State16<S, V, 1>& state, bool& beyond) const {
    const bool holds = (!exists(0) | first.holds) & (!exists(1) | second.holds);
    constexpr float most = Span<S::T>::largest_sum;
    const bool stand = (!exists(0) | (first.sum <= most)) & (!exists(1) | (second.sum <= most));
    if (!__all_sync(~0u, holds & stand)) {
      if (V::may_curve) beyond |= !__all_sync(~0u, holds);
      return false;
    }
#pragma unroll
    for (int t = 0; t < kKeys / 8; t++) p[0][t / 2][t % 2 * 2] = first.pairs[t], p[0][t / 2][t % 2 * 2 + 1] = second.pairs[t];
    state.d[0][0] += first.sum, state.d[0][1] += second.sum;
    return true;
  }

  // Scores that have come in become weights: of the rows' first tile, or of another one.
  template <bool First>
  ATTNLOOM_DEVICE Rescale<1> weigh_rows(Scores& s, Operands& p, State16<S, V, 1>& state, Reading<V, 1> reading, Cursor<2> at, int tile,
                                        const Units<V>& units, const Pairs<V>& pairs, bool all_seen) const {
    bool on_curve = false;
    if constexpr (V::may_curve) {
      reading.take(curves_of_lane());
      on_curve = __all_sync(~0u, (!exists(0) || reading.holds(0, 0, magnitude_of(s[0], 0))) &&
                                     (!exists(1) || reading.holds(0, 1, magnitude_of(s[0], 1))));
    }
    const int* positions = noted + at.passed % kNotedTiles * kKeys;
    return weigh_each<S, V, S::T, First>(s, p, state, reading, pairs, unit.rows, units, first_row(), tile * kKeys, positions, all_seen,
                                         on_curve);
  }

  // s = Q K^T.
  static ATTNLOOM_DEVICE void ask_scores(Scores& s, const Operand& q, const Operand& k) {
    multiply_rows<S::T, false>(s[0], q.at(0), k.at(0));
#pragma unroll
    for (int step = 1; step < S::k_steps; step++)
      multiply_rows<S::T, true>(s[0], q.at(QTile::at(0, 2 * step)), k.at(KTile::at(0, 2 * step)));
  }
  // O~ += P V.
  static ATTNLOOM_DEVICE void ask_values(State16<S, V, 1>& state, const Operands& p, const Operand& v) {
#pragma unroll
    for (int step = 0; step < kKeys / 16; step++)
      multiply_columns<S::T>(state.o[0], p[0][step], v.at(step * 16 * VTile::row_bytes));
  }
};

}  // namespace attnloom::cuda
