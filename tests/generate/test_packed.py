"""The loop over packed batches: eager's tokens, shared prefixes computed once, pages given back."""

import pytest
import torch
from attnloom.errors import RunError, UnsupportedError
from attnloom.integrations.check import check_tokens
from attnloom.integrations.eager import EagerGeneration, generate_eagerly
from attnloom.integrations.generation import Generator, implementation
from attnloom.integrations.layers import Override
from attnloom.integrations.transformers import register_transformers
from models import prompts

NEW = 10
FORMATS = ("page_table", "radix_tree")


def eagerly(model, batch, **options):
    return generate_eagerly(model, batch, max_new_tokens=NEW, batched=False, **options).tokens


@pytest.mark.parametrize("storage_format", FORMATS)
def test_packed_tokens_equal_eager(tiny_model, storage_format):
    batch = prompts(5, 1, 17, 9, shared=37) + prompts(2)
    generator = Generator(tiny_model, storage_format=storage_format)
    result = generator.generate(batch, max_new_tokens=NEW)
    assert result.tokens == eagerly(tiny_model, batch)
    assert result.prompt_tokens == sum(map(len, batch))
    assert result.passes == NEW
    assert len(result.plan_us) == NEW * len(generator.wrappers)


@pytest.mark.parametrize("storage_format", FORMATS)
def test_a_shared_prefix_is_computed_once(tiny_llama, storage_format):
    batch = prompts(3, 8, 5, shared=32)
    result = Generator(tiny_llama, storage_format=storage_format, page_size=8).generate(batch, max_new_tokens=2)
    assert result.computed_prompt_tokens == 32 + 3 + 8 + 5
    assert result.pages_shared == 4


@pytest.mark.parametrize("storage_format", FORMATS)
@pytest.mark.parametrize("page_size", [1, 3, 64])
def test_page_size_changes_no_token(tiny_llama, storage_format, page_size):
    batch = prompts(5, 21, shared=10)
    generator = Generator(tiny_llama, storage_format=storage_format, page_size=page_size)
    assert generator.generate(batch, max_new_tokens=NEW).tokens == eagerly(tiny_llama, batch)


@pytest.mark.parametrize("storage_format", FORMATS)
def test_equal_prompts_and_prompts_that_contain_others(tiny_llama, storage_format):
    (longest,) = prompts(33)
    batch = [longest, longest, longest[:32], longest[:16], longest[:1]]
    result = Generator(tiny_llama, storage_format=storage_format).generate(batch, max_new_tokens=NEW)
    assert result.tokens == eagerly(tiny_llama, batch)
    assert result.tokens[0] == result.tokens[1]


@pytest.mark.parametrize("storage_format", FORMATS)
def test_a_long_prefill_in_several_passes(tiny_model, storage_format):
    batch = prompts(30, 4, 25, shared=20)
    generator = Generator(tiny_model, storage_format=storage_format, page_size=4, max_tokens_per_pass=16)
    assert generator.generate(batch, max_new_tokens=NEW).tokens == eagerly(tiny_model, batch)


def test_requests_end_one_by_one(tiny_llama):
    batch = prompts(5, 9, 14)
    free = eagerly(tiny_llama, batch)
    end = free[1][3]
    result = Generator(tiny_llama).generate(batch, max_new_tokens=NEW, end_tokens=[end])
    expected = [tokens[: tokens.index(end) + 1] if end in tokens else tokens for tokens in free]
    assert result.tokens == expected
    assert result.tokens == eagerly(tiny_llama, batch, end_tokens=[end])


def test_a_generator_serves_again_and_keeps_its_kernels(tiny_llama):
    generator = Generator(tiny_llama)
    generator.prepare()
    prepared = dict(generator.wrappers)
    first, second = prompts(6, 3), prompts(4, seed=5)
    assert generator.generate(first, max_new_tokens=NEW).tokens == eagerly(tiny_llama, first)
    assert generator.generate(second, max_new_tokens=NEW).tokens == eagerly(tiny_llama, second)
    assert generator.wrappers == prepared
    assert tiny_llama.config._attn_implementation not in ("attnloom", "attnloom_packed")


