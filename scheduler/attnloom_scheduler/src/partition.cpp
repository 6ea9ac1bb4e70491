// Two ways to deal q tiles to workers, and the choice between them.
#include "work.h"

namespace attnloom::scheduler {
namespace {

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

// Algorithm 1 of the FlashInfer paper (arXiv 2501.01005): keys are chunked at the mean load, and the longest piece goes
// to the least loaded worker. Heads go in groups whose K and V fit half the cache, or somewhat more where the groups are
// equal then, one group after the other: the short pieces of a last group that is small fill no gaps.
class LongestFirst {
 public:
  LongestFirst(const Job& job, Partitioners& scratch)
      : job_(job), input_(*job.input), out_(scratch.longest), entries_(scratch.entries), loads_(scratch.loads) {
    const int64_t heads = input_.num_kv_heads;
    const int64_t workers = input_.num_workers;
    const int64_t units = static_cast<int64_t>(job.tiles.size()) * heads;
    int64_t bytes = 0;
    group_heads_ = heads;
    if (job.prefill && input_.cache_bytes && input_.kv_bytes_per_key && job.row_keys) {
      const bool huge = __builtin_mul_overflow(job.row_keys, input_.kv_bytes_per_key, &bytes);
      group_heads_ = equal_groups(heads, huge ? 1 : std::clamp<int64_t>(input_.cache_bytes / 2 / bytes, 1, heads));
    }
    const int64_t piece_heads = std::clamp<int64_t>(units / (8 * workers), 1, group_heads_);
    pieces_per_group_ = ceil_div(group_heads_, piece_heads);
    piece_heads_ = ceil_div(group_heads_, pieces_per_group_);
    few_ = units <= 8 * workers;
    perfect_ = ceil_div(job.total, workers);
    const int64_t sharers = std::max(input_.workers_per_processor, 1);
    is_even_ = !job.prefill && units > 0 && (spreads_over(sharers, units) || spreads_over(1, units) ||
                                              (sharers > 1 && spreads_two_heads(units)));
    if (!is_even_) chunk_for(1);
  }

  // Whether each piece has a processor, or a worker, to itself and none waits long for another: a cut, which splits
  // more, is no better.
  bool is_even() const { return is_even_; }

  // Deals them so, as they lie: who gets which makes no difference then.
  void spread() {
    restart(out_, input_.num_workers);
    make_pieces();
    std::fill_n(out_.queue_length.begin(), num_pieces_, 1);
    out_.total = total_;
    out_.busiest = longest_entry() * piece_heads_;
    out_.makespan = makespan(out_.busiest);
  }

  // Whether a plan that ends within `limit` is worth the time to make it.
  bool is_worth(int64_t limit) const { return job_.prefill || (few_ && limit > nearly_perfect()); }

  // False, and `makespan` kNever, where it cannot end within `limit`.
  bool run(int64_t limit) {
    restart(out_, input_.num_workers);
    out_.makespan = kNever;
    dealt_ = 0;
    if (num_pieces_ == 0) make_entries();
    const int64_t most = limit - makespan(0);
    if (num_pieces_ > kMaxItems || shortest_end() > most || most >= kMaxLoad) return false;
    make_pieces();
    out_.total = total_;
    if (!deal(most)) return false;
    out_.makespan = makespan(out_.busiest);
    return true;
  }

 private:
  int64_t makespan(int64_t busiest) const { return busiest + merge_cost(input_, part_rows_); }

  // No plan ends sooner than `perfect_`.
  int64_t nearly_perfect() const { return perfect_ + perfect_ / 16; }

  // Chunks are to be as long as the mean load where one in `sharers` workers has some; to each, keys come as fast as to
  // all `sharers` of its processor.
  void chunk_for(int64_t sharers) {
    sharers_ = sharers;
    mean_keys_ = ceil_div(job_.keys * input_.num_kv_heads * sharers, input_.num_workers);
    total_ = num_pieces_ = part_rows_ = 0;
  }

