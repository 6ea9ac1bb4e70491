// The warps of a block that go through its queue ahead of those who compute: they find the units, and copy the queries and keys of
// those of many rows.
#pragma once
#include "tracks.cuh"

namespace attnloom::cuda {

template <class S, class V, int C>
struct Copiers {
  // Of four warps one copies keys, one values, both as they are, and two find units and copy queries.
  static_assert(S::copiers == 4 && !S::narrow && !V::has_key_transform && !V::has_value_transform);
  using Team = Copying<S, 2>;  // of those who find
  using Tile = Class<S, C>;
  using R = typename Found<S, V>::R;
  using Sight = typename Found<S, V>::Sight;
  using Way = cuda::Way<S, V, R>;
  using Places = cuda::Places<S, V, C>;
  template <int Which>
  using Track = cuda::Track<S, V, C, R, Which>;
  static constexpr int kKeys = Tile::t_kv, kNone = Sight::kNone, kPieces = sizeof(Item) / 16;

  // What only those have who find units.
  struct alignas(16) Own {
    Item items[2];             // the one whose units are found, and the next
    Sight seen[Tile::t_q / 32];  // by rows that a warp describes
  };

  const RunArgs& args;
  const typename V::Params& params;
  const IndexView& index;
  const PlanHeader& plan;
  const WorkerQueue& queue;
  const int& group;
  Found<S, V>* found;  // [kFound]
  Pipeline<Places::kQueries>& pipeline;
  Own& own;
  int* noted;  // [kNotedTiles][t_kv]
  Places places;
  const BoxMaps& maps;

  ATTNLOOM_DEVICE void run() {
    const int warp = warp_id() % S::copiers;
    if (warp == 0) copy_units<0>();
    else if (warp == 1) copy_units<1>();
    else find_units();
  }

 private:
  static ATTNLOOM_DEVICE uint4& piece(Item& item) { return reinterpret_cast<uint4*>(&item)[thread_id<Team>()]; }
  static ATTNLOOM_DEVICE const uint4& piece(const Item& item) { return reinterpret_cast<const uint4*>(&item)[thread_id<Team>()]; }

  // Asks for the i-th item after the first.
  ATTNLOOM_DEVICE void ask_item(int i) const {
    const Item* from = reinterpret_cast<const Item*>(static_cast<const char*>(args.plan) + plan.items) + queue.next + i - 1;
    if (queue.next + i <= queue.end && thread_id<Team>() < kPieces) copy_16(shared_address(&piece(own.items[i % 2])), &piece(*from), true);
    close_group();
  }

  // Finds the units of the queue one after the other, and copies the queries of each.
  ATTNLOOM_DEVICE void find_units() const {
    Cursor<kFound> at;
    Cursor<Places::kQueries> at_queries;
    if (thread_id<Team>() < kPieces) piece(own.items[0]) = piece(queue.first);
    for (int i = queue.first.q_tokens > 0 ? 0 : queue.end - queue.next + 1; queue.next + i <= queue.end; i++) {
      wait_groups<0>();
      sync<Team>();
      ask_item(i + 1);
      const Item& item = own.items[i % 2];
      const bool tall = S::one_class || item.tile_class == C;
      for (int head = 0; head < (tall ? item.heads : 1); head++, at.passed++) {
        Found<S, V>& to = place(item, tall ? Work::kTall : Work::kShort, head, at);
        if (tall) describe(to);
        arrive(pipeline.units.full[at.place()]);
        if (tall) copy_queries(unit_of(to), at_queries);
        else wait(pipeline.units.empty[at.place()], at.parity());  // for its memory
      }
    }
    place(own.items[0], Work::kEnd, 0, at);
    arrive(pipeline.units.full[at.place()]);
  }

  // Puts an item where the next unit is found.
  ATTNLOOM_DEVICE Found<S, V>& place(const Item& item, Work work, int head, Cursor<kFound> at) const {
    pipeline.units.wait_empty(at);
    Found<S, V>& to = found[at.place()];
    if (thread_id<Team>() < kPieces) piece(to.item) = piece(item);
    if (thread_id<Team>() == 0) to.work = work, to.head = item.head0 + head, to.count = item.q_tokens * group;
    sync<Team>();
    return to;
  }

