"""Division in lowered mods is correctly rounded on the device too, where the compiler may approximate a quotient."""

import ctypes

import torch
from attnloom import jit
from attnloom.targets import target_of

SOURCE = """
#include <attnloom/mods.h>
__global__ void quotients(const float* a, const float* b, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = attnloom::mods::div(a[i], b[i]);
}
extern "C" __attribute__((visibility("default"))) int divide(const float* a, const float* b, float* out, int n) {
  quotients<<<(n + 255) / 256, 256>>>(a, b, out, n);
  return cudaDeviceSynchronize();
}
"""


def test_quotients_are_those_of_torch(bench):
    sources = {"division.cu": SOURCE}
    unit = jit.CompileUnit(name="division", kind="test", sources=sources, include_dirs=jit.include_dirs())
    library = ctypes.CDLL(str(jit.build(unit, target_of(bench.device).toolchain(False)).path))
    generator = torch.Generator(device="cuda").manual_seed(0)
    bits = torch.randint(-(1 << 31), 1 << 31, (2, 1 << 24), device="cuda", generator=generator, dtype=torch.int64)
    bits[1, ::8] |= 0x7FFFFF
    bits[0, ::16] &= 0x7F800000
    a, b = bits.to(torch.int32).view(torch.float32)
    out = torch.empty_like(a)
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (a, b, out)]
    torch.cuda.synchronize()
    assert library.divide(*pointers, a.numel()) == 0
    want = a / b
    ordinary = (want.abs() >= 2.0**-126) & (a.abs() >= 2.0**-100) & (b.abs() >= 2.0**-126)
    assert torch.equal(out[ordinary], want[ordinary])
    zeros = ((a == 0) | b.isinf()) & ~want.isnan()
    assert torch.equal(out[zeros].view(torch.int32), want[zeros].view(torch.int32))
    assert out[want.isnan()].isnan().all()
