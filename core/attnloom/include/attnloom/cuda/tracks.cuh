// How warps that copy go through the keys of a unit.
#pragma once
#include "pipeline.cuh"

namespace attnloom::cuda {

// What is known of a unit's keys.
template <class S, class V, class R>
struct Way {
  const Item& item;
  const int& head;
  const Route& route;
  const Seen<R::slots>& seen;  // by the unit
  const BoxMaps& maps;
};

// How a warp goes through K (Which: 0) or V (1) of a unit, from its last tile to its first: a box a lane where a whole tile lies in
// boxes, else row by row.
template <class S, class V, int C, class R, int Which>
struct Track {
  using Tile = Class<S, C>;
  using RowTile = std::conditional_t<Which == 0, typename Tile::KTile, typename Tile::VTile>;
  static constexpr int kKeys = Tile::t_kv, kNone = Seen<R::slots>::kNone;
  static constexpr int kRowBytes = (Which == 0 ? S::head_dim : S::head_dim_v) * S::key_bytes;
  static constexpr bool kFollowing = Which == 0 && S::keys_ahead;  // rows follow each other, as in no cache

  const Way<S, V, R>& way;
  int next;     // the tile before those that were asked for
  int box;      // rows of a box; 0: there are none
  Place place;  // of this lane's box of `next`

  ATTNLOOM_DEVICE int key(int row) const { return static_cast<int>(static_cast<uint32_t>(next) * kKeys) + row; }
  ATTNLOOM_DEVICE int row() const { return min(lane_id() * box, kKeys - box); }

  ATTNLOOM_DEVICE explicit Track(const Way<S, V, R>& way) : way(way) {
    next = way.seen.template last_tile<kKeys>();
    box = 0;
    if (way.maps.page_size == static_cast<int>(way.route.trail.page_size)) {
      box = kFollowing && way.maps.rows > 0 ? kKeys : way.maps.rows;
      if (box < kKeys && box > 0 && way.item.kv_offset % box != 0) box = 0;
    }
    find();
  }

  // Asks for the rows of `next`, to where row 0 of the tile goes, and goes on; tells whether `full` will know by itself when
  // they have come in.
  ATTNLOOM_DEVICE bool copy(uint32_t to, Barrier& full) {
    const bool boxes = fits_boxes();
    if (boxes) copy_boxes(to, full);
    else copy_each(to);
    const int before = next;
    next = way.seen.template tile_before<kKeys>(before);
    if (next == before - 1 && !kFollowing && box > 0) {
      place.step_back(way.route.trail);
      place.look_up(way.route.trail, way.seen.sees(key(row())));
    } else {
      find();
    }
    return boxes;
  }

 private:
  // Finds where this lane's box of `next` lies.
  ATTNLOOM_DEVICE void find() {
    if (kFollowing || box == 0 || next == kNone) return;
    place.seek(way.route.trail, way.item, key(row()));
    place.look_up(way.route.trail, way.seen.sees(key(row())));
  }

  // Whether all rows of `next` are there, in boxes.
  ATTNLOOM_DEVICE bool fits_boxes() const {
    if (box == 0 || !way.seen.sees_every(key(0), key(kKeys))) return false;
    return kFollowing || __all_sync(~0u, place.slot + box <= way.route.trail.page_size);
  }
  ATTNLOOM_DEVICE void copy_boxes(uint32_t to, Barrier& full) const {
    constexpr int blocks = (RowTile::pieces + 7) / 8;
    if (lane_id() == 0) arrive_before(full, RowTile::bytes(kKeys));
    __syncwarp();
    const TensorMap& map = Which == 0 ? way.maps.k : way.maps.v;
    if (lane_id() * box >= kKeys) return;
    const int slot = kFollowing ? way.route.row_ahead + key(row()) : static_cast<int>(place.slot);
#pragma unroll
    for (int block = 0; block < blocks; block++)
      copy_box(to + block * RowTile::block_bytes + row() * RowTile::row_bytes, map, 64 * block, slot, kFollowing ? 0 : way.head,
               kFollowing ? 0 : place.page, full);
  }
  ATTNLOOM_DEVICE void copy_each(uint32_t to) const {
    const Route& route = way.route;
#pragma unroll 1
    for (int first = 0; first < kKeys; first += 32) {
      const int key = this->key(first + lane_id());
      uint32_t at;
      if constexpr (kFollowing) {
        at = static_cast<uint32_t>(key) * (kRowBytes / 16);
      } else {
        Place one;
        one.seek(route.trail, way.item, key);
        one.look_up(route.trail, way.seen.sees(key));
        at = one.page >= 0 ? static_cast<uint32_t>(one.page) * route.stride_page[Which] + one.slot * route.stride_slot[Which] : kNowhere;
      }
      copy_32_rows<RowTile, kRowBytes>(route.base[Which], at, to + first * RowTile::row_bytes);
    }
  }
};

}  // namespace attnloom::cuda