  // Whether so chunked each piece has one in `sharers` workers to itself, and all are about as long.
  bool spreads_over(int64_t sharers, int64_t units) {
    const int64_t places = input_.num_workers / sharers;
    if (units > places) return false;
    chunk_for(sharers);
    make_entries();
    const int64_t mean = ceil_div(total_, places);
    const int64_t busiest = longest_entry() * piece_heads_;
    return num_pieces_ <= places && busiest <= mean + mean / 16 && makespan(busiest) < kMaxLoad;
  }

  // Whether equal rows do, whole and two heads a piece: they need no merge, and the memory, which all share, hastens those
  // who have more to do.
  bool spreads_two_heads(int64_t units) {
    const int64_t heads = input_.num_kv_heads;
    if (units <= input_.num_workers || units > 2 * input_.num_workers || heads % 2) return false;
    piece_heads_ = 2;
    pieces_per_group_ = heads / 2;
    const auto is_whole_and_equal = [this](const Entry& e) { return e.chunks == 1 && e.cost == entries_[0].cost; };
    if (spreads_over(1, units / 2) && std::all_of(entries_.begin(), entries_.end(), is_whole_and_equal)) return true;
    piece_heads_ = 1;
    pieces_per_group_ = heads;
    return false;
  }

  // The least divisor of `heads` from `size` on, below its double; `size` if there is none.
  static int64_t equal_groups(int64_t heads, int64_t size) {
    for (int64_t n = size; n < 2 * size; ++n) {
      if (heads % n == 0) return n;
    }
    return size;
  }

  int64_t chunks_of(const Tile& tile) const {
    if (!job_.divisible(tile)) return 1;
    const int64_t least = job_.min_tiles[tile.tile_class];
    const int64_t tiles = tile.last - tile.first;
    const int64_t bound = std::max(least, ceil_div(mean_keys_, tile.t_kv));
    return std::min(ceil_div(tiles, bound), tiles / least);
  }

  int64_t cost_of(const Tile& tile, int64_t first, int64_t last) const {
    const int64_t alpha = input_.classes[tile.tile_class].alpha;
    return alpha + (job_.cost(tile, first, last) - alpha) / sharers_;
  }

  static int32_t chunk_end(const Tile& tile, int64_t chunk, int64_t chunks) {
    return static_cast<int32_t>(tile.first + (tile.last - tile.first) * chunk / chunks);
  }

  void make_entries() {
    entries_.clear();
    const int64_t pieces_per_entry = count_head_pieces();
    for (int32_t i = 0; i < static_cast<int32_t>(job_.tiles.size()); ++i) {
      const Tile& tile = job_.tiles[i];
      const int64_t chunks = chunks_of(tile);
      int32_t first = tile.first;
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int32_t last = chunk_end(tile, chunk + 1, chunks);
        const int64_t cost = cost_of(tile, first, last);
        entries_.push_back(
            {cost, i, first, last, static_cast<int32_t>(chunks), static_cast<int32_t>(num_pieces_ + chunk)});
        total_ += cost * input_.num_kv_heads;
        first = last;
      }
      num_pieces_ += chunks * pieces_per_entry;
      if (tile.partial || chunks > 1) part_rows_ += chunks * input_.num_kv_heads * job_.rows(tile);
      if (num_pieces_ > kMaxItems) return;
    }
  }

  // No deal of the entries can end sooner.
  int64_t shortest_end() const {
    return std::max(ceil_div(total_, input_.num_workers), longest_entry() * piece_heads_);
  }

  int64_t longest_entry() const {
    int64_t longest = 0;
    for (const Entry& entry : entries_) longest = std::max(longest, entry.cost);
    return longest;
  }

  int64_t count_head_pieces() const {
    const int64_t heads = input_.num_kv_heads;
    return heads / group_heads_ * pieces_per_group_ + ceil_div(heads % group_heads_, piece_heads_);
  }

  template <class Visit>
  void for_head_pieces(int64_t group_begin, int64_t group_end, const Visit& visit) const {
    for (int64_t head = group_begin; head < group_end; head += piece_heads_) {
      visit(static_cast<int32_t>(head), static_cast<int32_t>(std::min(piece_heads_, group_end - head)));
    }
  }

