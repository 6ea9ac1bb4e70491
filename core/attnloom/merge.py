"""⊕: merging attention states over disjoint keys."""

from __future__ import annotations

from attnloom.errors import RunError


def merge_states(states):
    """The state over the union of disjoint sets of keys, from a state over each.

    Args:
        states: `(O, LSE)` pairs: `O` `[tokens, heads, head_dim_v]` of any float dtype, `LSE` float32 `[tokens, heads]`,
            the natural log. An empty state is `(0, -inf)` and changes nothing, whatever its `O` holds; an LSE of NaN or
            `+inf` makes its row NaN.

    Returns:
        `(O, LSE)`: `O` in the dtype of the first state's, computed in float32 (float64 if it is); rows that are
        empty in every state are `(0, -inf)`.

    Raises:
        RunError: no state, something that is no pair of float tensors, or states of other shapes or devices.
    """
    import torch

    if isinstance(states, torch.Tensor) or not hasattr(states, "__iter__"):
        raise RunError(f"merge_states takes (O, LSE) pairs, got {type(states).__name__}")
    states = list(states)
    if not states:
        raise RunError("merge_states takes at least one (O, LSE) pair, got none")
    for number, state in enumerate(states):
        _check_pair(number, state)
    first = states[0][0]
    for number, (out, lse) in enumerate(states):
        if not out.device == lse.device == first.device:
            raise RunError(f"state {number} is on {out.device} and {lse.device}, state 0 on {first.device}")
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
        merged += torch.where(share == 0, torch.zeros((), dtype=work, device=out.device), share * out.to(work))
    return merged.to(first.dtype), (peak + torch.log(total)).to(states[0][1].dtype)


def _check_pair(number: int, state) -> None:
    import torch

    if not isinstance(state, (tuple, list)) or len(state) != 2:
        of = f" of {len(state)}" if isinstance(state, (tuple, list)) else ""
        raise RunError(f"state {number} must be an (O, LSE) pair, got a {type(state).__name__}{of}")
    for name, tensor in zip(("O", "LSE"), state, strict=True):
        if not isinstance(tensor, torch.Tensor):
            raise RunError(f"{name} of state {number} must be a torch tensor, got {type(tensor).__name__}")
        if not tensor.dtype.is_floating_point:
            raise RunError(f"{name} of state {number} is {tensor.dtype}, expected floats")
