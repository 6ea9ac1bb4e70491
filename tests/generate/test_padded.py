"""`attn_implementation="attnloom"`: padded batches, any cache, any mask."""

import pytest
import torch
from attnloom.errors import UnsupportedError
from attnloom.integrations.eager import generate_eagerly, left_padded
from attnloom.integrations.generation import implementation
from attnloom.integrations.masks import as_padded_mask, padded_mask
from attnloom.integrations.transformers import PagedCache, register_transformers
from models import prompts

NEW = 10


@pytest.fixture(autouse=True)
def registered():
    register_transformers()


def generated(model, inputs, **options):
    with torch.inference_mode(), implementation(model, "attnloom"):
        out = model.generate(
            **inputs, do_sample=False, max_new_tokens=NEW, pad_token_id=0, eos_token_id=None, **options
        )
    return out[:, inputs["input_ids"].shape[1] :].tolist()


def logits(model, name, **inputs):
    with torch.inference_mode(), implementation(model, name):
        return model(**inputs, use_cache=False).logits


@pytest.mark.parametrize("cache", [lambda: None, PagedCache, lambda: PagedCache(page_size=3)], ids=["dense", "16", "3"])
def test_left_padded_batch_generates_what_eager_generates_one_by_one(tiny_model, cache):
    batch = prompts(19, 4, 11, 1)
    alone = generate_eagerly(tiny_model, batch, max_new_tokens=NEW, batched=False).tokens
    assert generated(tiny_model, left_padded(batch, 0), cache=cache()) == alone


def test_prefill_logits_equal_eager(tiny_model):
    ids = torch.tensor(prompts(23, 23))
    torch.testing.assert_close(
        logits(tiny_model, "attnloom", input_ids=ids),
        logits(tiny_model, "eager", input_ids=ids),
        atol=2e-4,
        rtol=2e-4,
    )


def test_padding_on_the_right_and_holes_in_the_mask(tiny_model):
    ids = torch.tensor(prompts(12, 12, 12))
    mask = torch.ones_like(ids)
    mask[0, 9:] = 0
    mask[1, 3:6] = 0
    ours, theirs = (logits(tiny_model, name, input_ids=ids, attention_mask=mask) for name in ("attnloom", "eager"))
    seen = mask.bool()
    torch.testing.assert_close(ours[seen], theirs[seen], atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("additive", [False, True])
def test_a_mask_of_the_callers_own(tiny_llama, additive):
    ids = torch.tensor(prompts(10, 10))
    visible = torch.rand(2, 1, 10, 10, generator=torch.Generator().manual_seed(3)) < 0.5
    visible |= torch.eye(10, dtype=torch.bool)
    additive_mask = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    ours = logits(tiny_llama, "attnloom", input_ids=ids, attention_mask=additive_mask if additive else visible)
    theirs = logits(tiny_llama, "eager", input_ids=ids, attention_mask=additive_mask)
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-4)


def test_packed_positions_are_recognised_as_several_sequences(tiny_llama):
    ids = torch.tensor(prompts(12))
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3]])
    ours, theirs = (logits(tiny_llama, name, input_ids=ids, position_ids=positions) for name in ("attnloom", "eager"))
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-4)


def test_beam_search_reorders_pages(tiny_llama):
    inputs = left_padded(prompts(9, 5), 0)
    options = {"do_sample": False, "num_beams": 3, "max_new_tokens": NEW, "pad_token_id": 0, "eos_token_id": None}
    with torch.inference_mode(), implementation(tiny_llama, "attnloom"):
        ours = tiny_llama.generate(**inputs, **options, cache=PagedCache(page_size=4))
    with torch.inference_mode(), implementation(tiny_llama, "eager"):
        theirs = tiny_llama.generate(**inputs, **options)
    assert ours.tolist() == theirs.tolist()


def test_cropped_and_reset_caches_forget():
    cache = PagedCache(page_size=2)
    states = torch.randn(2, 1, 5, 4)
    handed = {}
    cache.update(states, states, 0, kwargs=handed)
    assert cache.get_seq_length() == 5
    assert handed["attnloom_pages"].block_table.tolist() == [[0, 2, 4], [1, 3, 5]]
    assert torch.equal(handed["attnloom_pages"].k[4, 0], states[0, :, 4])
    cache.crop(2)
    assert cache.get_seq_length() == 3
    cache.reset()
    assert cache.get_seq_length() == 0


def test_a_cache_without_keywords_says_what_it_needs():
    states = torch.randn(1, 1, 2, 4)
    with pytest.raises(UnsupportedError, match="passes none"):
        PagedCache().update(states, states, 0)


def test_an_interval_mask_is_recognised_by_its_values():
    attention_mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    mask = padded_mask(2, 3, 5, q_offset=2, attention_mask=attention_mask)
    assert mask.visible is None
    assert mask.kv_begin.tolist() == [2, 0]
    assert mask.first_q_pos == 2


def test_a_bias_is_no_mask():
    with pytest.raises(UnsupportedError, match="bias"):
        as_padded_mask(torch.full((1, 1, 2, 2), 0.5), 1, 2, 2, causal=True, window=None)


def test_dropout_and_unknown_keywords_are_refused(tiny_llama):
    from attnloom.integrations.padded import padded_attention

    module = tiny_llama.model.layers[0].self_attn
    states = torch.randn(1, 6, 2, 16)
    with pytest.raises(UnsupportedError, match=r"dropout 0\.1"):
        padded_attention(module, states, states, states, dropout=0.1)
    with pytest.raises(UnsupportedError, match="position_bias"):
        padded_attention(module, states, states, states, position_bias=torch.zeros(1))
