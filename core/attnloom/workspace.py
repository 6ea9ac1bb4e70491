"""Memory for partial states; wrappers that run one after the other may share it."""

from __future__ import annotations


class Workspace:
    """A float32 buffer that grows to the largest plan made so far and never shrinks.

    Wrappers that run one after the other (the layers of a model) may share one; it belongs to one thread. What it holds
    between runs is of no meaning.
    """

    def __init__(self):
        self.buffer = None
        self.address = 0

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return 0 if self.buffer is None else self.buffer.numel() * 4

    def reserve(self, nbytes: int) -> None:
        """Make the buffer at least `nbytes` bytes large; its contents may be lost."""
        if nbytes <= self.nbytes:
            return
        import torch

        self.buffer = torch.empty((nbytes + 3) // 4, dtype=torch.float32)
        self.address = self.buffer.data_ptr()

    def __repr__(self) -> str:
        return f"Workspace({self.nbytes} bytes)"
