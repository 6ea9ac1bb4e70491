"""`attnloom generate`: text from a real language model, its attention computed by attnloom."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

STORAGE_FORMATS = ("page_table", "radix_tree")
DTYPES = ("float32", "bfloat16", "float16")


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("generate")(generate)


def generate(
    prompts: Annotated[list[str] | None, typer.Argument(help="Prompts, one an argument.", show_default=False)] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="A text file of prompts, one a paragraph; a first paragraph 'system: ...'. '-' is stdin."),
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system prompt that all prompts share.")] = None,
    storage_format: Annotated[str, typer.Option(help="page_table or radix_tree.")] = "radix_tree",
    page_size: Annotated[int, typer.Option(help="Tokens of a page.")] = 16,
    variants: Annotated[
        str | None, typer.Option(help="In place of the model's own, causal too; in order, separated by commas.")
    ] = None,
    param: Annotated[
        list[str] | None, typer.Option(help="A parameter of --variants or --stack: soft_cap.cap=30. May repeat.")
    ] = None,
    stack: Annotated[str | None, typer.Option(help="A stack of variants from the configuration.")] = None,
    model: Annotated[
        Path | None, typer.Option(help="A GGUF file or a transformers folder. Default: SmolLM2-135M-Instruct.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[
        str | None, typer.Option(help="float32 (the default on the cpu), bfloat16 (that on cuda) or float16.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens to generate at most for each prompt.")] = 64,
    check: Annotated[
        bool, typer.Option("--check", help="Generate with transformers' eager attention too; fail if tokens differ.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Continue prompts with a language model whose attention is attnloom's.

    K and V live in pages; the beginning that prompts share is computed once. Without --model, SmolLM2-135M-Instruct
    (93 MB) is fetched once and kept in the user's cache.
    """
    _prepare_process()
    result = _run(
        prompts=_gather_prompts(prompts, file, system),
        storage_format=_choice("--storage-format", storage_format.replace("-", "_"), STORAGE_FORMATS),
        page_size=_at_least_one("--page-size", page_size),
        override=_override(variants, stack, param),
        source=model,
        device=_device(device),
        dtype=_choice("--dtype", dtype or ("bfloat16" if device.startswith("cuda") else "float32"), DTYPES),
        max_new_tokens=_at_least_one("--max-new-tokens", max_new_tokens),
        check=check,
    )
    if as_json:
        typer.echo(json.dumps(result, indent=2, ensure_ascii=False))
    else:
        _print(result)
    if check and not result["check"]["passed"]:
        if variants or stack or param:
            typer.echo(
                "transformers computed the model's own attention, not what --variants, --stack or --param name",
                err=True,
            )
        raise typer.Exit(1)


def _prepare_process() -> None:
    """No network, no progress bars, no warnings of the libraries that are about to be imported.

    GCC's OpenMP threads, torch's and attnloom's alike, wait for each other in a loop of milliseconds; on a machine with
    other work that costs far more than it saves, so they give up sooner here.
    """
    for name, value in {
        "GOMP_SPINCOUNT": "10000",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",
    }.items():
        os.environ.setdefault(name, value)


def _choice(option: str, given: str, choices: tuple[str, ...]) -> str:
    from attnloom.errors import UnsupportedError

    if given not in choices:
        raise UnsupportedError(f"{option} {given!r} is not one of {', '.join(choices)}")
    return given


def _device(given: str) -> str:
    """`given`, if it is spelt as a device that kernels run on; whether it is there is asked once torch is imported."""
    from attnloom.errors import UnsupportedError

    kind, colon, number = given.partition(":")
    if kind not in ("cpu", "cuda") or (colon and not (kind == "cuda" and number.isdecimal())):
        raise UnsupportedError(f"--device {given!r} is not one of cpu, cuda, cuda:0, cuda:1, ...")
    return given


def _at_least_one(option: str, given: int) -> int:
    from attnloom.errors import UnsupportedError

    if given < 1:
        raise UnsupportedError(f"{option} must be at least 1, got {given}")
    return given


