"""What an attention variant is held to."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from unittest import SkipTest

import numpy as np

from attnloom.errors import AttnloomError, CompileError, CompositionError
from attnloom.resolve import resolve_code
from attnloom.testing import batches, device, oracle, ranges, recorder
from attnloom.testing.functors import FunctorSpec, compare_with_reference, compile_functors, random_sites
from attnloom.testing.indices import paged_index
from attnloom.testing.suite import PluginSuite, gpu
from attnloom.testing.values import prefixed, values_for
from attnloom.variant import ABI, FUNCTORS, Param, StaticParam, TensorParam

LENS = (40, 9, 1), (90, 35, 64)
"""`(qo_lens, kv_lens)` of the batch that functors are compared on."""

FAST = ("-O1",)
"""Flags for what is compiled to be compared, not to be fast."""


class VariantSuite(PluginSuite):
    """Subclass it in a test file and name the variant.

    Attributes:
        variant: its name.
        cases: values of its parameters (by name) that every check is made with, one after another.
        head_dim: of q, k, v and the output in the checks.
        tolerance: bound of the kernel's error in float32, relative to the reference's magnitude.
        rtol: bound of a functor's error, relative to the sum of input and output magnitudes.
        range_is_a_condition: whether `kv_range` hides keys that `logits_mask` would show, because the two are separate
            conditions; else the range must be a short cut of the mask.
    """

    kind = "variant"
    variant: str
    cases: ClassVar[Sequence[Mapping[str, Any]]] = ({},)
    head_dim: ClassVar[int] = 32
    tolerance: ClassVar[float] = 2e-5
    rtol: ClassVar[float] = 2e-6
    range_is_a_condition: ClassVar[bool] = False

    def params_for(self, spec, qo_lens, kv_lens) -> dict[str, Any]:
        """Values by parameter name that fit a batch, under those of the case: the descriptor's example, or made up."""
        return values_for(self.descriptor, spec, qo_lens, kv_lens)

    # The descriptor

    def named_code(self):
        """The code that the descriptor names."""
        variant = self.descriptor
        named = [("reference", variant.reference), ("check", variant.check), ("example", variant.example)]
        named += [(f"computed of {p.name!r}", getattr(p, "computed", None)) for p in variant.params]
        named += [(f"check of {p.name!r}", getattr(p, "check", None)) for p in variant.params]
        return [(label, path) for label, path in named if isinstance(path, str)]

    def modules(self):
        """The modules that the descriptor names."""
        return [path.partition(":")[0] for _, path in self.named_code()]

    def resources(self):
        """The header."""
        variant = self.descriptor
        if variant.header is None:
            return []
        return [f"{(variant.package or self.record.package).replace('.', '/')}/{variant.header}"]

    def test_parameters_are_described(self):
        """Each parameter has a doc, a default that fits its type, and each functor is a method of the reference."""
        variant = self.descriptor
        assert variant.abi == ABI
        for param in variant.params:
            assert param.doc.strip(), f"parameter {self.name}.{param.name} has no doc: say what it is, with its unit"
            check_default(self.name, param)
        if variant.reference is None:
            return  # lowered from Python, which is its reference
        reference = resolve_code(variant.reference)()
        missing = sorted(name for name in variant.functors if not callable(getattr(reference, name, None)))
        assert not missing, f"{variant.reference} has no method for {missing}, which {self.name!r} declares"
        extra = sorted(set(dir(reference)) & set(FUNCTORS) - variant.functors)
        assert not extra, f"{variant.reference} has {extra}, which {self.name!r} does not declare"

    def test_parameters_stay_out_of_the_text(self):
        """Other values of run-time parameters give the same C++ text, so that they never recompile."""
        texts = {self._compose([self.name], case).source for case in self.cases if not self._statics(case)}
        assert len(texts) <= 1, f"{self.name!r}: the generated text follows a run-time parameter"

    # The functors

    def test_reference_agrees_with_the_dense_oracle(self):
        """The reference class, called for whole arrays, gives what it gives for one pair at a time."""
        lens = (2, 1, 0, 3), (5, 3, 2, 0)
        rng = np.random.default_rng(1)
        for case in self.cases:
            spec = self._spec(2, case, lens)
            index, pages = paged_index(rng, *lens, 2)
            composition = self._compose([self.name], case, spec)
            bound = composition.resolve(dict(spec.params))
            data = batches.tensors(rng, spec, index, pages)
            check_oracle(data, index, composition, bound, spec.sm_scale)

    def test_functors_agree_with_the_reference(self):
        """Each C++ functor gives what the float64 reference gives, on random sites and next to every edge."""
        for case in self.cases:
            compiled, lens = self._functors(case)
            rng = np.random.default_rng(2)
            spec = compiled.composition.spec
            guard_tensors(compiled)
            for sites in (random_sites(rng, 2000, spec, lens=lens), ranges.edge_sites(spec, *lens)):
                try:
                    compare_with_reference(compiled, rng, rtol=self.rtol, sites=sites)
                except AssertionError as error:
                    raise AssertionError(f"{two_sides(compiled)} disagree: {error}") from error

    def test_kv_range_agrees_with_the_mask(self):
        """The intervals are sorted and disjoint, keep what they promise of order and heads, and are the reference's."""
        if "kv_range" not in self.descriptor.functors:
            raise SkipTest(f"{self.name!r} has no kv_range")
        for case in self.cases:
            compiled, lens = self._functors(case)
            ranges.check_ranges(compiled, lens, self.name, mask=not self.range_is_a_condition)

    # The kernel

    def test_kernel_agrees_with_the_reference(self):
        """Kernels give what the reference gives: every group size, ragged and empty rows, splits, NaN elsewhere."""
        rng = np.random.default_rng(3)
        for case in self.cases:
            for batch in batches.generated(rng):
                self._run(rng, batch, case)

    def test_functors_are_given_what_the_contract_says(self):
        """In a kernel, every pair that masks and ranges show is given to functors, with its positions."""
        if not self.descriptor.functors & {"kv_range", "logits_mask"}:
            raise SkipTest(f"no functor of {self.name!r} decides which pairs are seen")
        rng = np.random.default_rng(4)
        for case in self.cases[:1]:
            for batch in batches.generated(rng)[:6]:
                spec = self._spec(batch.group, case, (batch.qo_lens, batch.kv_lens), [self.name, recorder.RECORDER])
                wrapper = self._wrapper(spec, batch.workers)
                index, pages = paged_index(rng, batch.qo_lens, batch.kv_lens, batch.page_size)
                log = recorder.blank(spec, index)
                data = batches.tensors(rng, spec, index, pages)
                batches.run(wrapper, index, data, params=log)
                bound = wrapper.kernel.composition.resolve({**spec.params, **log})
                visible = ranges.visible_pairs(wrapper.kernel.composition, bound, index, spec)
                recorder.check_records(log, index, visible)

    def test_composes_in_both_orders(self):
        """Before and after every other installed variant, where the two may be combined, it gives the references'."""
        chains, params = [], []
        for order in self._pairs():
            spec = self._functor_spec()
            values = self._values(order, spec, LENS, self.cases[0])
            try:
                chains.append(self._compose(order, self.cases[0], spec, values))
                params.append(values)
            except CompositionError:
                continue
        if not chains:
            raise SkipTest(f"no other variant that {self.name!r} may be combined with is installed")
        rng = np.random.default_rng(5)
        others = sorted({member.alias for chain in chains for member in chain.members} - {self.name})
        try:
            together = compile_functors(chains, params, flags=FAST)
        except CompileError as error:
            raise AssertionError(f"{self.name!r} and {', '.join(others)} do not compile together: {error}") from error
        for compiled in together:
            names = " then ".join(member.alias for member in compiled.composition.members)
            try:
                sites = random_sites(rng, 600, compiled.composition.spec, lens=LENS)
                compare_with_reference(compiled, rng, rtol=max(self.rtol, 1e-5), sites=sites)
            except AssertionError as error:
                raise AssertionError(f"{names}: {error}") from error

    def test_compiles_for_devices(self):
        """The functors compile for sm_80 and sm_90a, where nvcc is there."""
        device.compile_for_devices(self._compose([self.name], self.cases[0]))

    @gpu
    def test_kernel_on_a_gpu(self):
        """Kernels on a GPU give what the reference gives."""
        rng = np.random.default_rng(6)
        device.require_gpu()
        for batch in batches.generated(rng)[::2]:
            self._run_on_gpu(rng, batch, self.cases[0])

    # How it is done

    def _pairs(self) -> list[list[str]]:
        """The variant before and after each other one that can be had and that values can be made up for."""
        pairs = []
        for other in self.plugin_set.names("variant"):
            if other == self.name:
                continue
            try:
                values_for(self.plugin_set.variant(other), self._functor_spec(), *LENS)
            except (AttnloomError, AssertionError):
                continue
            pairs += [[self.name, other], [other, self.name]]
        return pairs

    def _values(self, chain: Sequence[str], spec, lens, case) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name in chain:
            if name == self.name:
                values |= prefixed(name, {**self.params_for(spec, *lens), **case})
            else:
                values |= prefixed(name, values_for(self.plugin_set.variant(name), spec, *lens))
        return values

    def _spec(self, group: int, case, lens, chain=None, **fields):
        from attnloom import AttentionSpec, Tile

        chain = [self.name] if chain is None else chain
        fields = {"head_dim": self.head_dim, "dtype": "float32", "tile": Tile(16, 16), **fields}
        heads = AttentionSpec([], num_qo_heads=2 * group, num_kv_heads=2, **fields)
        values = self._values([name for name in chain if isinstance(name, str)], heads, lens, case)
        return heads.evolve(variants=chain, params=values, plugins=self.plugin_set)

    def _functor_spec(self) -> FunctorSpec:
        return FunctorSpec(num_qo_heads=6, num_kv_heads=2, head_dim=self.head_dim, head_dim_v=self.head_dim)

    def _compose(self, chain, case, spec=None, values=None):
        from attnloom.compose import compose

        spec = self._functor_spec() if spec is None else spec
        values = self._values(chain, spec, LENS, case) if values is None else values
        return compose(chain, spec=spec, plugins=self.plugin_set, params=values)

    def _statics(self, case) -> list[str]:
        return [p.name for p in self.descriptor.params if isinstance(p, StaticParam) and p.name in case]

    def _functors(self, case):
        """The compiled functors with the parameters of a case, and the lengths that these fit."""
        spec = self._functor_spec()
        values = self._values([self.name], spec, LENS, case)
        composition = self._compose([self.name], case, spec, values)
        statics = tuple((name, case[name]) for name in self._statics(case))
        compiled = self.once(f"functors {statics}", lambda: compile_functors([composition], [values])[0])
        compiled.params = composition.resolve(values)
        return compiled, LENS

    def _wrapper(self, spec, workers: int):
        from attnloom import AttentionWrapper

        return AttentionWrapper(spec, num_threads=1, num_workers=workers)

    def _run(self, rng, batch, case) -> None:
        lens = batch.qo_lens, batch.kv_lens
        wrapper = self._wrapper(self._spec(batch.group, case, lens), batch.workers)
        index, pages = paged_index(rng, *lens, batch.page_size)
        data = batches.tensors(rng, wrapper.spec, index, pages)
        about = f"{self.name} {dict(case) or ''} ({batch})"
        try:
            batches.check(wrapper, index, data, tolerance=self.tolerance, about=about)
        except AttnloomError as error:
            raise AssertionError(f"{about}: {error}") from error

    def _run_on_gpu(self, rng, batch, case) -> None:
        from attnloom import AttentionWrapper

        lens = batch.qo_lens, batch.kv_lens
        spec = self._spec(batch.group, case, lens, dtype="float16", head_dim=64, tile="auto")
        index, pages = paged_index(rng, *lens, 16)
        data = batches.tensors(rng, spec, index, pages)
        about = f"{self.name} {dict(case) or ''} on a GPU ({batch})"
        bound = {"tolerance": device.TOLERANCE, "about": about}
        batches.check(AttentionWrapper(spec, "cuda"), index, data, given=device.to_gpu(data), **bound)


