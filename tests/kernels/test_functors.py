"""What functors are given, recorded; and what becomes of what they return."""

import ctypes

import numpy as np
import pytest
import torch
from kernels import handmade
from kernels.cases import page_table, run_and_compare, shared_prefix, tensor
from kernels.oracle import Plain

SMALL = {"short": (8, 32), "tall": (24, 64)}


class IntTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("shape", ctypes.c_int64), ("stride", ctypes.c_int64)]


class FloatTensor(IntTensor):
    pass


def params_of(**values):
    """Parameters of `one_variant`: ints, floats and contiguous one-dimensional numpy arrays, in order."""
    kinds = {int: ctypes.c_int32, float: ctypes.c_float}
    fields = [(name, kinds.get(type(value), IntTensor)) for name, value in values.items()]
    blob = type("Params", (ctypes.Structure,), {"_fields_": fields})()
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            value = IntTensor(value.ctypes.data, len(value), 1)
        setattr(blob, name, value)
    return blob


# Each functor marks the cell of its site, and the last cell if the site is not what it should be.
RECORDER = handmade.one_variant(
    """
    struct Recorder {
      template <class P> static void mark(const P& p, int64_t cell, bool right) {
        int* log = const_cast<int*>(p.log.data);
        log[right ? cell : p.log.shape[0] - 1] = 1;
      }
      template <class P> static bool row_site(const P& p, const attnloom::Site& s) {
        return s.request >= 0 && s.request < p.requests && s.q_index >= 0 && s.q_index < s.qo_len &&
               s.qo_len == p.qo_len(s.request) && s.kv_len == p.kv_len(s.request) && s.qo_head >= 0 &&
               s.qo_head < p.heads && s.kv_head == s.qo_head / p.group && s.q_pos == s.kv_len - s.qo_len + s.q_index;
      }
      template <class P> static int64_t row_cell(const P& p, const attnloom::Site& s) {
        return (int64_t{p.start(s.request)} + s.q_index) * p.heads + s.qo_head;
      }
      template <class P, class Row> void query_transform(const P& p, Row&, const attnloom::Site& s) const {
        mark(p, 0 * p.area + row_cell(p, s), row_site(p, s) && s.kv_index == -1 && s.kv_pos == -1);
      }
      template <class P, class Row> void output_transform(const P& p, Row&, const attnloom::Site& s) const {
        int64_t cell = 1 * p.area + row_cell(p, s);
        const_cast<int*>(p.log.data)[cell] += 1;
        mark(p, 2 * p.area + row_cell(p, s), row_site(p, s) && s.kv_index == -1 && s.kv_pos == -1);
      }
      template <class P> attnloom::RowInit row_init(const P& p, const attnloom::Site& s) const {
        mark(p, 3 * p.area + row_cell(p, s), row_site(p, s) && s.kv_index == -1 && s.kv_pos == -1);
        return {-attnloom::inf, 0.0f};
      }
      template <class P, class Row> void key_transform(const P& p, Row&, const attnloom::Site& s) const {
        mark(p, 4 * p.area, key_site(s));
      }
      template <class P, class Row> void value_transform(const P& p, Row&, const attnloom::Site& s) const {
        mark(p, 4 * p.area + 1, key_site(s));
      }
      static bool key_site(const attnloom::Site& s) {
        return s.q_index == -1 && s.q_pos == 0 && s.qo_head == -1 && s.kv_index >= 0 && s.kv_index < s.kv_len &&
               s.kv_pos == s.kv_index && s.kv_head >= 0;
      }
      template <class P> float logits_transform(const P& p, float x, const attnloom::Site& s) const {
        const bool right = row_site(p, s) && s.kv_index >= 0 && s.kv_index < s.kv_len && s.kv_pos == s.kv_index;
        mark(p, 5 * p.area + row_cell(p, s) * p.most + s.kv_index, right);
        return x;
      }
      template <class P> bool logits_mask(const P& p, const attnloom::Site& s) const {
        return (s.q_pos + s.kv_pos + s.qo_head) % 3 != 0;
      }
    };
    """,
    "Recorder",
    """int requests, heads, group, most, area; attnloom::TensorRef<int, 1> qo_len, kv_len, start, log;""",
)


