// Block rows -> q tiles with the runs of keys they see.
#include "work.h"

namespace attnloom::scheduler {
namespace {

constexpr int64_t kMaxCost = int64_t{1} << 40;
constexpr int64_t kMaxTotal = int64_t{1} << 61;
constexpr int64_t kFewFills = 6;  // of the cache by all keys of a batch

void check_between(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    fail("%s is %lld, must be between %lld and %lld", name, static_cast<long long>(value), static_cast<long long>(low),
         static_cast<long long>(high));
  }
}

const int32_t* tokens_of(const LevelView& level, int32_t q_begin) {
  return level.row_tokens ? level.row_tokens + q_begin : nullptr;
}

void check_row(const PlanInput& input, int32_t l, int32_t row) {
  const LevelView& level = input.index->levels[l];
  const int32_t begin = level.row_indptr[row];
  const int32_t end = level.row_indptr[row + 1];
  if (begin < 0 || end < begin) fail("row_indptr of level %d falls from %d to %d at block row %d", l, begin, end, row);
  if (!level.row_tokens && end > input.index->num_tokens) {
    fail("row_indptr of level %d reaches token %d, the batch has %d tokens", l, end, input.index->num_tokens);
  }
  const int64_t keys = level.kv_len[row];
  const int64_t start = level.kv_start[row];
  const int64_t offset = level.kv_offset[row];
  if (keys < 0 || start < 0 || offset < 0) {
    fail("block row %d of level %d has kv_len %lld, kv_start %lld, kv_offset %lld; none may be negative", row, l,
         static_cast<long long>(keys), static_cast<long long>(start), static_cast<long long>(offset));
  }
  if (start + keys > kMaxInt || offset + keys > kMaxInt) {
    fail("block row %d of level %d: kv_len %lld after kv_start %lld, kv_offset %lld passes the largest ordinal %lld",
         row, l, static_cast<long long>(keys), static_cast<long long>(start), static_cast<long long>(offset),
         static_cast<long long>(kMaxInt));
  }
}

// Counts the block rows each token is in, where that is not plain from the level.
void count_rows_of_tokens(const PlanInput& input, Job& job) {
  const IndexView& index = *input.index;
  const bool contiguous = index.num_levels == 1 && !index.levels[0].row_tokens;
  if (contiguous) {
    const LevelView& level = index.levels[0];
    const int32_t begin = level.num_rows ? level.row_indptr[0] : 0;
    const int32_t end = level.num_rows ? level.row_indptr[level.num_rows] : 0;
    if (begin != 0 || end != index.num_tokens) {
      fail("block rows hold tokens %d to %d, the batch has %d tokens", begin, end, index.num_tokens);
    }
    return;
  }
  job.rows_of_token.assign(index.num_tokens, 0);
  for (int32_t l = 0; l < index.num_levels; ++l) {
    const LevelView& level = index.levels[l];
    for (int32_t row = 0; row < level.num_rows; ++row) {
      for (int32_t i = level.row_indptr[row]; i < level.row_indptr[row + 1]; ++i) {
        const int32_t token = level.row_tokens ? level.row_tokens[i] : i;
        if (token < 0 || token >= index.num_tokens) {
          fail("block row %d of level %d names token %d, the batch has %d tokens", row, l, token, index.num_tokens);
        }
        ++job.rows_of_token[token];
      }
    }
  }
  for (int32_t token = 0; token < index.num_tokens; ++token) {
    if (job.rows_of_token[token] == 0) {
      fail("token %d is in no block row; give it one, with kv_len 0 if it sees no keys", token);
    }
  }
}

int32_t request_of(const IndexView& index, const int32_t* tokens, int32_t q_begin, int32_t q_tokens) {
  if (!tokens) {
    const int32_t request = index.token_request[q_begin];
    return index.token_request[q_begin + q_tokens - 1] == request ? request : -1;
  }
  const int32_t request = index.token_request[tokens[0]];
  for (int32_t i = 1; i < q_tokens; ++i) {
    if (index.token_request[tokens[i]] != request) return -1;
  }
  return request;
}

bool in_several_rows(const Job& job, const int32_t* tokens, int32_t q_begin, int32_t q_tokens) {
  if (job.rows_of_token.empty()) return false;
  for (int32_t i = 0; i < q_tokens; ++i) {
    if (job.rows_of_token[tokens ? tokens[i] : q_begin + i] > 1) return true;
  }
  return false;
}

// Snaps what the range function says outward to key tiles and drops what is empty. Tiles that see all keys, as most do,
// need one division.
void find_keys(const PlanInput& input, int32_t kv_len, Tile& tile) {
  int32_t bounds[4] = {0, kv_len, 0, 0};
  int count = 1;
  if (input.range_fn) {
    count = input.range_fn(input.range_ctx, tile.level, tile.level_row, tile.q_begin, tile.q_tokens, bounds);
    if (count < 0 || count > 2) {
      fail("the range function returned %d intervals for block row %d of level %d, may return 0 to 2", count,
           tile.level_row, tile.level);
    }
  }
  const int64_t t_kv = tile.t_kv;
  int64_t end = 0;
  int runs = 0;
  for (int i = 0; i < count; ++i) {
    if (bounds[2 * i] >= kv_len || bounds[2 * i + 1] <= 0 || bounds[2 * i] >= bounds[2 * i + 1]) continue;
    const int64_t low = bounds[2 * i] > 0 ? bounds[2 * i] / t_kv * t_kv : 0;
    const int64_t seen_up_to = bounds[2 * i + 1];
    const int64_t high = seen_up_to < kv_len ? std::min<int64_t>(ceil_div(seen_up_to, t_kv) * t_kv, kv_len) : kv_len;
    if (runs && low < tile.begin[runs - 1]) {
      fail("the range function returned intervals out of order for block row %d of level %d: %d before %d",
           tile.level_row, tile.level, bounds[0], bounds[2]);
    }
    if (runs && low <= end) {
      end = std::max(end, high);
    } else {
      tile.begin[runs++] = static_cast<int32_t>(low);
      end = high;
    }
    tile.keys[runs - 1] = static_cast<int32_t>(end - tile.begin[runs - 1]);
  }
  tile.run_tiles = static_cast<int32_t>(ceil_div(tile.keys[0], t_kv));
  tile.first = 0;
  tile.last = tile.run_tiles + (runs < 2 ? 0 : static_cast<int32_t>(ceil_div(tile.keys[1], t_kv)));
}

void check_count(const Job& job, int64_t more) {
  if (static_cast<int64_t>(job.tiles.size()) + more <= kMaxItems) return;
  fail("the batch has more than %lld tiles; use a larger t_q or batch_invariant_chunk",
       static_cast<long long>(kMaxItems));
}

// Prices the last tile of the job.
void price_tile(Job& job) {
  Tile& tile = job.tiles.back();
  const TileClass& c = job.input->classes[tile.tile_class];
  const int64_t keys = tile.keys_of(tile.first, tile.last);
  tile.unit = c.alpha + job.key_cost(tile) * keys;
  int64_t cost = 0;
  if (__builtin_mul_overflow(tile.unit, int64_t{job.input->num_kv_heads}, &cost) || cost > kMaxTotal - job.total) {
    fail("the batch costs more than %lld picoseconds; alpha %lld and beta %lld of tile class %d are too large",
         static_cast<long long>(kMaxTotal), static_cast<long long>(c.alpha), static_cast<long long>(c.beta),
         static_cast<int>(tile.tile_class));
  }
  check_count(job, 0);
  job.total += cost;
  job.keys += keys;
}

// Batch-invariant: puts one tile a chunk in the place of the last; chunks end at multiples of the chunk size, counted
// from the request's first key.
void chunk_tile(Job& job, int64_t kv_start) {
  Tile tile = job.tiles.back();
  tile.whole = true;
  job.tiles.pop_back();
  const int64_t chunk = job.input->batch_invariant_chunk;
  const int64_t shift = kv_start % chunk / tile.t_kv * tile.t_kv;
  const int32_t last = tile.last;
  check_count(job, int64_t{last} * tile.t_kv / chunk);
  int64_t at = 0;
  do {
    const int64_t end = (tile.begin_of(at) + shift) / chunk * chunk + chunk - shift;
    int64_t to = std::min<int64_t>((end - tile.begin[0]) / tile.t_kv, tile.run_tiles);
    if (at >= tile.run_tiles || (to == tile.run_tiles && end > tile.begin[1])) {
      to = std::min<int64_t>(tile.run_tiles + (end - tile.begin[1]) / tile.t_kv, last);
    }
    tile.first = static_cast<int32_t>(at);
    tile.last = static_cast<int32_t>(to);
    tile.partial = at > 0 || to < last;
    job.tiles.push_back(tile);
    price_tile(job);
    at = to;
  } while (at < last);
}

int32_t class_of(const PlanInput& input, int64_t rows) {
  if (input.batch_invariant_chunk) return input.invariant_class;
  return input.num_classes == 2 && (rows > input.classes[0].t_q || input.group > input.classes[0].t_q) ? 1 : 0;
}

void add_row(Job& job, int32_t l, int32_t row) {
  const PlanInput& input = *job.input;
  const LevelView& level = input.index->levels[l];
  const int32_t begin = level.row_indptr[row];
  const int32_t tokens = level.row_indptr[row + 1] - begin;
  if (tokens == 0) return;
  const int32_t tile_class = class_of(input, int64_t{tokens} * input.group);
  const int32_t step = job.most_tokens[tile_class];
  job.prefill |= tile_class == 1 || tokens > step;
  job.row_keys += level.kv_len[row];
  for (int32_t at = 0; at < tokens; at += std::min(step, tokens - at)) {
    Tile& tile = job.tiles.emplace_back();
    tile.level = static_cast<uint8_t>(l);
    tile.level_row = row;
    tile.q_begin = begin + at;
    tile.q_tokens = std::min(step, tokens - at);
    tile.row_tokens_before = at;
    tile.page_begin = level.page_begin[row];
    tile.kv_start = level.kv_start[row];
    tile.kv_offset = level.kv_offset[row];
    tile.row_kv_len = level.kv_len[row];
    tile.tile_class = static_cast<uint8_t>(tile_class);
    tile.t_kv = input.classes[tile_class].t_kv;
    const int32_t* tile_tokens = tokens_of(level, tile.q_begin);
    tile.request = request_of(*input.index, tile_tokens, tile.q_begin, tile.q_tokens);
    tile.partial = in_several_rows(job, tile_tokens, tile.q_begin, tile.q_tokens);
    find_keys(input, level.kv_len[row], tile);
    if (!input.batch_invariant_chunk) {
      price_tile(job);
      continue;
    }
    if (tile.request < 0 || tile.partial) {
      fail("block row %d mixes requests or repeats tokens; batch-invariant plans need one row a request", row);
    }
    chunk_tile(job, level.kv_start[row]);
  }
}

}  // namespace

