"""Whether two greedy generations agree, and whether their differences may be rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from attrs import define, frozen

from attnloom.integrations.eager import EagerGeneration, left_padded
from attnloom.integrations.generation import implementation

ULPS = 4
"""How many units in the last place of the best logit two tokens may lie apart and still be swapped, below float32."""


@frozen
class Difference:
    """The first token in which a request differs.

    Attributes:
        request, place: from 0; the place counts new tokens.
        ours, theirs: the token ids (none: that side had ended).
        gap: how far transformers' logit of our token lies below its best one; at a first difference no less than the
            gap between its two best.
        bound: what `gap` may be.
    """

    request: int
    place: int
    ours: int | None
    theirs: int | None
    gap: float
    bound: float

    @property
    def allowed(self) -> bool:
        """Whether rounding explains it; a bound of 0 allows nothing."""
        return self.gap <= self.bound and self.bound > 0


@define
class Check:
    """The outcome: how many tokens were compared directly, how many after a difference, and what differed.

    Attributes:
        equal: tokens equal to transformers' own generation.
        total: tokens that attnloom produced.
        followed: tokens after a request's first difference. They cannot be compared with the other continuation;
            eager attention was run over our tokens instead, and each had to be its choice within the bound.
        differences: first differences, and tokens after one that were outside the bound.
    """

    equal: int
    total: int
    followed: int
    differences: list[Difference]

    @property
    def passed(self) -> bool:
        """Whether every difference is allowed."""
        return all(difference.allowed for difference in self.differences)


def check_tokens(
    model, prompts: Sequence[Sequence[int]], ours: Sequence[Sequence[int]], eager: EagerGeneration
) -> Check:
    """Compare our tokens with transformers' for the same prompts.

    In float32 every token must be equal. Below, a request's first difference must fall on a gap of at most `ULPS` units
    in the last place of the best logit, and its later tokens are checked against eager attention over our own tokens.
    """
    check = Check(equal=0, total=sum(map(len, ours)), followed=0, differences=[])
    for number, (mine, theirs) in enumerate(zip(ours, eager.tokens, strict=True)):
        place = _first_difference(mine, theirs)
        check.equal += len(mine) if place is None else place
        if place is not None:
            _explain(check, model, prompts[number], number, place, mine, eager)
    return check


def _first_difference(mine: Sequence[int], theirs: Sequence[int]) -> int | None:
    for place, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        if a != b:
            return place
    return None if len(mine) == len(theirs) else min(len(mine), len(theirs))


def _explain(check: Check, model, prompt, number: int, place: int, mine, eager: EagerGeneration) -> None:
    """Record the first difference and every later token of ours that eager attention would not have chosen."""
    theirs = eager.tokens[number]
    if place >= len(mine):
        check.differences.append(Difference(number, place, None, theirs[place], math.inf, 0.0))
        return
    logits = _logits_of(model, prompt, mine)
    for later, token in enumerate(mine[place:], place):
        best = float(logits[later].max())
        gap = best - float(logits[later, token])
        bound = _bound(model.dtype, best)
        if later == place:
            ended = place >= len(theirs)
            gap = math.inf if ended else max(gap, eager.gaps[number][place])
            check.differences.append(Difference(number, place, token, None if ended else theirs[place], gap, bound))
        elif gap > bound:
            check.differences.append(Difference(number, later, token, int(logits[later].argmax()), gap, bound))
    check.followed += len(mine) - place - 1


def _logits_of(model, prompt, tokens) -> torch.Tensor:
    """Eager attention's logits before each of `tokens`, float32[len(tokens), vocabulary], given those before it."""
    inputs = left_padded([[*prompt, *tokens[:-1]]], 0, model.device)
    with torch.inference_mode(), implementation(model, "eager"):
        return model(**inputs, use_cache=False, logits_to_keep=len(tokens)).logits[0].float()


def _bound(dtype: torch.dtype, best: float) -> float:
    """0 in float32 (no difference is allowed), else `ULPS` units in the last place of the best logit."""
    if dtype == torch.float32:
        return 0.0
    exponent = math.floor(math.log2(abs(best))) if best else 0
    return ULPS * torch.finfo(dtype).eps * 2.0**exponent
