// The cut in order, one of two ways to deal q tiles to workers.
#include "work.h"

namespace attnloom::scheduler {

int64_t merge_cost(const PlanInput& input, int64_t part_rows) {
  return part_rows ? input.merge_base + ceil_div(input.gamma * part_rows, input.num_workers) : 0;
}

void restart(Partition& out, int32_t workers) {
  out.pieces.clear();
  out.partials.clear();
  out.queue_length.assign(workers, 0);
  out.queue_order.clear();
  out.busiest = out.total = out.part_rows = 0;
  out.parts_of_one_token = true;
}

namespace {

// Walks the tiles in order and gives each worker an equal share of the cost. The share is computed anew at each worker,
// so rounding never piles up, and reserves one `alpha` for every worker to come: the cut between two pays it.
class ContiguousCut {
 public:
  ContiguousCut(const Job& job, Partition& out) : job_(job), input_(*job.input), out_(out), left_(job.total) {
    for (const Tile& tile : job.tiles) {
      if (job.divisible(tile)) cut_cost_ = std::max(cut_cost_, input_.classes[tile.tile_class].alpha);
    }
  }

  void run() {
    restart(out_, input_.num_workers);
    budget_ = share();
    for (int32_t i = 0; i < static_cast<int32_t>(job_.tiles.size()); ++i) deal(i);
    close_queue();
    out_.makespan = out_.busiest + merge_cost(input_, out_.part_rows);
  }

 private:
  // The tile that is being dealt, and what its keys cost.
  struct Dealt {
    const Tile& tile;
    int32_t index;
    int64_t alpha;
    int64_t key;
    int64_t step;   // of a key tile
    int64_t least;  // key tiles of a piece
    int64_t keys;   // up to its last

    int64_t cost(int64_t keys_before, int64_t keys_after) const { return alpha + key * (keys_after - keys_before); }
  };

  bool last_worker() const { return worker_ == input_.num_workers - 1; }

  int64_t share() const {
    const int64_t workers = input_.num_workers - worker_;
    return ceil_div(left_ + cut_cost_ * (workers - 1), workers);
  }

  void close_queue() {
    out_.queue_length[worker_] = pieces_;
    out_.total += load_;
    out_.busiest = std::max(out_.busiest, load_);
  }

  void next_worker() {
    close_queue();
    ++worker_;
    load_ = pieces_ = 0;
    budget_ = share();
  }

  // A worker's whole heads of a tile are one piece: those that fit, and one more where that is nearest to its share.
  // Then it takes a part of the next head, or nothing.
  void deal(int32_t index) {
    const Tile& tile = job_.tiles[index];
    const int64_t key = job_.key_cost(tile);
    const Dealt dealt{tile,
                      index,
                      input_.classes[tile.tile_class].alpha,
                      key,
                      key * tile.t_kv,
                      job_.min_tiles[tile.tile_class],
                      tile.keys_before(tile.last)};
    for (int32_t head = 0; head < input_.num_kv_heads;) {
      int32_t heads = whole_heads(tile, input_.num_kv_heads - head);
      const bool all = head + heads == input_.num_kv_heads;
      const int64_t budget = budget_ - heads * tile.unit;
      const int32_t to = all ? -1 : cut_of(dealt, tile.first, tile.unit, budget, load_ == 0 && heads == 0);
      heads += to == tile.last;
      if (heads > 0) {
        take(dealt, head, heads, tile.first, tile.last, heads * tile.unit);
        left_ -= heads * tile.unit;
        head += heads;
      }
      if (all) return;
      if (to < 0 || to == tile.last) {
        next_worker();
      } else {
        cut_head(dealt, head++, to);
      }
    }
  }

  // Deals one head, up to key tile `to` to this worker and the rest to those after it.
  void cut_head(const Dealt& dealt, int32_t head, int32_t to) {
    const Tile& tile = dealt.tile;
    int32_t at = tile.first;
    int64_t before = tile.keys_before(at);
    while (to < tile.last) {
      const int64_t keys = tile.keys_before(to);
      const int64_t cost = dealt.cost(before, keys);
      take(dealt, head, 1, at, to, cost);
      left_ -= cost - dealt.alpha;
      next_worker();
      at = to;
      before = keys;
      to = cut_of(dealt, at, dealt.cost(before, dealt.keys), budget_, true);
    }
    const int64_t cost = dealt.cost(before, dealt.keys);
    take(dealt, head, 1, at, tile.last, cost);
    left_ -= cost;
  }

  int32_t whole_heads(const Tile& tile, int32_t heads_left) const {
    if (last_worker() || budget_ >= heads_left * tile.unit) return heads_left;
    if (budget_ < 2 * tile.unit) return budget_ >= tile.unit;
    return static_cast<int32_t>(budget_ / tile.unit);
  }

  // Where the worker's part of one head ends, of which the keys from `at` on cost `rest`: the key tile nearest to its
  // budget that leaves no sliver on either side; -1: it takes none, which an idle one never does. Divides, which takes
  // long, only where it cuts in the middle.
  int32_t cut_of(const Dealt& dealt, int32_t at, int64_t rest, int64_t budget, bool idle) const {
    const Tile& tile = dealt.tile;
    const int64_t least = dealt.least;
    const int64_t tiles = tile.last - at;
    if (last_worker() || rest <= budget) return tile.last;
    if (tile.whole || tiles < 2 * least) return idle || 2 * budget >= rest ? tile.last : -1;
    const int64_t wanted = budget - dealt.alpha + dealt.step / 2;  // key tiles times what one costs
    const int64_t half = (least + 1) / 2;
    if (wanted < least * dealt.step) return idle || wanted >= half * dealt.step ? static_cast<int32_t>(at + least) : -1;
    const int64_t most = tiles - least;
    if (wanted >= (most + half) * dealt.step) return tile.last;
    return static_cast<int32_t>(at + (wanted < most * dealt.step ? wanted / dealt.step : most));
  }

  // Gives the worker a piece; one that is not all of its rows gets the next rows of the workspace.
  void take(const Dealt& dealt, int32_t head0, int32_t heads, int32_t first, int32_t last, int64_t cost) {
    const Tile& tile = dealt.tile;
    int32_t part_row = -1;
    if (tile.partial || first != tile.first || last != tile.last) {
      part_row = static_cast<int32_t>(out_.part_rows);
      out_.part_rows += heads * job_.rows(tile);
      out_.partials.push_back(static_cast<int32_t>(out_.pieces.size()));
      out_.parts_of_one_token &= tile.q_tokens == 1;
    }
    out_.pieces.push_back({dealt.index, head0, heads, first, last, worker_, part_row, -1});
    ++pieces_;
    load_ += cost;
    budget_ -= cost;
  }

  const Job& job_;
  const PlanInput& input_;
  Partition& out_;
  int64_t left_;
  int64_t cut_cost_ = 0;
  int64_t budget_ = 0;
  int64_t load_ = 0;
  int32_t worker_ = 0;
  int32_t pieces_ = 0;  // of the worker
};

}  // namespace

void cut_contiguously(const Job& job, Partition& out) { ContiguousCut(job, out).run(); }

}  // namespace attnloom::scheduler