class Thirds(Plain):
    def visible(self, site):
        return (site.q_pos + site.kv_pos + site.qo_head) % 3 != 0


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("splits", [0.0, 1.0])
def test_functors_see_every_visible_pair_and_no_other_site(shared, splits):
    rng = np.random.default_rng(8)
    library = handmade.load(RECORDER, d=8, **SMALL)
    if shared:
        batch, pages = shared_prefix(rng, [70, 0], [2, 2], [5, 0, 1, 3], [9, 4, 66, 2], 4)
    else:
        batch, pages = page_table(rng, [9, 0, 1, 4, 2], [70, 5, 33, 2, 0], 4)
    group, kv_heads, most = 3, 2, max(batch.kv_lens)
    heads, tokens = group * kv_heads, sum(batch.qo_lens)
    area = tokens * heads
    log = np.zeros(5 * area + area * most + 1, np.int32)
    arrays = [np.array(x, np.int32) for x in (batch.qo_lens, batch.kv_lens, batch.qo_indptr[:-1])]
    params = params_of(
        requests=len(batch.qo_lens), heads=heads, group=group, most=most, area=area,
        qo_len=arrays[0], kv_len=arrays[1], start=arrays[2], log=log,
    )  # fmt: skip
    run_and_compare(library, batch, pages, kv_heads, group, Thirds(), rng, splits=splits, params=params)
    assert log[-1] == 0, "a functor was given a site that does not exist"
    assert (log[:area] == 1).all(), "query_transform"
    assert (log[area : 2 * area] == 1).all(), "output_transform runs once a row"
    assert (log[3 * area : 4 * area] == 1).all(), "row_init"
    pairs = log[5 * area : -1].reshape(tokens, heads, most)
    for token in range(tokens):
        kv_len = batch.kv_lens[batch.token_request[token]]
        q_pos = kv_len - batch.qo_lens[batch.token_request[token]] + token - batch.qo_indptr[batch.token_request[token]]
        for head in range(heads):
            visible = (q_pos + np.arange(kv_len) + head) % 3 != 0
            assert (pairs[token, head, :kv_len][visible] == 1).all()
            assert (pairs[token, head, kv_len:] == 0).all()


EVERYTHING = handmade.one_variant(
    """
    struct Everything {
      template <class P, class Row> void query_transform(const P&, Row& row, const attnloom::Site& s) const {
        row.each([&](int d, float& x) { x = x * 0.5f + 0.01f * (d + (s.q_pos + 100) % 5 + s.qo_head); });
      }
      template <class P, class Row> void key_transform(const P&, Row& row, const attnloom::Site& s) const {
        row.each([&](int d, float& x) { x = x * 0.7f + 0.01f * (d + s.kv_pos % 7 + s.kv_head); });
      }
      template <class P, class Row> void value_transform(const P&, Row& row, const attnloom::Site& s) const {
        row.each([&](int d, float& x) { x = x * x + 0.01f * (d + s.kv_pos % 3); });
      }
      template <class P> float logits_transform(const P& p, float x, const attnloom::Site& s) const {
        return p.cap * attnloom::tanh(x / p.cap) - 0.02f * (s.q_pos - s.kv_pos) * (1 + s.qo_head);
      }
      template <class P> bool logits_mask(const P&, const attnloom::Site& s) const {
        return (s.kv_index + s.q_index) % 4 != 1;
      }
      template <class P> attnloom::Ranges kv_range(const P& p, const attnloom::Site& s) const {
        return {{0, 4}, {attnloom::max(4, s.q_pos - p.window + 1), attnloom::max(4, s.q_pos + 1)}};
      }
      template <class P> attnloom::RowInit row_init(const P& p, const attnloom::Site& s) const {
        return {p.sinks(s.qo_head), 1.0f};
      }
      template <class P, class Row> void output_transform(const P&, Row& row, const attnloom::Site& s) const {
        const float total = row.sum([](int, float x) { return x * x; });
        row.each([&](int, float& x) { x = x / attnloom::sqrt(1.0f + total) + s.qo_head; });
      }
    };
    """,
    "Everything",
    "float cap; int window; attnloom::TensorRef<float, 1> sinks;",
)


