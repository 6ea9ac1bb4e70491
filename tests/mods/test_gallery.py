import numpy as np
import pytest
from attnloom import Variant
from mods import gallery_cases as cases
from mods.table import Table, eager, grid, pick


@pytest.fixture(scope="module")
def table():
    scores = [Variant.from_mods(name, score_mod=mod) for name, mod in cases.SCORES.items()]
    masks = [Variant.from_mods(name, mask_mod=mod) for name, mod in cases.MASKS.items()]
    return Table([*scores, *masks])


@pytest.fixture(scope="module")
def sites():
    return grid(cases.LENGTH, cases.LENGTH, requests=3, heads=(0, 3))


@pytest.mark.parametrize("name", cases.MASKS)
def test_mask_is_the_plain_one(table, sites, name):
    plain = cases.PLAIN_MASKS[name]
    want = [plain(*map(int, site)) for site in zip(sites.request, sites.q_pos, sites.kv_pos, strict=True)]
    np.testing.assert_array_equal(table.keeps(name, sites), want)


@pytest.mark.parametrize("name", cases.SCORES)
def test_score_is_the_plain_one(table, sites, name):
    x = np.random.default_rng(2).standard_normal(len(sites.request)).astype(np.float32) * 9
    want = cases.PLAIN_SCORES[name](x.astype(np.float64), sites.qo_head, sites.q_pos, sites.kv_pos)
    got = table.scores(name, x, sites)
    added = np.abs(sites.q_pos - sites.kv_pos) if name != "forgetting" else np.abs(cases.GATES).max()
    assert (np.abs(got - want) <= 1e-6 * (np.abs(x) + np.abs(want) + added)).all()


@pytest.mark.parametrize("name", [*cases.SCORES, *cases.MASKS])
def test_eager_agrees(table, sites, name):
    some = pick(sites, np.random.default_rng(3), 150)
    x = np.random.default_rng(4).standard_normal(150).astype(np.float32)
    if name in cases.MASKS:
        np.testing.assert_array_equal(table.keeps(name, some), eager("mask_mod", cases.MASKS[name], some))
    else:
        want = eager("score_mod", cases.SCORES[name], some, score=x)
        np.testing.assert_allclose(table.scores(name, x, some), want, rtol=1e-6, atol=1e-6 * np.abs(want).max())


EXACT = {"causal", "prefix_lm", "sliding_window", "global_local", "streaming_sinks", "chunked", "block_diffusion"}


@pytest.mark.parametrize("name", cases.MASKS)
def test_range_skips_what_it_can(table, sites, name):
    functors = table.members[name].functors
    assert "kv_range" in functors
    assert ("logits_mask" not in functors) == (name in EXACT)
    if name in EXACT:
        np.testing.assert_array_equal(table.inside(name, sites), table.keeps(name, sites))


def test_half_of_the_pairs_are_skipped_where_documents_ascend(table, sites):
    looked_at = table.inside("document", sites).mean()
    assert looked_at == table.keeps("document", sites).mean()
    table.bind({"document.document_id": np.array(cases.DOCUMENTS[::-1])})
    try:
        assert table.inside("document", sites).mean() > 0.5
        assert table.keeps("document", sites).mean() < looked_at * 1.01
    finally:
        table.bind()
