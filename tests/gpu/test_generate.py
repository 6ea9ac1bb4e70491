"""A language model whose attention runs on the device: eager's tokens."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def model():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=128,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=512,
    )
    made = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if weight.dim() > 1:
                weight.mul_(4 if "self_attn" in name else 2)
    return made.to("cuda", torch.float16)


@pytest.mark.parametrize("storage_format", ["page_table", "radix_tree"])
def test_tokens_equal_eager(model, storage_format):
    from attnloom.integrations.check import check_tokens
    from attnloom.integrations.eager import generate_eagerly
    from attnloom.integrations.generation import Generator

    generator = torch.Generator().manual_seed(1)
    prefix = torch.randint(3, 128, (70,), generator=generator).tolist()
    prompts = [prefix + torch.randint(3, 128, (count,), generator=generator).tolist() for count in (1, 9, 33, 5)]
    result = Generator(model, storage_format=storage_format).generate(prompts, max_new_tokens=12)
    eager = generate_eagerly(model, prompts, max_new_tokens=12, batched=False)
    verdict = check_tokens(model, prompts, result.tokens, eager)
    assert verdict.passed, verdict
