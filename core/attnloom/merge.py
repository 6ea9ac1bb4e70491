"""⊕: merging attention states over disjoint keys."""

from __future__ import annotations

from attnloom.errors import RunError


def merge_states(states):
    """The state over the union of disjoint sets of keys, from a state over each.

    Args:
        states: `(O, LSE)` pairs: `O` `[tokens, heads, head_dim_v]` of any float dtype, `LSE` float32 `[tokens, heads]`,
            the natural log. An empty state is `(0, -inf)` and changes nothing, whatever its `O` holds.

    Returns:
        `(O, LSE)`: `O` in the dtype of the first state's, computed in float32 (float64 if it is); rows that are
        empty in every state are `(0, -inf)`.

    Raises:
        RunError: no state, or states of different shapes.
    """
    import torch

    states = list(states)
    if not states:
        raise RunError("merge_states takes at least one (O, LSE) pair, got none")
    first = states[0][0]
    for number, (out, lse) in enumerate(states):
        if out.shape != first.shape:
            raise RunError(f"state {number} has O of shape {list(out.shape)}, state 0 of {list(first.shape)}")
        if lse.shape != out.shape[:-1]:
            raise RunError(f"state {number} has LSE of shape {list(lse.shape)} for O of shape {list(out.shape)}")
    work = torch.float64 if first.dtype == torch.float64 else torch.float32
    lses = torch.stack([lse.to(work) for _, lse in states])
    peak = lses.amax(dim=0)
    weights = torch.exp(lses - peak.nan_to_num(neginf=0.0))
    total = weights.sum(dim=0)
    merged = torch.zeros(first.shape, dtype=work, device=first.device)
    for (out, _), weight in zip(states, weights, strict=True):
        share = (weight / total.clamp_min(torch.finfo(work).tiny)).unsqueeze(-1)
        merged += torch.where(share > 0, share * out.to(work), torch.zeros((), dtype=work, device=out.device))
    return merged.to(first.dtype), (peak + torch.log(total)).to(states[0][1].dtype)
