// A partition -> the bytes of a plan.
#include <cstring>
#include <new>

#include "work.h"

namespace attnloom::scheduler {
namespace {

constexpr std::align_val_t kAlign{kPlanAlign};

int64_t aligned(int64_t bytes) { return ceil_div(bytes, kPlanAlign) * kPlanAlign; }

// Sections of the plan. The gaps between are zero: equal plans are equal bytes.
struct Layout {
  int64_t end = 0;
  int64_t gaps[8];
  int sections = 0;

  int64_t add(int64_t bytes) {
    const int64_t begin = end;
    gaps[sections++] = begin + bytes;
    end = aligned(begin + bytes);
    return begin;
  }

  void clear_gaps(char* base) const {
    for (int i = 0; i < sections; ++i) std::memset(base + gaps[i], 0, aligned(gaps[i]) - gaps[i]);
  }
};

int32_t token_at(const LevelView& level, const Tile& tile, int32_t i) {
  return level.row_tokens ? level.row_tokens[tile.q_begin + i] : tile.q_begin + i;
}

// The reduction map: for every output row made of partials, its parts in KV order.
class MergeLists {
 public:
  MergeLists(const Job& job, Partition& partition, EmitScratch& scratch)
      : job_(job),
        index_(*job.input->index),
        group_(job.input->group),
        heads_(int64_t{job.input->num_kv_heads} * job.input->group),
        partition_(partition),
        s_(scratch) {
    s_.tokens.clear();
    s_.partials.clear();
    if (partition.part_rows == 0) return;
    in_order_ = parts_lie_in_order();
    if (in_order_) {
      number_runs();
    } else {
      order_partials();
      find_tokens();
      count_parts();
    }
  }

  int32_t num_merge() const { return num_merge_; }

  void write(int32_t* merge_token, int32_t* merge_head, int32_t* merge_indptr, int32_t* merge_part) {
    merge_indptr[0] = 0;
    if (in_order_) {
      write_runs(merge_token, merge_head, merge_indptr, merge_part);
    } else {
      write_rows(merge_token, merge_head, merge_indptr, merge_part);
    }
  }

 private:
  // In plain decode the partials of one token and kv head follow each other, tokens and heads ascending: a run.
  bool parts_lie_in_order() const {
    return partition_.parts_of_one_token && job_.rows_of_token.empty() && !job_.input->batch_invariant_chunk;
  }

  void number_runs() {
    const Piece* last = nullptr;
    for (const int32_t p : partition_.partials) {
      Piece& piece = partition_.pieces[p];
      const bool goes_on = last && last->tile == piece.tile && last->head0 == piece.head0;
      piece.merge_id = goes_on ? last->merge_id : num_merge_;
      if (!goes_on) num_merge_ += static_cast<int32_t>(piece.heads * group_);
      last = &piece;
    }
  }

  // The rows of a run lie in the workspace as in the merge list: part by part there, row by row here.
  void write_runs(int32_t* merge_token, int32_t* merge_head, int32_t* merge_indptr, int32_t* merge_part) const {
    const std::vector<int32_t>& partials = partition_.partials;
    int32_t place = 0;
    for (size_t begin = 0, end = 0; begin < partials.size(); begin = end) {
      const Piece& first = partition_.pieces[partials[begin]];
      while (end < partials.size() && partition_.pieces[partials[end]].merge_id == first.merge_id) ++end;
      const int32_t parts = static_cast<int32_t>(end - begin), rows = first.heads * static_cast<int32_t>(group_);
      const int32_t token = job_.tiles[first.tile].q_begin, head = first.head0 * static_cast<int32_t>(group_);
      const int32_t rows_end = place + parts * rows;
      for (int32_t row = 0; row < rows; ++row) {
        *merge_token++ = token;
        *merge_head++ = head + row;
        for (int32_t part_row = place + row; part_row < rows_end; part_row += rows) *merge_part++ = part_row;
        *++merge_indptr = place + (row + 1) * parts;
      }
      place = rows_end;
    }
  }

  void write_rows(int32_t* merge_token, int32_t* merge_head, int32_t* merge_indptr, int32_t* merge_part) {
    int32_t place = 0;
    for (size_t slot = 0; slot < s_.tokens.size(); ++slot) {
      for (int64_t head = 0; head < heads_; ++head) {
        const int64_t at = static_cast<int64_t>(slot) * heads_ + head;
        const int32_t parts = s_.counts[at];
        if (parts == 0) continue;
        *merge_token++ = s_.tokens[slot];
        *merge_head++ = static_cast<int32_t>(head);
        s_.counts[at] = place;
        place += parts;
        *++merge_indptr = place;
      }
    }
    for (const int32_t p : s_.partials) {
      const Piece& piece = partition_.pieces[p];
      for_rows(piece, [&](int32_t& next, int64_t row) {
        merge_part[next++] = static_cast<int32_t>(piece.part_row + row);
      });
    }
  }