def test_variants_of_the_users_choice_take_the_models_place(tiny_llama):
    batch = prompts(24)
    capped = Generator(tiny_llama, override=Override(["causal", "soft_cap"], {"soft_cap.cap": 0.01}))
    plain = Generator(tiny_llama, override=Override(["causal"]))
    assert plain.generate(batch, max_new_tokens=NEW).tokens == eagerly(tiny_llama, batch)
    assert capped.generate(batch, max_new_tokens=NEW).tokens != eagerly(tiny_llama, batch)
    assert [kind.variants for kind in capped.wrappers] == [("causal", "soft_cap")]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_differs_by_rounding_alone(tiny_llama, dtype):
    model = type(tiny_llama)(tiny_llama.config).eval()
    model.load_state_dict(tiny_llama.state_dict())
    model.to(dtype)
    batch = prompts(5, 12, 20, shared=16)
    ours = Generator(model).generate(batch, max_new_tokens=NEW)
    eager = generate_eagerly(model, batch, max_new_tokens=NEW)
    check = check_tokens(model, batch, ours.tokens, eager)
    assert check.passed, check
    assert check.equal + check.followed + len({d.request for d in check.differences}) == check.total


@pytest.mark.parametrize(
    ("batch", "new", "message"),
    [([[5], []], 4, "prompt 2 has no tokens"), ([[5]], 0, "at least 1"), ([[5] * 250], 10, "256 positions")],
)
def test_batches_that_cannot_be_served(tiny_llama, batch, new, message):
    with pytest.raises(UnsupportedError, match=message):
        Generator(tiny_llama).generate(batch, max_new_tokens=new)


def test_an_unknown_storage_format(tiny_llama):
    with pytest.raises(UnsupportedError, match="page_table or radix_tree"):
        Generator(tiny_llama, storage_format="dense").generate([[5]], max_new_tokens=1)


def test_packed_attention_without_a_step_says_what_to_do(tiny_llama):
    register_transformers()
    with implementation(tiny_llama, "attnloom_packed"), pytest.raises(RunError, match="attnloom_step"):
        tiny_llama(input_ids=torch.tensor([[5, 6]]), use_cache=False)


class TestCheck:
    """The check itself must be able to fail."""

    def test_a_wrong_token_fails_in_float32(self, tiny_llama):
        batch = prompts(7, 4)
        eager = generate_eagerly(tiny_llama, batch, max_new_tokens=NEW)
        wrong = [list(tokens) for tokens in eager.tokens]
        wrong[1][4] = (wrong[1][4] + 1) % 128
        check = check_tokens(tiny_llama, batch, wrong, eager)
        assert not check.passed
        assert check.differences[0].request == 1
        assert check.differences[0].place == 4
        assert check.equal == NEW + 4

    def test_a_wrong_token_fails_in_bfloat16(self, tiny_llama):
        model = type(tiny_llama)(tiny_llama.config).eval()
        model.load_state_dict(tiny_llama.state_dict())
        model.to(torch.bfloat16)
        batch = prompts(7)
        eager = generate_eagerly(model, batch, max_new_tokens=NEW)
        ids = torch.tensor([batch[0] + eager.tokens[0][:4]])
        with torch.inference_mode():
            worst = int(model(ids).logits[0, -1].argmin())
        wrong = [[*eager.tokens[0][:4], worst, *eager.tokens[0][5:]]]
        check = check_tokens(model, batch, wrong, eager)
        assert not check.passed

    def test_a_missing_token_fails(self, tiny_llama):
        eager = EagerGeneration([[5, 6, 7]], 1.0, [[1.0, 1.0, 1.0]])
        check = check_tokens(tiny_llama, [[9]], [[5, 6]], eager)
        assert not check.passed
