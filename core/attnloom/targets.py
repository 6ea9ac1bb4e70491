"""What kernels are compiled for: this host, or a CUDA architecture. Needs no device."""

from __future__ import annotations

from attrs import field, frozen

from attnloom.errors import UnsupportedError


@frozen
class HostTarget:
    """This machine's CPU.

    Attributes:
        name: what kernels' names begin with.
        family: what a tile heuristic is asked for; `families` all that a given tile may be of.
        device: what a tile heuristic is told of where the kernel runs; `device_name` its model, empty where unknown.
        most_rows: packed rows that the tallest tile holds, none if any number.
        source_name: the file of a kernel's text.
    """

    name = "host"
    family = "host"
    families = ("host",)
    device = "cpu"
    most_rows = None
    source_name = "kernel.cpp"

    @property
    def device_name(self) -> str:
        """The CPU's model, as Linux tells it."""
        from attnloom.jit.toolchain import cpu_info

        return cpu_info().get("model name", "")

    def config(self, spec, tiles):
        """What is fixed when a kernel of `spec` is compiled. Raises `UnsupportedError` for what no host kernel does."""
        from attnloom.jit import host_kernel

        return host_kernel.KernelConfig(**_sizes(spec, tiles))

    def check(self, spec, tiles, functors, limits) -> None:
        """Raises as `config` for tiles that no kernel of `spec` has, or `UnsupportedError` for those that none has
        whose variants define `functors`, in a wrapper of the maxima `limits`."""
        self.config(spec, tiles)

    def source(self, spec, composition, tiles) -> str:
        """The text of the kernel of a spec. Raises as `config`."""
        from attnloom.jit import host_kernel

        return host_kernel.source(composition.source, self.config(spec, tiles))

    def shipped(self, unit):
        """The library of `unit` that was built ahead of time, or none."""
        from attnloom.jit import shipped

        return shipped.find(unit)

    def toolchain(self, debug: bool):
        """The compiler. Raises `CompileError` where there is none."""
        from attnloom import jit

        toolchain = jit.host_toolchain(debug)
        toolchain.require_loadable()
        return toolchain

    def __str__(self) -> str:
        return "the cpu"


@frozen
class CudaTarget:
    """CUDA devices of one architecture.

    Attributes:
        arch: such as `"sm_90a"`.
        device_name: such as `"NVIDIA H200"`; empty where none is at hand.
        Others as `HostTarget`.
    """

    arch: str = field()
    device_name: str = field(default="")

    name = "cuda"
    family = "mma"
    source_name = "kernel.cu"

    @arch.validator
    def _known(self, _attribute, value):
        from attnloom.jit.nvcc import check_arch

        check_arch(value)

    @property
    def families(self) -> tuple[str, ...]:
        """`wgmma` too where the code may use what only Hopper has."""
        return ("mma", "wgmma") if self.arch == "sm_90a" else ("mma",)

    @property
    def most_rows(self) -> int:
        """Packed rows that the tallest tile holds."""
        from attnloom.jit.cuda_kernel import T_Q

        return T_Q[-1]

    @property
    def device(self) -> str:
        """The architecture, without a letter."""
        return self.arch.rstrip("af")

    def config(self, spec, tiles):
        """What is fixed when a kernel of `spec` is compiled. Raises `UnsupportedError` for what no CUDA kernel does."""
        from attnloom.jit import cuda_kernel

        if spec.dtype == "float32" or spec.kv_dtype == "float32":
            given = f"dtype {spec.dtype} and kv_dtype {spec.kv_dtype}"
            raise UnsupportedError(f"{given}: CUDA kernels take float16 or bfloat16, and fp8 caches; use device='cpu'")
        return cuda_kernel.KernelConfig(**_sizes(spec, tiles), arch=self.arch)

    def check(self, spec, tiles, functors, limits) -> None:
        """As of `HostTarget`."""
        if self.config(spec, tiles).copiers:
            from attnloom.engines.long import require_copies

            require_copies(spec, tiles, functors, limits)

    def source(self, spec, composition, tiles) -> str:
        """The text of the kernel of a spec. Raises as `config`."""
        from attnloom.jit import cuda_kernel

        return cuda_kernel.source(composition.source, self.config(spec, tiles))

    def shipped(self, unit):
        """The library of `unit` that was built ahead of time, or none."""
        from attnloom.jit import shipped

        return shipped.find(unit, self.arch)

    def toolchain(self, debug: bool):
        """nvcc. Raises `CompileError` where there is none."""
        from attnloom import jit

        return jit.cuda_toolchain(self.arch, debug)

    def __str__(self) -> str:
        return self.arch


HOST = HostTarget()


def target_of(device):
    """The target of a `torch.device`.

    Raises `UnsupportedError` for devices that no kernel runs on, or are not there.
    """
    if device.type == "cpu":
        return HOST
    if device.type != "cuda":
        raise UnsupportedError(f"device {str(device)!r}: kernels run on 'cpu' and on 'cuda'")
    import torch

    if not torch.cuda.is_available():
        raise UnsupportedError(
            f"device {str(device)!r}: torch sees no CUDA device ({_why_no_cuda(torch)}); use device='cpu'"
        )
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise UnsupportedError(f"device {str(device)!r}: there are {count} CUDA device(s), cuda:0 to cuda:{count - 1}")
    if torch.version.cuda is None:
        raise UnsupportedError(f"device {str(device)!r}: this torch is built for ROCm; use device='cpu'")
    from attnloom.jit.nvcc import arch_of

    return CudaTarget(arch_of(*torch.cuda.get_device_capability(device)), torch.cuda.get_device_name(device))


def _why_no_cuda(torch) -> str:
    return "this torch is built without CUDA" if torch.version.cuda is None else "no driver or no visible GPU"


def _sizes(spec, tiles) -> dict:
    names = ("dtype", "kv_dtype", "out_dtype", "head_dim", "head_dim_v")
    return {**{name: getattr(spec, name) for name in names}, "short": tiles.short, "tall": tiles.tall}
