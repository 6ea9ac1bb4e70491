"""CUDA C++ after preprocessing as C++ for this CPU: what only nvcc understands becomes calls of `include/emulation`."""

from __future__ import annotations

import re

_TYPES = {"bf16": "BFloat16", "f16": "Half"}

_INSTRUCTIONS = {
    r"": "",
    r"ex2\.approx\.ftz\.f32 %0, %1": "exp2_flushed",
    r"ex2\.approx\.f32 %0, %1": "exp2",
    r"rcp\.approx\.ftz\.f32 %0, %1": "reciprocal",
    r"sin\.approx\.f32 %0, %1": "sine",
    r"cos\.approx\.f32 %0, %1": "cosine",
    r"tanh\.approx\.f32 %0, %1": "tanh",
    r"cvt\.rn\.(bf16|f16)x2\.f32 %0, %1, %2": "pack<{0}>",
    r"\.reg \.b16 l, h; mov\.b32 \{l, h\}, %2; cvt\.f32\.f16 %0, l; cvt\.f32\.f16 %1, h": "unpack<Half>",
    r"\.reg \.b32 z; mov\.b32 z, 0x80008000; fma\.rn\.(bf16)x2 %0, %1, %2, z": "multiply_pairs<{0}>",
    r"mul\.rn\.(f16)x2 %0, %1, %2": "multiply_pairs<{0}>",
    r"\.reg \.b16 l, h; mov\.b32 \{l, h\}, %2; "
    r"cvt\.rn\.f16x2\.e4m3x2 %0, l; cvt\.rn\.f16x2\.e4m3x2 %1, h": "widen_e4m3",
    r"\.reg \.pred none; setp\.eq\.s32 none, %2, 0; "
    r"cp\.async\.cg\.shared\.global\S* \[%0\], \[%1\], 16, none": "copy_async",
    r"\.reg \.pred none; setp\.eq\.s32 none, %2, 0; "
    r"cp\.async\.cg\.shared\.global\.L2::cache_hint\S* \[%0\], \[%1\], 16, none, %3": "copy_async",
    r"createpolicy\.fractional\.L2::evict_first\.b64 %0, 1\.0": "create_policy",
    r"cp\.async\.commit_group": "close_copies",
    r"cp\.async\.wait_group %0": "wait_copies",
    r"prefetch\.global\.L2 \[%0\]": "prefetch",
    r"prefetch\.tensormap \[%0\]": "",
    r"atom\.add\.acq_rel\.gpu\.global\.s32 %0, \[%1\], 1": "atomic_add_one",
    r"griddepcontrol\.launch_dependents": "",
    r"griddepcontrol\.wait": "wait_for_kernel",
    r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16 \{%0, %1, %2, %3\}, \[%4\]": "load_matrices",
    r"ldmatrix\.sync\.aligned\.m8n8\.x4\.trans\.shared\.b16 \{%0, %1, %2, %3\}, \[%4\]": "load_matrices_transposed",
    r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(bf16|f16)\.\1\.f32 "
    r"\{%0, %1, %2, %3\}, \{%4, %5, %6, %7\}, \{%8, %9\}, \{%0, %1, %2, %3\}": "multiply_add<{0}>",
    r"bar\.sync %0, %1": "sync_at",
    r"bar\.arrive %0, %1": "arrive_at",
    r"mbarrier\.init\.shared::cta\.b64 \[%0\], %1": "init_barrier",
    r"mbarrier\.arrive\.shared::cta\.b64 _, \[%0\]": "arrive_at_barrier",
    r"mbarrier\.arrive\.expect_tx\.shared::cta\.b64 _, \[%0\], %1": "arrive_before_bytes",
    r"cp\.async\.bulk\.tensor\.4d\.shared::cluster\.global\.mbarrier::complete_tx::bytes "
    r"\[%0\], \[%1, \{%2, %3, %4, %5\}\], \[%6\]": "copy_box",
    r"\.reg \.pred done; mbarrier\.test_wait\.parity\.shared::cta\.b64 done, \[%1\], %2; "
    r"selp\.b32 %0, 1, 0, done": "has_phase_ended",
    r"\.reg \.pred done; mbarrier\.try_wait\.parity\.shared::cta\.b64 done, \[%1\], %2; "
    r"selp\.b32 %0, 1, 0, done": "wait_for_phase",
    r"setmaxnreg\.inc\.sync\.aligned\.u32 %0": "take_registers",
    r"setmaxnreg\.dec\.sync\.aligned\.u32 %0": "give_registers",
    r"fence\.proxy\.async\.shared::cta": "fence_proxy",
    r"wgmma\.fence\.sync\.aligned": "fence_products",
    r"wgmma\.commit_group\.sync\.aligned": "close_products",
    r"wgmma\.wait_group\.sync\.aligned %0": "wait_products",
}
"""The function of `include/emulation` that stands for each statement; none: nothing has to be done."""