  // The pieces lie by level, row, head, key. That is KV order for every token unless a later level holds earlier keys.
  void order_partials() {
    s_.partials = partition_.partials;
    if (levels_ascend()) return;
    std::sort(s_.partials.begin(), s_.partials.end(), [this](int32_t a, int32_t b) {
      const int64_t key_a = first_key(partition_.pieces[a]);
      const int64_t key_b = first_key(partition_.pieces[b]);
      return key_a != key_b ? key_a < key_b : a < b;
    });
  }

  int64_t first_key(const Piece& piece) const {
    const Tile& tile = job_.tiles[piece.tile];
    return index_.levels[tile.level].kv_start[tile.level_row] + tile.begin_of(piece.first);
  }

  bool levels_ascend() {
    if (job_.rows_of_token.empty()) return true;
    s_.seen_up_to.assign(index_.num_tokens, 0);
    for (const Tile& tile : job_.tiles) {
      const LevelView& level = index_.levels[tile.level];
      const int64_t first_key = level.kv_start[tile.level_row] + tile.begin_of(tile.first);
      const int64_t last_begin = level.kv_start[tile.level_row] + tile.begin_of(std::max(tile.first, tile.last - 1));
      for (int32_t i = 0; i < tile.q_tokens; ++i) {
        int32_t& seen = s_.seen_up_to[token_at(level, tile, i)];
        if (first_key < seen) return false;
        seen = static_cast<int32_t>(last_begin);  // a row of no keys may stand anywhere among another level's
      }
    }
    return true;
  }

  void find_tokens() {
    s_.slot_of_token.assign(index_.num_tokens, -1);
    for (const int32_t p : s_.partials) {
      const Tile& tile = job_.tiles[partition_.pieces[p].tile];
      for (int32_t i = 0; i < tile.q_tokens; ++i) s_.slot_of_token[token_at(index_.levels[tile.level], tile, i)] = 0;
    }
    for (int32_t token = 0; token < index_.num_tokens; ++token) {
      if (s_.slot_of_token[token] < 0) continue;
      s_.slot_of_token[token] = static_cast<int32_t>(s_.tokens.size());
      s_.tokens.push_back(token);
    }
  }

  void count_parts() {
    const int64_t size = static_cast<int64_t>(s_.tokens.size()) * heads_;
    s_.counts.assign(size, 0);
    for (const int32_t p : s_.partials) {
      for_rows(partition_.pieces[p], [](int32_t& count, int64_t) { ++count; });
    }
    s_.entry.resize(size);
    for (int64_t at = 0; at < size; ++at) {
      s_.entry[at] = num_merge_;
      num_merge_ += s_.counts[at] > 0;
    }
    for (const int32_t p : s_.partials) {
      Piece& piece = partition_.pieces[p];
      const Tile& tile = job_.tiles[piece.tile];
      const int32_t token = token_at(index_.levels[tile.level], tile, 0);
      piece.merge_id = s_.entry[s_.slot_of_token[token] * heads_ + int64_t{piece.head0} * group_];
    }
  }

  // Visits (count or place of the output row, workspace row within the piece) for every row of a piece.
  template <class Visit>
  void for_rows(const Piece& piece, const Visit& visit) {
    const Tile& tile = job_.tiles[piece.tile];
    const LevelView& level = index_.levels[tile.level];
    const int64_t rows = job_.rows(tile);
    for (int32_t i = 0; i < tile.q_tokens; ++i) {
      int32_t* of_token = &s_.counts[s_.slot_of_token[token_at(level, tile, i)] * heads_];
      for (int64_t h = 0; h < piece.heads; ++h) {
        int32_t* of_head = of_token + (piece.head0 + h) * group_;
        for (int64_t g = 0; g < group_; ++g) visit(of_head[g], h * rows + int64_t{i} * group_ + g);
      }
    }
  }