def check_default(variant: str, param: Param | StaticParam | TensorParam) -> None:
    """Require a default of the declared type."""
    default = getattr(param, "default", None)
    if default is None:
        return
    fits = isinstance(default, param.type) and isinstance(default, bool) == (param.type is bool)
    assert fits or (param.type is float and type(default) is int), (
        f"parameter {variant}.{param.name} is a {param.type.__name__}, its default is {default!r}"
    )


def check_oracle(data, index, composition, bound, sm_scale: float) -> None:
    """Compare the vectorised reference with the pair-by-pair one. Raises `AssertionError` where they differ."""
    from attnloom import reference

    name = " then ".join(str(member.variant.reference or member.alias) for member in composition.members)
    with np.errstate(all="ignore"):
        try:
            many = reference.attention(data.q, data.k, data.v, index, composition, bound, sm_scale=sm_scale)
            one = oracle.attention(data.q, data.k, data.v, index, composition, bound, sm_scale=sm_scale)
        except AttnloomError:
            raise
        except Exception as error:
            raise AssertionError(f"{name} raised {type(error).__name__}: {error}") from error
    for label, got, want in zip(("out", "lse"), many, one, strict=True):
        same = np.allclose(got, want, rtol=1e-9, atol=1e-9, equal_nan=True)
        assert same, (
            f"{name} is not vectorised right: called for arrays it gives another {label} than called pair by pair; it "
            "must follow the values of `site` and broadcast, and must not change what it is given"
        )


