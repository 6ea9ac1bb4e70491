"""Memory for what a run computes on its way; wrappers that run one after the other may share it."""

from __future__ import annotations

import pickle

from attnloom.errors import PlanError


class Workspace:
    """A buffer for keys transformed ahead and partial states; it grows to the largest plan made so far, never shrinks.

    Wrappers that run one after the other (the layers of a model) may share one; it belongs to one thread and one
    stream. What it holds between runs is of no meaning.

    Args:
        device: where it lies, that of the wrappers.

    Attributes:
        nbytes: bytes allocated.
        address: of the buffer; 0 before there is one.
    """

    def __init__(self, device="cpu"):
        self.device = device
        self.buffer = None
        self.address = self.nbytes = 0
        self._captured = False

    def reserve(self, nbytes: int) -> None:
        """Make the buffer at least `nbytes` bytes large; its contents may be lost.

        Raises `PlanError` where it would have to move after a CUDA graph has captured its address.
        """
        if nbytes <= self.nbytes:
            return
        if self._captured:
            raise PlanError(
                f"the batch needs {nbytes} bytes of workspace, but a CUDA graph has captured one of {self.nbytes}: "
                "declare the wrapper's maxima (max_requests, max_tokens, ...) before capturing"
            )
        import torch

        self.buffer = torch.empty((nbytes + 3) // 4, dtype=torch.float32, device=self.device)
        self.address, self.nbytes = self.buffer.data_ptr(), self.buffer.nbytes

    def captured(self) -> None:
        """Say that a CUDA graph holds its address, so that it stays where it is."""
        self._captured = True

    def __reduce__(self):
        raise pickle.PicklingError("a Workspace holds an address of this process: make another one")

    def __repr__(self) -> str:
        return f"Workspace({self.nbytes} bytes on {self.device})"
