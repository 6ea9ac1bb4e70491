"""Prompts: read from a file, and turned into token ids with the model's chat template."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from attrs import Factory, define

from attnloom.errors import UnsupportedError

_SYSTEM = "system:"


@define
class Prompts:
    """User prompts and the system prompt that they share."""

    texts: list[str] = Factory(list)
    system: str = ""


def read_prompts(path: str | Path) -> Prompts:
    """The prompts of a text file: one a paragraph, blank lines between them. `-` reads the standard input.

    A first paragraph that begins with `system:` is the system prompt.

    Raises:
        UnsupportedError: when the file cannot be read or holds no prompt.
    """
    try:
        text = sys.stdin.read() if str(path) == "-" else Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as wrong:
        raise UnsupportedError(f"cannot read prompts from {path}: {wrong}") from wrong
    lines = [line if line.strip() else "" for line in text.splitlines()]
    paragraphs = [part.strip() for part in "\n".join(lines).split("\n\n") if part.strip()]
    prompts = Prompts(paragraphs)
    if paragraphs and paragraphs[0].lower().startswith(_SYSTEM):
        prompts.system = paragraphs.pop(0)[len(_SYSTEM) :].strip()
    if not prompts.texts:
        raise UnsupportedError(f"{path} holds no prompt: write one a paragraph, with blank lines between them")
    return prompts


def encode_prompts(tokenizer, prompts: Prompts) -> list[list[int]]:
    """Token ids of every prompt, with the system prompt and the model's chat template where it has one.

    Raises:
        UnsupportedError: for a prompt without text.
    """
    for number, text in enumerate(prompts.texts, 1):
        if not text.strip():
            raise UnsupportedError(f"prompt {number} is empty")
    return [_encode(tokenizer, prompts.system, text) for text in prompts.texts]


def _encode(tokenizer, system: str, text: str) -> list[int]:
    if not getattr(tokenizer, "chat_template", None):
        return list(tokenizer(f"{system}\n\n{text}" if system else text)["input_ids"])
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": text})
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"])


def end_tokens(model, tokenizer) -> Sequence[int]:
    """The ids that end a reply, from the model's generation configuration and its tokenizer."""
    configured = model.generation_config.eos_token_id
    ids = configured if isinstance(configured, (list, tuple)) else [configured]
    return list(dict.fromkeys(token for token in (*ids, tokenizer.eos_token_id) if token is not None))
