"""The account of a generation: a JSON-able dictionary, and how it is shown to people."""

from __future__ import annotations

from statistics import median
from typing import Any

from attnloom.integrations.check import ULPS, Check
from attnloom.integrations.eager import EagerGeneration
from attnloom.integrations.generation import Generation, Generator


def account(
    loaded,
    generator: Generator,
    prompts,
    ids,
    texts,
    ours: Generation,
    eager: EagerGeneration | None,
    check: Check | None,
) -> dict[str, Any]:
    """Everything that was measured and produced, as plain numbers, strings, lists and dictionaries."""
    result: dict[str, Any] = {
        "model": loaded.name,
        "loaded_from": loaded.how,
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "device": str(loaded.model.device),
        "storage_format": generator.storage_format,
        "page_size": generator.page_size,
        "variants": [list(kind.variants) for kind in generator.wrappers],
        "system": prompts.system,
        "requests": [
            {"prompt": prompt, "prompt_tokens": len(given), "text": text, "tokens": tokens}
            for prompt, given, text, tokens in zip(prompts.texts, ids, texts, ours.tokens, strict=True)
        ],
        "attnloom": {
            "tokens_per_s": ours.tokens_per_s,
            "new_tokens": ours.new_tokens,
            "seconds": ours.seconds,
            "prefill_s": ours.prefill_s,
            "attention_s": ours.attention_s,
            "decode_attention_s": ours.decode_attention_s,
            "append_s": ours.append_s,
            "passes": ours.passes,
            "plans": len(ours.plan_us),
            "plan_us_median": median(ours.plan_us),
            "plan_us_max": max(ours.plan_us),
            "prompt_tokens": ours.prompt_tokens,
            "computed_prompt_tokens": ours.computed_prompt_tokens,
            "pages_used": ours.pages_used,
            "pages_shared": ours.pages_shared,
        },
        "kernels": [_kernel(wrapper) for wrapper in generator.wrappers.values()],
        "kernels_s": generator.kernels_s,
    }
    if eager is not None:
        result["transformers"] = {
            "tokens_per_s": eager.tokens_per_s,
            "new_tokens": eager.new_tokens,
            "seconds": eager.seconds,
        }
    if check is not None:
        result["check"] = _verdict(check, result["dtype"])
    return result


def _kernel(wrapper) -> dict[str, Any]:
    artifact = wrapper.kernel.artifact
    return {"name": wrapper.kernel.unit.name, "from_cache": artifact.hit, "seconds": artifact.seconds}


def _verdict(check: Check, dtype: str) -> dict[str, Any]:
    return {
        "passed": check.passed,
        "equal": check.equal,
        "total": check.total,
        "followed": check.followed,
        "rule": "every token equal" if dtype == "float32" else f"or within {ULPS} ulp of its best logit",
        "differences": [
            {
                "request": difference.request + 1,
                "place": difference.place + 1,
                "ours": difference.ours,
                "theirs": difference.theirs,
                "gap": difference.gap,
                "bound": difference.bound,
                "allowed": difference.allowed,
            }
            for difference in check.differences
        ],
    }


def render(result: dict[str, Any], *, width: int | None = None) -> None:
    """Print an account to the standard output."""
    from rich.console import Console
    from rich.text import Text

    console = Console(width=width, highlight=False)
    for number, request in enumerate(result["requests"], 1):
        console.print(Text(f"[{number}] {_first_line(request['prompt'])}", style="bold"))
        console.print(Text(f"{request['text'].strip()}\n"), soft_wrap=True)
    console.print(_table(result))
    for line in _notes(result):
        console.print(Text(line), soft_wrap=True)
    if "check" in result:
        for line in _check_lines(result["check"]):
            console.print(Text(line, style="green" if result["check"]["passed"] else "bold red"), soft_wrap=True)


def _first_line(prompt: str, limit: int = 90) -> str:
    line = " ".join(prompt.split())
    return line if len(line) <= limit else f"{line[: limit - 3].rstrip()}..."


def _table(result: dict[str, Any]):
    from rich.table import Table

    table = Table(title=f"{result['model']}, {result['dtype']} on {result['device']}", title_justify="left")
    table.add_column("attention")
    for name in ("tokens/s", "new tokens", "seconds"):
        table.add_column(name, justify="right")
    rows = {f"attnloom, {result['storage_format']}": result["attnloom"]}
    if "transformers" in result:
        rows["transformers, eager, left-padded batch"] = result["transformers"]
    for name, row in rows.items():
        table.add_row(name, f"{row['tokens_per_s']:.1f}", str(row["new_tokens"]), f"{row['seconds']:.2f}")
    return table


def _notes(result: dict[str, Any]) -> list[str]:
    ours = result["attnloom"]
    built = sum(not kernel["from_cache"] for kernel in result["kernels"])
    origin = f"{built} compiled" if built else "from the cache"
    kinds = " | ".join(dict.fromkeys(", ".join(names) for names in result["variants"]))
    return [
        f"variants  {kinds or 'none'}",
        f"kernels   {len(result['kernels'])}, {origin}, ready in {result['kernels_s']:.2f} s",
        f"plan      {ours['plan_us_median']:.0f} us median, {ours['plan_us_max']:.0f} us worst, {ours['plans']} plans",
        f"attention {ours['attention_s']:.2f} s in kernels, {ours['append_s']:.2f} s writing pages, "
        f"prefill {ours['prefill_s']:.2f} s",
        f"pages     {ours['pages_used']} of {result['page_size']} tokens each, {ours['pages_shared']} of them shared; "
        f"{ours['computed_prompt_tokens']} of {ours['prompt_tokens']} prompt tokens computed",
    ]


def _check_lines(check: dict[str, Any]) -> list[str]:
    lines = [
        f"check     {'passed' if check['passed'] else 'FAILED'}: {check['equal']} of {check['total']} tokens equal "
        f"to transformers' ({check['rule']})"
    ]
    if check["followed"]:
        lines.append(f"          {check['followed']} tokens after a difference: checked against eager over our tokens")
    for difference in check["differences"]:
        lines.append(
            f"          prompt {difference['request']}, token {difference['place']}: {difference['ours']} instead of "
            f"{difference['theirs']}, gap {difference['gap']:.3g}, bound {difference['bound']:.3g}"
        )
    return lines
