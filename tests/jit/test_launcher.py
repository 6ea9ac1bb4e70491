"""The launcher between tensors and kernels: what it checks, what it fills, what a call costs."""

import ctypes
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")

from attnloom import jit  # noqa: E402
from attnloom.abi import ARGS_ABI, RunArgs  # noqa: E402
from attnloom.dtypes import CODES  # noqa: E402
from attnloom.errors import CompileError, RunError  # noqa: E402
from attnloom.jit.launcher import KernelHandle  # noqa: E402

KERNEL = """
#include <attnloom/args.h>
#include <unistd.h>
#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT int attnloom_run(const attnloom::RunArgs* args) {
  if (args->num_threads == -1) usleep(200000);
  return args->num_threads > 0 ? args->num_threads : 0;
}
EXPORT int answer() { return 42; }
"""
TOKENS, QO, KV, D, DV, PAGES, SLOTS = 6, 4, 2, 8, 5, 3, 2


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNLOOM_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        jit.forget()
        unit = jit.CompileUnit(name="recorder", sources={"recorder.cc": KERNEL}, include_dirs=jit.include_dirs())
        (artifact,) = jit.build_all([(unit, None)])
        yield jit.load(artifact)
    jit.forget()


def arguments(dtype="float32", kv_dtype=None, out_dtype=None, **fields):
    args = RunArgs()
    args.abi = ARGS_ABI
    args.num_qo_heads, args.num_kv_heads, args.head_dim, args.head_dim_v = QO, KV, D, DV
    args.dtype, args.kv_dtype, args.out_dtype = CODES[dtype], CODES[kv_dtype or dtype], CODES[out_dtype or dtype]
    args.index.num_tokens, args.index.page_size = TOKENS, SLOTS
    for name, value in fields.items():
        setattr(args, name, value)
    return args


def tensors(dtype=torch.float32, kv_dtype=None, out_dtype=None):
    kv_dtype = kv_dtype or dtype
    return {
        "q": torch.zeros(TOKENS, QO, D, dtype=dtype),
        "k": torch.zeros(PAGES, SLOTS, KV, D, dtype=kv_dtype),
        "v": torch.zeros(PAGES, SLOTS, KV, DV, dtype=kv_dtype),
        "out": torch.zeros(TOKENS, QO, DV, dtype=out_dtype or dtype),
        "lse": torch.zeros(TOKENS, QO),
    }


def run(kernel, args, given):
    kernel.run(ctypes.addressof(args), given["q"], given["k"], given["v"], given["out"], given["lse"])


def test_the_views_are_filled_in_elements(kernel):
    args, given = arguments(), tensors()
    given["k"] = torch.zeros(KV, PAGES, SLOTS, 2 * D)[..., :D].permute(1, 2, 0, 3)
    given["out"] = torch.zeros(QO, TOKENS, DV).transpose(0, 1)
    given["q"] = torch.zeros(3 * TOKENS, QO, D)[1::3]
    run(kernel, args, given)
    assert (args.q.data, args.q.stride_token, args.q.stride_head) == (given["q"].data_ptr(), 3 * QO * D, D)
    assert (args.out.stride_token, args.out.stride_head) == (DV, TOKENS * DV)
    assert (args.k.stride_page, args.k.stride_slot, args.k.stride_head) == (SLOTS * 2 * D, 2 * D, PAGES * SLOTS * 2 * D)
    assert args.v.data == given["v"].data_ptr() and args.num_pages == PAGES
    assert ctypes.cast(args.lse, ctypes.c_void_p).value == given["lse"].data_ptr() and args.lse_stride_token == QO
    run(kernel, args, {**given, "lse": None})
    assert not args.lse


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kv_dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_every_dtype_passes(kernel, dtype, kv_dtype):
    given = tensors(getattr(torch, dtype), getattr(torch, kv_dtype), torch.float32)
    args = arguments(dtype, kv_dtype, "float32")
    run(kernel, args, given)
    if kv_dtype.startswith("float8"):
        given["k"], given["v"] = given["k"].view(torch.uint8), given["v"].view(torch.uint8)
        run(kernel, args, given)