def two_sides(compiled) -> str:
    """The files of the functors and of their reference."""
    (member,) = compiled.composition.members
    if member.include is None:
        return f"{member.alias!r}: its Python and what it was lowered to"
    reference = resolve_code(member.variant.reference)
    module = sys.modules.get(reference.__module__)
    header = member.include_dir / member.include
    return f"{member.alias!r}: {header} and {reference.__qualname__} of {getattr(module, '__file__', module)}"


def guard_tensors(compiled) -> None:
    """Lay every tensor parameter between values that must not be read, so that an index out of bounds shows."""
    values = dict(compiled.params.values)
    guarded = {}
    for member in compiled.composition.members:
        for param in member.variant.params:
            if isinstance(param, TensorParam) and param.shape:
                key = f"{member.alias}.{param.name}"
                guarded[key] = guard(values[key].numpy())
    if guarded:
        compiled.params = compiled.params.replace(guarded)


def guard(array: np.ndarray, margin: int = 64) -> np.ndarray:
    """A copy of `array` inside a larger one that is full of NaN, or of the largest integer."""
    kind = array.dtype.kind
    poison = np.nan if kind == "f" else True if kind == "b" else np.iinfo(array.dtype).max
    around = np.full(array.size + 2 * margin, poison, array.dtype)
    around[margin : margin + array.size] = array.reshape(-1)
    return around[margin : margin + array.size].reshape(array.shape)