  const Job& job_;
  const IndexView& index_;
  const int64_t group_;
  const int64_t heads_;
  Partition& partition_;
  EmitScratch& s_;
  int32_t num_merge_ = 0;
  bool in_order_ = false;
};

// Reads nothing of the item that it writes: what was just written in one piece cannot be read yet in another.
void write_item(const Job& job, const Piece& piece, Item& item) {
  const Tile& tile = job.tiles[piece.tile];
  const int32_t kv_begin = static_cast<int32_t>(tile.begin_of(piece.first));
  const int32_t kv_end = std::max(kv_begin, static_cast<int32_t>(tile.end_of(piece.last)));
  const bool whole_row = kv_begin == 0 && kv_end == tile.row_kv_len;
  const int flags = (piece.part_row < 0 ? 0 : kItemPartial) | (whole_row ? kItemWholeRow : 0) |
                    (job.read_once ? kItemReadOnce : 0);
  item = tile;
  item.kv_begin = kv_begin;
  item.kv_end = kv_end;
  item.part_row = piece.part_row;
  item.merge_id = piece.merge_id;
  item.head0 = static_cast<uint16_t>(piece.head0);
  item.heads = static_cast<uint16_t>(piece.heads);
  item.flags = static_cast<uint16_t>(flags);
}

void write_queues(const Job& job, const Partition& partition, EmitScratch& scratch, WorkerQueue* queues, Item* items) {
  const int32_t workers = job.input->num_workers;
  int32_t begin = 0;
  for (int32_t w = 0; w < workers; ++w) {
    const int32_t length = partition.queue_length[w];
    if (length == 0) queues[w].first = Item{};
    queues[w].next = begin;
    queues[w].end = begin += length > 1 ? length - 1 : 0;
    queues[w].reserved[0] = queues[w].reserved[1] = 0;
  }
  if (partition.queue_order.empty()) {  // worker by worker
    int32_t worker = -1;
    for (const Piece& piece : partition.pieces) {
      write_item(job, piece, piece.worker == worker ? *items++ : queues[piece.worker].first);
      worker = piece.worker;
    }
    return;
  }
  scratch.next_item.assign(workers, nullptr);
  for (const int32_t p : partition.queue_order) {
    const Piece& piece = partition.pieces[p];
    Item*& next = scratch.next_item[piece.worker];
    write_item(job, piece, next == nullptr ? queues[piece.worker].first : *next);
    next = next == nullptr ? items + queues[piece.worker].next : next + 1;
  }
}

}  // namespace

Buffer::~Buffer() { ::operator delete(data, kAlign); }

void Buffer::reserve(int64_t bytes) {
  if (bytes <= capacity) return;
  const int64_t wanted = aligned(bytes + bytes / 2);
  char* grown = static_cast<char*>(::operator new(wanted, kAlign));
  ::operator delete(data, kAlign);
  data = grown;
  capacity = wanted;
}

PlanSummary write_plan(const Job& job, Partition& partition, EmitScratch& scratch, Buffer& buffer) {
  const PlanInput& input = *job.input;
  const int64_t workers = input.num_workers;
  if (partition.part_rows > kMaxInt) {
    fail("the plan needs %lld workspace rows, a plan holds at most %lld; plan fewer tokens at once",
         static_cast<long long>(partition.part_rows), static_cast<long long>(kMaxInt));
  }
  MergeLists merges(job, partition, scratch);

  PlanHeader header{};
  header.abi = kPlanAbi;
  header.num_workers = input.num_workers;
  header.num_items = static_cast<int32_t>(partition.pieces.size());
  header.num_merge = merges.num_merge();
  header.num_merge_parts = static_cast<int32_t>(partition.part_rows);
  header.num_part_rows = static_cast<int32_t>(partition.part_rows);
  header.num_classes = input.num_classes;
  header.fused_merge = input.index->num_levels == 1;
  for (int32_t i = 0; i < input.num_classes; ++i) {
    header.t_q[i] = input.classes[i].t_q;
    header.t_kv[i] = input.classes[i].t_kv;
  }
  Layout layout;
  const auto section = [&layout](int64_t bytes) { return layout.add(bytes); };
  section(sizeof(PlanHeader));
  header.workers = section(sizeof(WorkerQueue) * workers);
  const int64_t busy = workers - std::count(partition.queue_length.begin(), partition.queue_length.end(), 0);
  header.items = section(sizeof(Item) * (header.num_items - busy));
  header.merge_token = section(sizeof(int32_t) * header.num_merge);
  header.merge_head = section(sizeof(int32_t) * header.num_merge);
  header.merge_indptr = section(sizeof(int32_t) * (int64_t{header.num_merge} + 1));
  header.merge_part = section(sizeof(int32_t) * int64_t{header.num_merge_parts});
  const int64_t arrived_bytes = sizeof(int32_t) * int64_t{header.num_merge / input.group};
  header.arrived = section(arrived_bytes);
  header.total_bytes = layout.end;

  buffer.reserve(layout.end);
  char* base = buffer.data;
  layout.clear_gaps(base);
  std::memcpy(base, &header, sizeof(header));
  const auto ints = [base](int64_t offset) { return reinterpret_cast<int32_t*>(base + offset); };
  write_queues(job, partition, scratch, reinterpret_cast<WorkerQueue*>(base + header.workers),
               reinterpret_cast<Item*>(base + header.items));
  merges.write(ints(header.merge_token), ints(header.merge_head), ints(header.merge_indptr), ints(header.merge_part));
  std::memset(base + header.arrived, 0, arrived_bytes);

  PlanSummary summary{};
  summary.plan = base;
  summary.nbytes = layout.end;
  summary.makespan = partition.makespan;
  summary.busiest = partition.busiest;
  summary.total = partition.total;
  summary.num_items = header.num_items;
  summary.num_merge = header.num_merge;
  summary.num_merge_parts = header.num_merge_parts;
  summary.num_part_rows = header.num_part_rows;
  summary.num_tiles = static_cast<int32_t>(job.tiles.size());
  return summary;
}

}  // namespace attnloom::scheduler
