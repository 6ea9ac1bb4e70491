"""Where the values of a tensor lie."""

from __future__ import annotations


def address_of(tensor, what: str, error: type[Exception]) -> int:
    """The address of the first element of a strided tensor; 0 for one without elements.

    Raises:
        `error`, naming `what`: for a tensor that has elements and no memory, or that is no strided one.
    """
    try:
        address = tensor.data_ptr()
    except RuntimeError as cause:
        layout = str(getattr(tensor, "layout", "torch.strided"))
        told = "is no plain tensor" if layout == "torch.strided" else f"has layout {layout}, use .to_dense()"
        raise error(f"{what} {told}: kernels read strided tensors with memory of their own") from cause
    if not address and tensor.numel():
        raise error(
            f"{what} of shape {list(tensor.shape)} has no memory: its storage was freed, or it is a fake tensor"
        )
    return address
