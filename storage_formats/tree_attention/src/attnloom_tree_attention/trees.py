"""Draft trees: from parents or choices to depths and ancestor bits."""

from __future__ import annotations

import operator
from functools import lru_cache

import numpy as np
from attnloom.errors import IndexFormatError
from attnloom.index_arrays import pack_bits
from attrs import frozen


@frozen(eq=False)
class Tree:
    """A draft tree of `n` tokens.

    Attributes:
        depth: i32[n], ancestors of each token.
        bits: u32[W], the packed bool[n, n] of which tokens (columns) each token (row) sees: its ancestors and itself.
    """

    depth: np.ndarray
    bits: np.ndarray


def tree_of(parents) -> Tree:
    """The tree of i32[n] `parents`, already checked. Equal trees are made once."""
    return _tree_of(parents.tobytes())


@lru_cache(maxsize=256)
def _tree_of(parents: bytes) -> Tree:
    parents = np.frombuffer(parents, np.int32)
    depth = np.zeros(len(parents), np.int32)
    seen = np.eye(len(parents), dtype=bool)
    for token, parent in enumerate(parents.tolist()):
        if parent >= 0:
            depth[token] = depth[parent] + 1
            seen[token] |= seen[parent]
    tree = Tree(depth, pack_bits(seen))
    for array in (tree.depth, tree.bits):
        array.flags.writeable = False
    return tree


def check_parents(flat, qo_indptr, token_request) -> None:
    """Checks the parents of all requests, i32[T], one request after another.

    Raises:
        IndexFormatError: for a parent that is no earlier token of its tree, with the circle if that makes one.
    """
    place = np.arange(len(flat), dtype=np.int32) - qo_indptr[token_request]
    wrong = (flat < -1) | (flat >= place)
    if not wrong.any():
        return
    token = int(wrong.argmax())
    request, at = int(token_request[token]), int(place[token])
    parents = flat[qo_indptr[request] : qo_indptr[request + 1]]
    what = f"parents[{request}]"
    if not -1 <= parents[at] < len(parents):
        raise IndexFormatError(
            f"{what}[{at}] is {parents[at]}; a tree of {len(parents)} token(s) has parents 0 to {len(parents) - 1}, "
            "and -1 for a root"
        )
    if circle := _circle_from(parents, at):
        raise IndexFormatError(f"{what} goes round in a circle: {' -> '.join(map(str, circle))}")
    raise IndexFormatError(f"{what}[{at}] is {parents[at]}; a parent comes before its children: reorder the tokens")


def parents_of_choices(choices):
    """The parents of a tree given as Medusa and EAGLE configurations give it.

    Args:
        choices: paths from the root, each a sequence of the ranks taken: `[(0,), (0, 0), (1,)]`. The root, the last
            accepted token, is token 0 of the tree; the others follow by length of path, then by path.

    Returns:
        i32[len(choices) + 1] parents, -1 for the root.

    Raises:
        IndexFormatError: for a path that is empty, double, or whose front is no path of the tree.
    """
    try:
        paths = sorted((tuple(map(operator.index, path)) for path in choices), key=lambda path: (len(path), path))
    except TypeError as error:
        raise IndexFormatError(f"choices must be paths of integers such as [(0,), (0, 0)], got {choices!r}") from error
    if negative := next((path for path in paths if path and min(path) < 0), None):
        raise IndexFormatError(f"choices has the path {list(negative)}, ranks are at least 0")
    place = {(): 0}
    parents = [-1]
    for path in paths:
        if path in place:
            raise IndexFormatError(f"choices has the path {list(path)} twice" if path else "choices has an empty path")
        if path[:-1] not in place:
            raise IndexFormatError(f"choices has the path {list(path)} but not its front {list(path[:-1])}")
        parents.append(place[path[:-1]])
        place[path] = len(place)
    return np.array(parents, np.int32)


def _circle_from(parents, token: int) -> list[int]:
    """The tokens of the circle that parents lead into from `token`, none if they end at a root."""
    walk = [token]
    while 0 <= (token := int(parents[token])) < len(parents):
        if token in walk:
            return [*walk[walk.index(token) :], token]
        walk.append(token)
    return []
