"""`attnloom compile`: kernels built ahead of time, so that no first call waits for a compiler, or needs one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command `compile`."""

    @app.command("compile")
    def compile_(
        variants: Annotated[str, typer.Option(help="In order, with commas, such as causal,soft_cap.")] = "causal",
        stack: Annotated[str, typer.Option(help="A stack of the configuration, in place of --variants.")] = "",
        num_qo_heads: Annotated[int, typer.Option(min=1, help="Query heads.")] = 32,
        num_kv_heads: Annotated[int, typer.Option(min=1, help="Key and value heads.")] = 8,
        head_dim: Annotated[
            list[int] | None, typer.Option(help="Elements of a head (128); repeat for several.")
        ] = None,
        head_dim_v: Annotated[int, typer.Option(min=0, help="Elements of a head of v; 0: as --head-dim.")] = 0,
        dtype: Annotated[
            list[str] | None, typer.Option(help="float32, float16, bfloat16 (the default); repeatable.")
        ] = None,
        kv_dtype: Annotated[str, typer.Option(help="Of the cache, also float8_e4m3fn, float8_e5m2; empty: as q.")] = "",
        max_qo_len: Annotated[
            list[int] | None,
            typer.Option(
                min=1, help="As of an AttentionWrapper, such as 1 for decode alone; repeatable. Without: any length."
            ),
        ] = None,
        arch: Annotated[
            list[str] | None,
            typer.Option(help="A CUDA architecture (sm_80, sm_89, sm_90a) in place of this host; repeatable."),
        ] = None,
        output: Annotated[
            Path | None,
            typer.Option(help="Copy all into this folder; ATTNLOOM_SHIPPED=FOLDER uses it without a compiler."),
        ] = None,
        debug: Annotated[bool, typer.Option("--debug", help="Build with sanitizers.")] = False,
    ) -> None:
        """Compile kernels for this host, or for CUDA architectures, and keep them, with the launcher and the scheduler.

        Every head dim is built in every dtype, for every --max-qo-len; on sm_90a, without one, the kernel for batches
        whose rows see many keys too, where a wrapper has one. The C++ compiler is CXX, g++ or clang++; the
        instruction set is this CPU's, or ATTNLOOM_HOST_ISA. The CUDA compiler is that of CUDA_HOME, PATH or pip; no GPU
        is needed.
        """
        from attnloom.cli.computation import spec_of

        dims = [{"head_dim": dim, **({"head_dim_v": head_dim_v} if head_dim_v else {})} for dim in head_dim or [128]]
        shapes = [
            {"num_qo_heads": num_qo_heads, "num_kv_heads": num_kv_heads, "dtype": name, "debug": debug, **dim}
            for dim in dims
            for name in dtype or ["bfloat16"]
        ]
        if kv_dtype:
            shapes = [{**shape, "kv_dtype": kv_dtype} for shape in shapes]
        specs = [spec_of(variants, stack, shape) for shape in shapes]
        build_kernels(specs, arch or [], output, debug, max_qo_lens=max_qo_len or [None])


def build_kernels(
    specs, archs: list[str], output: Path | None = None, debug: bool = False, *, max_qo_lens=(None,)
) -> None:
    """Build the kernels of `specs`, the launcher and the scheduler at a time, and print a line each.

    `max_qo_lens`: the query tokens that a request of a wrapper may have; None: any number.

    Raises as `attnloom.jit.build`, once all have been tried.
    """
    from attnloom import jit
    from attnloom.jit.launcher import binding_unit, scheduler_unit
    from attnloom.targets import HOST, CudaTarget

    targets = [CudaTarget(name) for name in archs] or [HOST]
    wanted = [(unit, jit.host_toolchain()) for unit in (binding_unit(), scheduler_unit())]
    for target in targets:
        toolchain = target.toolchain(debug) if archs else jit.host_toolchain(debug)
        print(f"compiler {' '.join(toolchain.command)}, {_instructions(toolchain)}", flush=True)
        units = (unit for spec in specs for most in max_qo_lens for unit in _units(spec, target, most))
        wanted += [(unit, toolchain) for unit in dict.fromkeys(units)]
        if archs:
            from attnloom.engines.append import unit as append_unit

            wanted.append((append_unit(), toolchain))

    def started(unit) -> None:
        print(f"compiling {unit.kind} {unit.title} ...", flush=True)

    artifacts = jit.build_all(wanted, on_start=started, on_compiled=_notify(specs))
    resources = {entry.path: entry.resources for entry in jit.entries()}
    for (unit, toolchain), artifact in zip(wanted, artifacts, strict=True):
        how = "found" if artifact.hit else f"compiled in {artifact.seconds:.1f} s"
        path = artifact.path
        if output is not None:
            from attnloom.jit import shipped

            path = shipped.add(output, unit, artifact, toolchain.isa)
        print(f"{unit.title}: {how}, {path}{_spills(resources.get(artifact.path, ()))}")
    if output is not None:
        print(f"set ATTNLOOM_SHIPPED={output.resolve()} where these are to be used")


def _units(spec, target, max_qo_len: int | None) -> list:
    """Of the kernels that a wrapper of `spec` may run."""
    from attnloom.engines.long import long_spec
    from attnloom.kernel import describe
    from attnloom.limits import Limits

    limits = Limits(qo_len=max_qo_len)
    composition, tiles, unit = describe(spec, target, limits)
    second = long_spec(spec, tiles, composition.functors, limits)
    return [unit] if second is None else [unit, describe(second, target)[2]]


def _instructions(toolchain) -> str:
    return f"architecture {toolchain.isa}" if toolchain.isa.startswith("sm_") else f"instruction set {toolchain.isa}"


def _spills(kernels) -> str:
    registers = [f"{kernel['registers']} registers" for kernel in kernels]
    spilled = sum(kernel["spill_stores"] + kernel["spill_loads"] for kernel in kernels)
    return f" ({', '.join(registers)}{f', {spilled} bytes spilled' if spilled else ''})" if kernels else ""


def _notify(specs):
    return specs[0].plugin_set.notify_compiled if specs else None
