"""Tiny random models: real transformers classes, no download."""

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

VOCABULARY = 128
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 96,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}


def llama():
    return _made(LlamaForCausalLM, LlamaConfig(**SIZES))


def gemma2():
    """Soft-capped logits, a window of 8 in every other layer, a scale that is not `1 / sqrt(head_dim)`."""
    config = Gemma2Config(**SIZES, sliding_window=8, attn_logit_softcapping=5.0, query_pre_attn_scalar=8)
    return _made(Gemma2ForCausalLM, config)


def gpt_oss():
    """Learned sinks, a window of 8 in every other layer."""
    config = GptOssConfig(**SIZES, sliding_window=8, num_local_experts=2, num_experts_per_tok=1)
    model = _made(GptOssForCausalLM, config)
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    return model


MODELS = {"llama": llama, "gemma2": gemma2, "gpt_oss": gpt_oss}


def prompts(*lengths, shared=0, seed=1):
    """Random prompts; with `shared`, that many equal tokens come before each."""
    generator = torch.Generator().manual_seed(seed)

    def draw(count):
        return torch.randint(3, VOCABULARY, (count,), generator=generator).tolist()

    prefix = draw(shared)
    return [prefix + draw(length) for length in lengths]


def _made(kind, config):
    """A model whose weights are large enough that attention decides its tokens."""
    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.mul_(4 if "self_attn" in name else 2)
    return model
