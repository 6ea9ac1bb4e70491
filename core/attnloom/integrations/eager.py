"""The yardstick: the same generation by transformers alone, with eager attention over a left-padded batch."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from attrs import Factory, define

from attnloom.integrations.generation import implementation


@define(eq=False)
class EagerGeneration:
    """What transformers produced.

    Attributes:
        tokens: the new tokens of each request, the end token included.
        seconds: of `model.generate`.
        gaps: of each new token, how far the runner-up's logit lay below the best.
    """

    tokens: list[list[int]]
    seconds: float
    gaps: list[list[float]] = Factory(list)

    @property
    def new_tokens(self) -> int:
        """Tokens produced over all requests."""
        return sum(map(len, self.tokens))

    @property
    def tokens_per_s(self) -> float:
        """New tokens a second, the prefill included."""
        return self.new_tokens / self.seconds if self.seconds else 0.0


class _TopGaps:
    """A logits processor that changes nothing and notes the gap between the two best logits of each row."""

    def __init__(self):
        self.steps: list[torch.Tensor] = []

    def __call__(self, _ids, scores):
        best, second = scores.float().topk(2, dim=-1).values.unbind(-1)
        self.steps.append((best - second).cpu())
        return scores


def generate_eagerly(
    model,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    end_tokens: Sequence[int] = (),
    batched: bool = True,
) -> EagerGeneration:
    """Continue every prompt greedily with `model.generate` and eager attention.

    Args:
        prompts: token ids.
        batched: one left-padded batch; else one request at a time.
    """
    from transformers import GenerationConfig, LogitsProcessorList

    pad = end_tokens[0] if end_tokens else 0
    greedy = GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=max_new_tokens,
        min_new_tokens=None if end_tokens else max_new_tokens,
        eos_token_id=list(end_tokens) or None,
        pad_token_id=pad,
        repetition_penalty=1.0,
    )
    tokens: list[list[int]] = []
    gaps: list[list[float]] = []
    seconds = 0.0
    with torch.inference_mode(), implementation(model, "eager"):
        for group in [list(prompts)] if batched else [[prompt] for prompt in prompts]:
            watch = _TopGaps()
            inputs = left_padded(group, pad, model.device)
            start = time.perf_counter()
            out = model.generate(**inputs, generation_config=greedy, logits_processor=LogitsProcessorList([watch]))
            seconds += time.perf_counter() - start
            for row, produced in enumerate(out[:, inputs["input_ids"].shape[1] :].tolist()):
                tokens.append(_until_end(produced, end_tokens))
                gaps.append([float(step[row]) for step in watch.steps[: len(tokens[-1])]])
    return EagerGeneration(tokens, seconds, gaps)


def left_padded(prompts: Sequence[Sequence[int]], pad: int, device="cpu") -> dict[str, torch.Tensor]:
    """`input_ids` and `attention_mask`, int64[batch, longest prompt], padded on the left."""
    longest = max(map(len, prompts))
    ids = torch.full((len(prompts), longest), pad)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


def _until_end(tokens: list[int], end_tokens: Sequence[int]) -> list[int]:
    for place, token in enumerate(tokens):
        if token in end_tokens:
            return tokens[: place + 1]
    return tokens