def _gather_prompts(given: list[str] | None, file: Path | None, system: str | None):
    from attnloom.errors import UnsupportedError
    from attnloom.integrations.prompts import Prompts, read_prompts

    prompts = read_prompts(file) if file is not None else Prompts()
    prompts.texts.extend(given or ())
    if system is not None:
        prompts.system = system
    if not prompts.texts:
        raise UnsupportedError("no prompts: give them as arguments, or a text file with --file")
    for number, text in enumerate(prompts.texts, 1):
        if not text.strip():
            raise UnsupportedError(f"prompt {number} is empty")
    return prompts


def _override(variants: str | None, stack: str | None, param: list[str] | None):
    """The variants of the user's choice, or none."""
    from attnloom.cli.computation import parameter, variant_names
    from attnloom.errors import CompositionError, ParamError
    from attnloom.integrations.layers import Override
    from attnloom.param_values import check_scalars
    from attnloom.plugins import PluginSet

    if variants is None and stack is None:
        if param:
            raise ParamError("--param belongs to --variants or --stack; without them the model sets its own parameters")
        return None
    if variants is not None and stack is not None:
        raise CompositionError("give --variants or --stack, not both")
    params: dict[str, Any] = {}
    if stack is not None:
        chosen = PluginSet.default().stack(stack)
        names, params = list(chosen.variants), dict(chosen.params)
    else:
        names = variant_names(variants)
    params.update(map(parameter, param or ()))
    for name in names:
        if PluginSet.default().variant(name.rpartition("=")[2]).rotation:
            raise CompositionError(f"the model rotates q and k itself: leave {name!r} out of the variants")
    check_scalars(names, params, PluginSet.default())  # what is wrong here is told before a model is loaded
    return Override(names, params)


def _run(
    *, prompts, storage_format, page_size, override, source, device, dtype, max_new_tokens, check
) -> dict[str, Any]:
    """Load, generate, check: a JSON-able account of it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("importing torch and transformers", total=None)

        def report(text: str, total: int | None = None) -> None:
            progress.reset(task, description=text, total=total)
            if not console.is_terminal:
                typer.echo(text, err=True)

        return _generate(
            prompts=prompts,
            storage_format=storage_format,
            page_size=page_size,
            override=override,
            source=source,
            device=device,
            dtype=dtype,
            max_new_tokens=max_new_tokens,
            check=check,
            report=report,
            advance=lambda count: progress.advance(task, count),
        )


def _generate(*, prompts, source, device, dtype, max_new_tokens, check, report, advance, **how) -> dict[str, Any]:
    from attnloom.errors import UnsupportedError

    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as missing:
        raise UnsupportedError(f"generate needs transformers: pip install 'attnloom[hf]' ({missing})") from missing

    from attnloom.integrations.account import account
    from attnloom.integrations.check import check_tokens
    from attnloom.integrations.eager import generate_eagerly
    from attnloom.integrations.generation import Generator
    from attnloom.integrations.prompts import encode_prompts, end_tokens
    from attnloom.integrations.weights import load_model

    _require_device(device)
    loaded = load_model(source, dtype=getattr(torch, dtype), device=device, report=report)
    ids = encode_prompts(loaded.tokenizer, prompts)
    ends = end_tokens(loaded.model, loaded.tokenizer)
    report("loading kernels, or compiling them (once, some ten seconds)")
    generator = Generator(loaded.model, **how)
    generator.prepare()
    report(f"generating up to {max_new_tokens} tokens for {len(ids)} prompt(s)", total=len(ids) * max_new_tokens)
    ours = generator.generate(ids, max_new_tokens=max_new_tokens, end_tokens=ends, on_token=advance)
    eager = verdict = None
    if check:
        report("generating with transformers' eager attention")
        eager = generate_eagerly(loaded.model, ids, max_new_tokens=max_new_tokens, end_tokens=ends)
        report("comparing")
        verdict = check_tokens(loaded.model, ids, ours.tokens, eager)
    texts = [loaded.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in ours.tokens]
    return account(loaded, generator, prompts, ids, texts, ours, eager, verdict)


def _require_device(device: str) -> None:
    """Raise what the engine raises of a device that it cannot serve, before weights are loaded."""
    if device == "cpu":
        return
    from attnloom import AttentionSpec, AttentionWrapper

    AttentionWrapper(AttentionSpec(["causal"], num_qo_heads=1, num_kv_heads=1, head_dim=64), device=device)


def _print(result: dict[str, Any]) -> None:
    from attnloom.integrations.account import render

    width = None if sys.stdout.isatty() else 100
    render(result, width=width)
