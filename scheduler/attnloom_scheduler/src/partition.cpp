// Longest first, one of two ways to deal q tiles to workers, and the choice between them.
#include "work.h"

namespace attnloom::scheduler {
namespace {

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
  cut_contiguously(job, scratch.cut);
  const int64_t cut = scratch.cut.makespan, limit = job.prefill ? cut + cut / 32 : cut - 1;
  if (longest.is_worth(limit) && longest.run(limit)) return scratch.longest;
  kind = kContiguousCut;
  return scratch.cut;
}

}  // namespace attnloom::scheduler
