"""What a wrapper was declared to serve at most."""

from __future__ import annotations

import numpy as np
from attrs import astuple, field, frozen

from attnloom.errors import PlanError
from attnloom.index import ComposedIndex


def _at_least_0(_instance, attribute, value) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise PlanError(f"max_{attribute.name} must be an integer of at least 0, or none for no bound, got {value!r}")


@frozen
class Limits:
    """Maxima of a batch; none: no bound.

    Attributes:
        requests, tokens, levels: how many a batch holds.
        qo_len, kv_len: of one request.
        pages: entries of a level's page lists (of one kv head), padding of a table included.
    """

    requests: int | None = field(default=None, validator=_at_least_0)
    tokens: int | None = field(default=None, validator=_at_least_0)
    qo_len: int | None = field(default=None, validator=_at_least_0)
    kv_len: int | None = field(default=None, validator=_at_least_0)
    pages: int | None = field(default=None, validator=_at_least_0)
    levels: int | None = field(default=None, validator=_at_least_0)

    @property
    def any(self) -> bool:
        """Whether there is any bound."""
        return any(bound is not None for bound in astuple(self))

    @property
    def most_tokens(self) -> int | None:
        """The most query tokens of a batch, or none where that is left open."""
        if self.tokens is None and self.requests is not None and self.qo_len is not None:
            return self.requests * self.qo_len
        return self.tokens

    def check(self, index: ComposedIndex) -> None:
        """Raises `PlanError`, with both values, where `index` holds more."""
        _check("requests", self.requests, index.num_requests)
        _check("tokens", self.tokens, index.num_tokens)
        _check("levels", self.levels, len(index.levels))
        if self.qo_len is not None and index.num_requests:
            _check("qo_len", self.qo_len, int(np.diff(index.qo_indptr).max()))
        if self.kv_len is not None and index.num_requests:
            _check("kv_len", self.kv_len, int(index.kv_len.max()))
        if self.pages is not None:
            for level in index.levels:
                _check("pages", self.pages, level.indices.shape[-1])


UNLIMITED = Limits()
"""No bound."""


def _check(what: str, most: int | None, given: int) -> None:
    if most is not None and given > most:
        raise PlanError(
            f"the batch has {what} {given}, but the wrapper was declared with max_{what}={most}; "
            "the plan in force stays: make a wrapper with a larger maximum"
        )