void check_input(const PlanInput& input) {
  check_between("PlanInput.abi", input.abi, kSchedulerAbi, kSchedulerAbi);
  check_between("num_workers", input.num_workers, 1, UINT16_MAX);
  check_between("num_kv_heads", input.num_kv_heads, 1, UINT16_MAX);
  check_between("group", input.group, 1, UINT16_MAX);
  check_between("number of query heads", int64_t{input.num_kv_heads} * input.group, 1, kMaxInt);
  check_between("num_classes", input.num_classes, 1, 2);
  check_between("workers_per_processor", input.workers_per_processor, 0, input.num_workers);
  check_between("merge_base", input.merge_base, 0, kMaxCost);
  check_between("gamma", input.gamma, 0, kMaxInt);
  check_between("cache_bytes", input.cache_bytes, 0, INT64_MAX);
  check_between("kv_bytes_per_key", input.kv_bytes_per_key, 0, kMaxInt);
  check_between("batch_invariant_chunk", input.batch_invariant_chunk, 0, kMaxInt);
  int32_t largest = 0;
  for (int32_t i = 0; i < input.num_classes; ++i) {
    const TileClass& c = input.classes[i];
    check_between("t_q", c.t_q, 1, kMaxInt);
    check_between("t_kv", c.t_kv, 1, kMaxInt / 2);
    check_between("alpha", c.alpha, 1, kMaxCost);
    check_between("beta", c.beta, 0, kMaxInt);
    check_between("row_beta", c.row_beta, 0, (kMaxInt - c.beta) / c.t_q);
    if (input.batch_invariant_chunk % c.t_kv) {
      fail("batch_invariant_chunk %d is not a multiple of t_kv %d", input.batch_invariant_chunk, c.t_kv);
    }
    largest = std::max(largest, c.t_q);
  }
  if (input.num_classes == 2 && input.classes[1].t_q < input.classes[0].t_q) {
    fail("the tall tile's t_q %d is less than the short tile's %d", input.classes[1].t_q, input.classes[0].t_q);
  }
  if (input.group > largest) {
    fail("group %d is more than t_q %d of every tile class; use a taller tile", input.group, largest);
  }
  const IndexView& index = *input.index;
  check_between("num_tokens", index.num_tokens, 0, kMaxInt);
  check_between("num_levels", index.num_levels, 0, kMaxLevels);
  if (!input.batch_invariant_chunk) return;
  check_between("invariant_class", input.invariant_class, 0, input.num_classes - 1);
  check_between("levels of a batch-invariant plan", index.num_levels, 0, 1);
  if (input.group > input.classes[input.invariant_class].t_q) {
    fail("group %d is more than t_q %d of the batch-invariant tile class", input.group,
         input.classes[input.invariant_class].t_q);
  }
}

