"""Generation beside transformers: `python benchmarks/generate.py [--json FILE]`.

Eight requests that share a beginning of 512 tokens, SmolLM2-135M-Instruct, greedy, no end token. attnloom with both
storage formats and transformers' eager attention over a left-padded batch take turns in one process; each figure is the
best of its turns. Attention seconds are those of the kernels, over all layers.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as `attnloom generate` sets it

import torch
from attnloom.integrations.eager import generate_eagerly
from attnloom.integrations.generation import Generator
from attnloom.integrations.prompts import read_prompts
from attnloom.integrations.weights import load_model

DEMO = Path(__file__).resolve().parent.parent / "demo" / "prompts.txt"
FORMATS = ("page_table", "radix_tree")


def make_prompts(tokenizer, requests: int, shared: int) -> list[list[int]]:
    """`shared` equal tokens, then 12 to 40 of its own for each request."""
    demo = read_prompts(DEMO)
    system = tokenizer(demo.system)["input_ids"]
    prefix = (system * (shared // len(system) + 1))[:shared]
    own = [token for text in demo.texts for token in tokenizer(text)["input_ids"]]
    lengths = [12 + (7 * request) % 29 for request in range(requests)]
    starts = [13 * request % (len(own) - 40) for request in range(requests)]
    return [prefix + own[start : start + length] for start, length in zip(starts, lengths, strict=True)]


def measure(options) -> dict:
    loaded = load_model(options.model, dtype=getattr(torch, options.dtype), report=lambda text: print(text, flush=True))
    prompts = make_prompts(loaded.tokenizer, options.requests, options.shared)
    generators = {name: Generator(loaded.model, storage_format=name) for name in FORMATS}
    for generator in generators.values():
        generator.prepare()
    generate_eagerly(loaded.model, [[1]], max_new_tokens=2)
    turns: dict[str, list[dict]] = {"page_table": [], "radix_tree": [], "eager": []}
    tokens = {}
    for _ in range(options.turns):
        for name, generator in generators.items():
            run = generator.generate(prompts, max_new_tokens=options.new)
            tokens[name] = run.tokens
            turns[name].append(
                {
                    "tokens_per_s": run.tokens_per_s,
                    "seconds": run.seconds,
                    "prefill_s": run.prefill_s,
                    "attention_s": run.attention_s,
                    "decode_attention_s": run.decode_attention_s,
                    "append_s": run.append_s,
                    "plan_us": sorted(run.plan_us)[len(run.plan_us) // 2],
                }
            )
        if options.eager:
            eager = generate_eagerly(loaded.model, prompts, max_new_tokens=options.new)
            tokens["eager"] = eager.tokens
            turns["eager"].append({"tokens_per_s": eager.tokens_per_s, "seconds": eager.seconds})
    return summary(options, turns, tokens)


def summary(options, turns, tokens) -> dict:
    best = {
        name: {key: (max if key == "tokens_per_s" else min)(run[key] for run in runs) for key in runs[0]}
        for name, runs in turns.items()
        if runs
    }
    page_table, radix_tree = best["page_table"], best["radix_tree"]
    ratios = {
        "radix_tree / page_table, decode attention": page_table["decode_attention_s"]
        / radix_tree["decode_attention_s"],
        "radix_tree / page_table, all attention": page_table["attention_s"] / radix_tree["attention_s"],
    }
    for name in FORMATS if "eager" in best else ():
        ratios[f"{name} / eager, tokens/s"] = best[name]["tokens_per_s"] / best["eager"]["tokens_per_s"]
    return {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "load": os.getloadavg()[0],
        },
        "options": {key: value for key, value in vars(options).items() if key != "json"},
        "equal_tokens": all(other == tokens["page_table"] for other in tokens.values()),
        "best": best,
        "ratios": ratios,
    }


def show(result: dict) -> None:
    columns = ("tokens_per_s", "seconds", "prefill_s", "attention_s", "decode_attention_s", "append_s", "plan_us")
    print(f"{'':12}" + "".join(f"{name:>20}" for name in columns))
    for name, row in result["best"].items():
        print(f"{name:12}" + "".join(f"{row[key]:20.3f}" if key in row else f"{'':20}" for key in columns))
    for name, ratio in result["ratios"].items():
        print(f"{name:45} {ratio:.2f}x")
    print(f"tokens of all runs equal: {result['equal_tokens']}; load {result['machine']['load']:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--shared", type=int, default=512, help="tokens that all prompts begin with")
    parser.add_argument("--new", type=int, default=24, help="tokens to generate for each")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--model", help="a GGUF file or a transformers folder")
    parser.add_argument("--no-eager", dest="eager", action="store_false", help="leave transformers out")
    parser.add_argument("--json", type=Path, help="write the result there too")
    options = parser.parse_args()
    result = measure(options)
    show(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