  ATTNLOOM_DEVICE Unit<Team, V, R> unit_of(Found<S, V>& of) const {
    return {args, params, index, plan, of.item, of.rows, of.facts, of.merging, of.head, of.count, group};
  }

  // Finds a unit's rows, and what they see.
  ATTNLOOM_DEVICE void describe(Found<S, V>& to) const {
    const Unit<Team, V, R> unit = unit_of(to);
    if (thread_id<Team>() == 0) to.route.find(Source<Team>{args, index, unit.item, unit.head}, kKeys);
    unit.describe(Tile::t_q, [&](int r, const PackedRow<V>& row, bool by_position) {
      own.seen[r / 32].look(row, r < unit.count, unit.item, by_position);
    });
    static_assert(Tile::t_q == 128);
    if (thread_id<Team>() != 0) return;
    to.of[0] = own.seen[0], to.of[1] = own.seen[2];
    to.of[0].join(own.seen[1]), to.of[1].join(own.seen[3]);
    to.whole = to.of[0];
    to.whole.join(to.of[1]);
  }

  ATTNLOOM_DEVICE void copy_queries(const Unit<Team, V, R>& unit, Cursor<Places::kQueries>& at) const {
    Barrier& full = pipeline.queries.full[at.place()];
    const uint32_t to = shared_address(places.queries(at.passed));
    pipeline.queries.wait_empty(at);
    at.passed++;
    if (maps.queries && index.levels[unit.item.level].row_tokens == nullptr) {
      constexpr int blocks = (Tile::QTile::pieces + 7) / 8;
      if (warp_of<Team>() > 0) return arrive_by_warp(full);
      __syncwarp();  // or a lane that still looks whether the place is empty could miss that: it is filled and emptied again
      if (lane_id() > 0) return;
      arrive_before(full, Tile::QTile::bytes(Tile::t_q));
#pragma unroll
      for (int block = 0; block < blocks; block++)
        copy_box(to + block * Tile::QTile::block_bytes, maps.q, 64 * block, unit.head * group, unit.item.q_begin, 0, full);
    } else {
      unit.template copy_queries<Tile>(to);
      close_group();
      wait_groups<0>();
      publish();
      arrive_by_warp(full);
    }
  }

  // Copies the keys, or the values, of each unit of many rows.
  template <int Which>
  ATTNLOOM_DEVICE void copy_units() const {
    Cursor<2> at;
    for (Cursor<kFound> at_unit;; at_unit.passed++) {
      pipeline.units.wait_full(at_unit);
      Found<S, V>& of = found[at_unit.place()];
      if (of.work == Work::kEnd) return;
      if (of.work == Work::kTall) copy_unit<Which>(of, at);
      arrive(pipeline.units.empty[at_unit.place()]);
    }
  }
  template <int Which>
  ATTNLOOM_DEVICE void copy_unit(Found<S, V>& of, Cursor<2>& at) const {
    const Positions positions{index, of.item, of.facts.listed};
    const Way way{of.item, of.head, of.route, of.whole, maps};
    Ring<2>& ring = Which == 0 ? pipeline.keys : pipeline.values;
    Barrier* sent = nullptr;  // of copies under way whose coming in this warp has to tell
    for (Track<Which> track(way); track.next != kNone; at.passed++) {
      if (!__all_sync(~0u, ring.is_empty(at))) {
        deliver<0>(sent);
        ring.wait_empty(at);
      }
      if (Which == 0 && positions.listed) {
#pragma unroll 1
        for (int row = 0; row < kKeys; row += kSlice) positions.note(track.next * kKeys + row, noted + at.passed % kNotedTiles * kKeys + row);
      }
      Barrier& full = ring.full[at.place()];
      if (track.copy(shared_address(Which == 0 ? places.keys(at.passed) : places.values(at.passed)), full)) {
        deliver<0>(sent);
      } else {
        close_group();
        deliver<1>(sent);
        sent = &full;
      }
    }
    deliver<0>(sent);
  }

  // Waits until at most Others groups after those that were sent are under way, and says that they have come in.
  template <int Others>
  static ATTNLOOM_DEVICE void deliver(Barrier*& sent) {
    if (sent == nullptr) return;
    wait_groups<Others>();
    publish();
    arrive_by_warp(*sent);
    sent = nullptr;
  }
};

}  // namespace attnloom::cuda