void collect_tiles(const PlanInput& input, Job& job) {
  job.input = &input;
  job.tiles.clear();
  job.rows_of_token.clear();
  job.total = job.keys = job.row_keys = 0;
  job.prefill = false;
  for (int32_t i = 0; i < input.num_classes; ++i) {
    const TileClass& c = input.classes[i];
    const int64_t key = c.beta + c.row_beta * input.group;
    job.most_tokens[i] = c.t_q / input.group;
    job.min_tiles[i] = key ? std::max<int64_t>(1, ceil_div(c.alpha, key * c.t_kv)) : kMaxInt;
  }
  const IndexView& index = *input.index;
  for (int32_t l = 0; l < index.num_levels; ++l) {
    check_between("num_rows", index.levels[l].num_rows, 0, kMaxInt);
    for (int32_t row = 0; row < index.levels[l].num_rows; ++row) check_row(input, l, row);
  }
  if (index.num_levels == 0 && index.num_tokens > 0) {
    fail("the index has no level for its %d tokens", index.num_tokens);
  }
  if (index.num_levels > 0) count_rows_of_tokens(input, job);
  for (int32_t l = 0; l < index.num_levels; ++l) {
    for (int32_t row = 0; row < index.levels[l].num_rows; ++row) add_row(job, l, row);
  }
  int64_t bytes = 0;
  const bool huge = __builtin_mul_overflow(job.keys, input.kv_bytes_per_key * input.num_kv_heads, &bytes);
  job.read_once = input.workers_per_processor > 1 && !job.prefill && !huge && bytes > 0 && bytes / kFewFills <= input.cache_bytes;
}

}  // namespace attnloom::scheduler