WRONG = {
    "q tokens": ({"q": torch.zeros(5, QO, D)}, r"q of shape \[5, 4, 8\] has 5 tokens, but 6 are planned"),
    "q heads": ({"q": torch.zeros(TOKENS, 3, D)}, "has 3 query heads, but 4"),
    "q dim": ({"q": torch.zeros(TOKENS, QO, 9)}, "has 9 elements a head, but 8"),
    "q dims": ({"q": torch.zeros(TOKENS, QO * D)}, r"q has shape \[6, 32\], but 3 dimensions"),
    "q dtype": ({"q": torch.zeros(TOKENS, QO, D).half()}, "q is float16, but the spec says float32"),
    "q int": ({"q": torch.zeros(TOKENS, QO, D).int()}, "q is int32, but the spec says float32"),
    "q stride": ({"q": torch.zeros(TOKENS, QO, 2 * D)[..., ::2]}, r"strides \[64, 16, 2\], but the last must be 1"),
    "k dims": ({"k": torch.zeros(PAGES, KV, D)}, r"k has shape \[3, 2, 8\], but 4 dimensions"),
    "k slots": ({"k": torch.zeros(PAGES, 4, KV, D)}, "has 4 slots a page, but 2"),
    "k heads": ({"k": torch.zeros(PAGES, SLOTS, 4, D)}, "has 4 kv heads, but 2"),
    "k dtype": ({"k": torch.zeros(PAGES, SLOTS, KV, D).bfloat16()}, "k is bfloat16, but the spec says float32"),
    "k stride": ({"k": torch.zeros(PAGES, SLOTS, D, KV).transpose(2, 3)}, "k has strides .* the last must be 1"),
    "v dim": ({"v": torch.zeros(PAGES, SLOTS, KV, D)}, "v of shape .* has 8 elements a head, but 5"),
    "v pages": ({"v": torch.zeros(PAGES + 1, SLOTS, KV, DV)}, "k has 3 pages, but v has 4"),
    "out dtype": ({"out": torch.zeros(TOKENS, QO, DV).double()}, "out is float64, but the spec says float32"),
    "out tokens": ({"out": torch.zeros(7, QO, DV)}, "out .* has 7 tokens, but 6"),
    "out expanded": ({"out": torch.zeros(1, QO, DV).expand(TOKENS, QO, DV)}, "out .* overlaps itself"),
    "out overlapping": ({"out": torch.zeros(99).as_strided((TOKENS, QO, DV), (12, 3, 1))}, "out .* overlaps itself"),
    "lse shape": ({"lse": torch.zeros(QO, TOKENS)}, "lse .* has 4 tokens, but 6"),
    "lse dtype": ({"lse": torch.zeros(TOKENS, QO).double()}, "lse is float64, but the spec says float32"),
    "lse expanded": ({"lse": torch.zeros(1, QO).expand(TOKENS, QO)}, "lse .* overlaps itself"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_tensors_raise_with_both_values_and_write_nothing(kernel, case):
    change, message = WRONG[case]
    args = arguments()
    before = bytes(args)
    with pytest.raises(RunError, match=message):
        run(kernel, args, {**tensors(), **change})
    assert bytes(args) == before


def test_too_few_pages(kernel):
    with pytest.raises(RunError, match="k has 3 pages, but the index uses page ids up to 3"):
        run(kernel, arguments(min_pages=PAGES + 1), tensors())
    run(kernel, arguments(min_pages=PAGES), tensors())


def test_arguments_of_another_abi(kernel):
    with pytest.raises(RunError, match=f"ABI 99, but the launcher was built for {ARGS_ABI}"):
        run(kernel, arguments(abi=99), tensors())


def test_a_failing_kernel_is_no_wrong_tensor(kernel):
    with pytest.raises(RuntimeError, match="the kernel failed with status 7"):
        run(kernel, arguments(num_threads=7), tensors())


def test_what_is_no_tensor(kernel):
    with pytest.raises(TypeError, match="k must be a tensor"):
        run(kernel, arguments(), {**tensors(), "k": "k"})


def test_no_tokens_and_no_pages(kernel):
    args, given = arguments(), tensors()
    args.index.num_tokens = 0
    for name in ("q", "out", "lse"):
        given[name] = given[name][:0]
    given["k"], given["v"] = given["k"][:0], given["v"][:0]
    run(kernel, args, given)
    run(kernel, args, {name: tensor.numpy() for name, tensor in given.items()})


def test_arrays_of_numpy_pass(kernel):
    run(kernel, arguments(), {name: tensor.numpy() for name, tensor in tensors().items()})


def test_dims_of_one(kernel):
    args = arguments(num_qo_heads=1, num_kv_heads=1, head_dim=1, head_dim_v=1)
    args.index.num_tokens = args.index.page_size = 1
    one = torch.zeros(1)
    given = {"q": one.expand(1, 1, 1), "k": one.expand(1, 1, 1, 1), "v": one.expand(1, 1, 1, 1)}
    run(kernel, args, {**given, "out": one.expand(1, 1, 1), "lse": one.expand(1, 1)})


def test_symbols(kernel):
    assert ctypes.CFUNCTYPE(ctypes.c_int)(kernel.symbol("answer"))() == 42
    assert kernel.symbol("no_such_symbol") == 0
    assert KernelHandle(kernel.path).handle == kernel.handle


def test_a_library_that_is_no_kernel(unit, tmp_path, kernel):
    with pytest.raises(CompileError, match="exports no attnloom_run"):
        jit.load(jit.build(unit()))
    with pytest.raises(CompileError, match=r"cannot load the kernel: .*gone\.so"):
        KernelHandle(tmp_path / "gone.so")


def test_the_gil_is_released(kernel):
    args, given, ticks, stop = arguments(num_threads=-1), tensors(), [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.005)

    thread = threading.Thread(target=tick)
    thread.start()
    begin = time.perf_counter()
    run(kernel, args, given)
    end = time.perf_counter()
    stop.set()
    thread.join()
    assert sum(begin < at < end for at in ticks) > 5


def test_a_call_is_cheap(kernel):
    address, given = arguments(), tensors()
    values = [ctypes.addressof(address), *given.values()]
    best = min(_seconds(lambda: kernel.run(*values), 500) for _ in range(5))
    assert best < 40e-6, f"{best * 1e6:.1f} us"  # 1.7 us on a quiet machine


def _seconds(call, count):
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


def test_importing_jit_is_light():
    import subprocess

    code = (
        "import sys, attnloom.jit; assert not {'torch', 'numpy', 'tvm_ffi', 'attnloom.jit.launcher'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_strings_of_any_length_reach_the_launcher(kernel, tmp_path):
    for name in ("x", "y" * 200):
        with pytest.raises(CompileError, match=name):
            KernelHandle(tmp_path / name)