_WGMMA = re.compile(
    r"\.reg \.pred add; setp\.(?P<add>ne\.b32 add, %\d+, 0|eq\.b32 add, 0, 0); "
    r"wgmma\.mma_async\.sync\.aligned\.m64n(?P<n>\d+)k16\.f32\.(?P<type>bf16|f16)\.(?P=type) "
    r"\{[^{}]*\}, (?P<left>%\d+|\{[^{}]*\}), %\d+, add, 1, 1(?:, 0)?, (?P<major>[01])"
)


def translate(text: str) -> str:
    """Preprocessed CUDA C++ as C++. Raises `NotImplementedError` for an instruction that has no emulation."""
    text = re.sub(r"\bextern\s+__shared__\s+char\s+(\w+)\[\]", r"char* const \1 = ::emulation::dynamic_shared()", text)
    text = re.sub(r"\b__shared__\s+([^;]+?)\s+(\w+);", r"auto& \2 = ::emulation::static_shared<\1>();", text)
    text = re.sub(r"(\w+(?:<[^<>;]*>)?)\s*<<<([^;]*?)>>>\s*\(", r"::emulation::launcher(\1, \2)(", text)
    return _without_asm(text)


def _without_asm(text: str) -> str:
    parts, at = [], 0
    for match in re.finditer(r"\basm\s*(?:volatile\s*)?\(", text):
        end = _closing(text, match.end())
        parts += [text[at : match.start()], _call(*_sections(text[match.end() : end]))]
        at = end + 1
    return "".join([*parts, text[at:]])


def _call(template: str, outputs: list[str], inputs: list[str]) -> str:
    template = re.sub(r"\s+", " ", template).strip().strip("{}").strip().rstrip(";").strip()
    if match := _WGMMA.fullmatch(template):
        return _product(match, outputs, inputs)
    for pattern, function in _INSTRUCTIONS.items():
        if match := re.fullmatch(pattern, template):
            if not function:
                return "static_cast<void>(0)"
            name = function.format(*(_TYPES.get(kind) for kind in match.groups()))
            return f"::emulation::{name}({', '.join([*outputs, *inputs])})"
    raise NotImplementedError(f"tests/emulation knows no {template!r}: add it to ptx.py and include/emulation")


def _product(match: re.Match, outputs: list[str], inputs: list[str]) -> str:
    where = "registers" if match["left"].startswith("{") else "shared"
    transposed = str(match["major"] == "1").lower()
    kind = f"{_TYPES[match['type']]}, {match['n']}, {transposed}"
    accumulators = ", ".join(f"&({output})" for output in outputs)
    return f"::emulation::multiply_{where}<{kind}>({{{accumulators}}}, {', '.join(inputs)})"


def _sections(body: str) -> tuple[str, list[str], list[str]]:
    """Template, outputs and inputs of what stands in the parentheses of an `asm` statement."""
    template, outputs, inputs = ([*_split(body, ":"), "", ""])[:3]
    text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', template))
    return text, _operands(outputs), _operands(inputs)


def _operands(section: str) -> list[str]:
    return [one[one.index("(") + 1 : one.rindex(")")] for one in _split(section, ",") if one.strip()]


def _split(text: str, separator: str) -> list[str]:
    """`text` at every `separator` outside of parentheses and strings."""
    parts, depth, quoted, begin = [], 0, False, 0
    for at, char in enumerate(text):
        if char == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == separator and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    return [*parts, text[begin:]]


def _closing(text: str, begin: int) -> int:
    """Where the parenthesis closes that was opened before `begin`."""
    depth, quoted = 1, False
    for at in range(begin, len(text)):
        if text[at] == '"':
            quoted = not quoted
        elif not quoted and text[at] in "()":
            depth += 1 if text[at] == "(" else -1
            if depth == 0:
                return at
    raise ValueError("an asm statement does not end")