  int64_t group_end(int64_t begin) const { return std::min<int64_t>(begin + group_heads_, input_.num_kv_heads); }

  void make_pieces() {
    out_.pieces.resize(num_pieces_);
    out_.partials.resize(num_pieces_);
    int32_t piece = 0;
    int32_t partials = 0;
    int64_t part_rows = 0;
    for (size_t e = 0; e < entries_.size(); e += entries_[e].chunks) {
      const Entry* chunks = &entries_[e];
      const Entry* end = chunks + chunks->chunks;
      const Tile& tile = job_.tiles[chunks->tile];
      const bool partial = tile.partial || chunks->chunks > 1;
      const int64_t rows = partial ? job_.rows(tile) : 0;
      if (partial) out_.parts_of_one_token &= tile.q_tokens == 1;
      for (int64_t begin = 0; begin < input_.num_kv_heads; begin += group_heads_) {
        for_head_pieces(begin, group_end(begin), [&](int32_t head, int32_t heads) {
          for (const Entry* chunk = chunks; chunk != end; ++chunk) {
            const int32_t part_row = partial ? static_cast<int32_t>(part_rows) : -1;
            out_.pieces[piece] = {chunk->tile, head, heads, chunk->first, chunk->last, piece, part_row, -1};
            out_.partials[partials] = piece++;
            partials += partial;
            part_rows += heads * rows;
          }
        });
      }
    }
    out_.partials.resize(partials);
    out_.part_rows = part_rows;
  }

  // False as soon as a worker has more than `most`.
  bool deal(int64_t most) {
    std::sort(entries_.begin(), entries_.end(),
              [](const Entry& a, const Entry& b) { return a.cost != b.cost ? a.cost > b.cost : a.piece < b.piece; });
    loads_.restart(input_.num_workers);
    out_.queue_order.resize(num_pieces_);
    int32_t head_piece = 0;
    for (int64_t begin = 0; begin < input_.num_kv_heads; begin += group_heads_) {
      int32_t in_group = 0;
      for (const Entry& entry : entries_) {
        in_group = 0;
        for_head_pieces(begin, group_end(begin), [&](int32_t, int32_t heads) {
          give(entry.piece + (head_piece + in_group++) * entry.chunks, entry.cost * heads);
        });
        if (out_.busiest > most) return false;
      }
      head_piece += in_group;
    }
    return true;
  }

  void give(int32_t piece, int64_t cost) {
    const Loads::Given given = loads_.give(cost);
    out_.pieces[piece].worker = given.worker;
    out_.queue_order[dealt_++] = piece;
    ++out_.queue_length[given.worker];
    out_.busiest = std::max(out_.busiest, given.load);
  }

  const Job& job_;
  const PlanInput& input_;
  Partition& out_;
  std::vector<Entry>& entries_;
  Loads& loads_;
  int64_t group_heads_;
  int64_t pieces_per_group_;
  int64_t piece_heads_;
  int64_t sharers_ = 1;
  int64_t mean_keys_ = 0;
  int64_t total_ = 0;
  int64_t num_pieces_ = 0;
  int64_t part_rows_ = 0;
  int32_t dealt_ = 0;  // pieces
  int64_t perfect_;
  bool few_;
  bool is_even_ = false;
};

}  // namespace

// Prefill may cost 1/32 more where it runs longest first: there heads share the cache, which the prediction leaves out.
Partition& divide(const Job& job, Partitioners& scratch, Partitioner& kind) {
  LongestFirst longest(job, scratch);
  kind = kLongestFirst;
  if (longest.is_even()) {
    longest.spread();
    return scratch.longest;
  }
  ContiguousCut(job, scratch.cut).run();
  const int64_t cut = scratch.cut.makespan, limit = job.prefill ? cut + cut / 32 : cut - 1;
  if (longest.is_worth(limit) && longest.run(limit)) return scratch.longest;
  kind = kContiguousCut;
  return scratch.cut;
}

}  // namespace attnloom::scheduler