class Everything(Plain):
    def __init__(self, cap, window, sinks):
        self.cap, self.window, self.sinks = cap, window, sinks

    def query_transform(self, x, s):
        return x * 0.5 + 0.01 * (np.arange(x.shape[-1]) + (s.q_pos + 100) % 5 + s.qo_head)

    def key_transform(self, x, s):
        return x * 0.7 + 0.01 * (np.arange(x.shape[-1]) + s.kv_pos[:, None] % 7 + s.kv_head)

    def value_transform(self, x, s):
        return x * x + 0.01 * (np.arange(x.shape[-1]) + s.kv_pos[:, None] % 3)

    def logits_transform(self, x, s):
        return self.cap * np.tanh(x / self.cap) - 0.02 * (s.q_pos - s.kv_pos) * (1 + s.qo_head)

    def visible(self, s):
        near = (s.kv_pos >= max(4, s.q_pos - self.window + 1)) & (s.kv_pos < max(4, s.q_pos + 1))
        return ((s.kv_pos < 4) | near) & ((s.kv_index + s.q_index) % 4 != 1)

    def row_init(self, s):
        return float(self.sinks[s.qo_head]), 1.0

    def output_transform(self, x, s):
        return x / np.sqrt(1 + (x * x).sum()) + s.qo_head


@pytest.mark.parametrize("window", [0, 1, 10, 1000])
@pytest.mark.parametrize("shape", [dict(d=64), dict(d=20, d_v=33, kv_dtype="float8_e4m3fn")])
def test_all_functors_together_and_sinks_once(window, shape):
    sinks = np.linspace(-3, 3, 6).astype(np.float32)
    library = handmade.load(EVERYTHING, **shape, **SMALL)
    for splits in (0.0, 1.0):
        for shared in (False, True):
            rng = np.random.default_rng(window)
            if shared:
                batch, pages = shared_prefix(rng, [70, 0], [2, 2], [5, 0, 1, 30], [9, 4, 66, 40], 4)
            else:
                batch, pages = page_table(rng, [9, 0, 1, 4, 2], [170, 5, 33, 2, 0], 4)
            params = params_of(cap=5.0, window=window, sinks=sinks)
            scales = {"sm_scale": 0.3, "k_scale": np.array([0.5, 2]), "v_scale": np.array([1.5])}
            variant = Everything(5.0, window, sinks)
            run_and_compare(library, batch, pages, 2, 3, variant, rng, splits=splits, params=params, **scales)


SIGMOID = handmade.one_variant(
    """
    struct Sigmoid {
      static constexpr bool use_softmax = false;
      template <class P> float logits_transform(const P& p, float x, const attnloom::Site&) const {
        return attnloom::sigmoid(x + p.bias);
      }
      template <class P> attnloom::Range kv_range(const P&, const attnloom::Site& s) const { return {0, s.q_pos + 1}; }
    };
    """,
    "Sigmoid",
    "float bias;",
)


class Sigmoid(Plain):
    use_softmax = False

    def logits_transform(self, x, s):
        return 1 / (1 + np.exp(-(x - 0.5)))

    def visible(self, s):
        return s.kv_pos <= s.q_pos


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("splits", [0.0, 1.0])
def test_weights_without_softmax(dtype, splits):
    library = handmade.load(SIGMOID, dtype, d=64, out_dtype="float32", **SMALL)
    rng = np.random.default_rng(0)
    batch, pages = page_table(rng, [9, 0, 1, 4, 2], [70, 5, 33, 2, 0], 4)
    scale = np.array([0.01], np.float32)
    run_and_compare(
        library, batch, pages, 2, 3, Sigmoid(), rng, splits=splits, params=params_of(bias=-0.5), v_scale=scale
    )


def test_ranges_cover_what_is_visible_and_skip_the_rest():
    library = handmade.load(EVERYTHING, d=64, **SMALL)
    rng = np.random.default_rng(0)
    batch, pages = page_table(rng, [40, 3], [300, 90], 16)
    params = params_of(cap=5.0, window=20, sinks=np.zeros(2, np.float32))
    q, k = tensor(rng, (43, 2, 64), "float32"), torch.zeros(pages, 16, 1, 64)
    args, *_ = handmade.prepare(
        library, batch, q, k, k, handmade.make_plan(library, batch, 1, 2), sm_scale=1.0, params=params
    )
    bounds = (ctypes.c_int32 * 4)()
    call = lambda *where: (library.attnloom_ranges(ctypes.byref(args), 0, *where, bounds), list(bounds))  # noqa: E731
    assert call(0, 0, 1) == (2, [0, 4, 241, 261])
    assert call(0, 0, 40) == (2, [0, 4, 241, 300])
    assert call(1, 40, 3) == (2, [0, 4, 68, 90])
    assert call(1, 40, 0)[0] == 0
    plain = handmade.load(handmade.NO_VARIANT, d=64, **SMALL)
    assert plain.attnloom_ranges(ctypes.byref(args), 0, 1, 40, 3, bounds) == 1 and list(bounds)[:2] == [0, 90]
