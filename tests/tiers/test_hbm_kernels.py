"""The torch kernels of the HBM tier against the native engine: the same bits from the same inputs."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtrains import _native
from mtrains.specs import MODES
from mtrains.tiers import hbm_kernels as hbm
from mtrains.tiers.hbm_kernels import Decay, Optimizer, RecordLayout
from mtrains.tiers.hbm_records import state_of, weights_of
from mtrains.tiers.hbm_sums import left_fold

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.cuda,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, found none"),
        ],
    ),
]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DIMS = (1, 2, 3, 7, 16, 17, 64, 130)
KEY = 0xFEDCBA9876543210
NUM_ROWS = 1 << 33  # row ids that need more than 32 bits
IDS = np.concatenate([np.arange(7), (1 << 32) + np.arange(6), NUM_ROWS - 1 - np.arange(4)[::-1]])
PADDING = 3  # of IDS
NAN, SUBNORMAL = float("nan"), 1.5 * 2.0**-127
ZEROS = [0.0, -0.0, SUBNORMAL, -1e-45, 2.0**-126]
ONES = [1.0, 1.0 + 2.0**-23]  # one bit apart
SPECIALS = np.array([*ZEROS, *ONES, np.inf, -np.inf, NAN, 3.4e38, -65520.0, 6e-8, 2.0**-14], np.float32)


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny operations on several threads wait for each other, for long on a busy machine."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
    torch.set_flush_denormal(False)


def state_floats(optimizer, dim):
    return [0, dim, 1, 2 * dim, dim + 1][optimizer]


@dataclass(frozen=True)
class Rule:
    """An optimizer with its scalars."""

    optimizer: int = Optimizer.SGD
    decay: int = Decay.NONE
    maximize: bool = False
    lr: float = 0.05  # no power of two, which would hide a rounding
    eps: float = 1e-8
    weight_decay: float = 0.0
    decay_factor: float = 1.0
    one_minus_beta1: float = 0.1
    one_minus_beta2: float = 0.001

    def scalars(self):
        """The arguments of either side, numbers rounded to float32."""
        return {
            name: float(np.float32(value)) if isinstance(value, float) else int(value)
            for name, value in vars(self).items()
        } | {"maximize": self.maximize}


@dataclass(frozen=True)
class Case:
    """A table and how it is trained; `seed` makes everything else."""

    dim: int = 16
    dtype: torch.dtype = torch.float32
    mode: str = "sum"
    weighted: bool = False
    padding: bool = False
    special: float = 0.0  # share of values that are NaN, infinite, zero, subnormal, ...
    num_bags: int = 5
    longest: int = 6
    pieces: int = 1
    scale: float = 1.0
    rule: Rule = Rule()
    seed: int = 0

    @property
    def layout(self):
        return RecordLayout(
            dtype=self.dtype, dim=self.dim, state_floats=state_floats(self.rule.optimizer, self.dim)
        )


class Batch:
    """Bags of row numbers (into IDS), weights of positions, and the gradient of the output, rows apart."""

    def __init__(self, case, random):
        lengths = random.integers(0, case.longest + 1, case.num_bags)
        lengths[random.random(case.num_bags) < 0.2] = 0
        self.offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        skewed = random.random(self.offsets[-1]) ** 2
        self.numbers = (skewed * len(IDS)).astype(np.int64)
        self.ids = torch.from_numpy(IDS[self.numbers])
        weights = torch.from_numpy(floats(random, len(self.numbers), case.special))
        self.weights = weights if case.weighted else None
        grad = torch.from_numpy(floats(random, (case.num_bags, case.dim + 3), case.special))
        self.grad = grad[:, 2 : 2 + case.dim]
        self.bag_of_position = np.repeat(np.arange(case.num_bags), lengths)


def floats(random, shape, special):
    values = random.standard_normal(shape).astype(np.float32)
    chosen = random.random(shape) < special
    return np.where(chosen, random.choice(SPECIALS, shape), values)


class NativeTable:
    """A table of the native engine with the rows IDS."""

    def __init__(self, case, random):
        self.case = case
        self.engine = _native.Engine(
            tiers=[(1, 1 << 26, 0, None, None, None)], num_threads=2, incarnation=1, epoch=1
        )
        self.number = self.engine.add_table(
            name="t", num_rows=NUM_ROWS, dim=case.dim, dtype=DTYPES.index(case.dtype), init_kind=2,
            init_a=0.0, init_b=1.0, key=KEY, padding_row=int(IDS[PADDING]) if case.padding else -1,
        )  # fmt: skip
        if case.layout.state_floats:
            self.engine.use_layout(
                self.number, self.engine.add_layout(self.number, case.layout.state_floats, 0.125)
            )
        written = np.delete(np.arange(len(IDS)), PADDING)[::2]
        rows = floats(random, (len(written), case.dim), case.special)
        self.engine.write_rows(self.number, IDS[written], rows)
        self.spec = _native.LookupSpec([self.number], [MODES.index(case.mode)], [0])

    def records(self):
        records = np.empty((len(IDS), self.case.layout.stride), np.uint8)
        self.engine.read_records(self.number, IDS, records)
        return torch.from_numpy(records)

    def forward(self, batch):
        bags, dim = self.case.num_bags, self.case.dim
        out = torch.full((bags, dim), NAN)
        argmax = torch.full((bags, dim), -7) if self.case.mode == "max" else None
        self.offsets = torch.from_numpy(batch.offsets)
        lookup = self.engine.forward(
            self.spec, indices_ptr=batch.ids.data_ptr(), num_indices=len(batch.ids), indices_int64=True,
            offsets_ptr=self.offsets.data_ptr(), num_offsets=bags + 1, offsets_int64=True,
            include_last_offset=True, num_bags=bags, bag_size=0, weights_ptr=pointer(batch.weights),
            out_ptr=out.data_ptr(), out_stride=dim, argmax_ptr=pointer(argmax), keep=True,
        )  # fmt: skip
        return lookup, out, argmax

    def weight_grad(self, lookup, batch):
        out = torch.full((len(batch.ids),), NAN)
        self.engine.per_sample_weight_grad(
            lookup, 0, grad_ptr=batch.grad.data_ptr(), grad_stride=batch.grad.stride(0),
            out_ptr=out.data_ptr(),
        )  # fmt: skip
        return out

    def row_sums(self, lookup, batch, argmax, prior):
        prior_rows, prior_sums = prior
        return self.engine.row_sums(
            lookup, 0, **source(batch, argmax), prior_rows=prior_rows, prior_sums=prior_sums
        )

    def step(self, **arguments):
        scalars = self.case.rule.scalars()
        update = _native.Update(table=self.number, scale=self.case.scale, **scalars, **arguments)
        self.engine.step([update])


def source(batch, argmax):
    return {
        "grad_ptr": batch.grad.data_ptr(),
        "grad_stride": batch.grad.stride(0),
        "weights_ptr": pointer(batch.weights),
        "argmax_ptr": pointer(argmax),
    }


def pointer(tensor):
    return 0 if tensor is None else tensor.data_ptr()


class HbmTable:
    """The same rows in a slot tensor, at slots in any order, between records of garbage."""

    def __init__(self, case, records, random, device):
        capacity = len(IDS) + 5
        garbage = random.integers(0, 256, (capacity, case.layout.stride), np.uint8)
        slots = random.permutation(capacity)[: len(IDS)]
        self.case = case
        self.device = device
        self.slots = torch.from_numpy(slots).to(device)
        self.tensor = torch.from_numpy(garbage).to(device)
        hbm.scatter_records(self.tensor, self.slots, records.to(device))
        self.garbage = self.tensor.clone()
        self.updates = 0

    @classmethod
    def of(cls, case, tensor, slots):
        table = cls.__new__(cls)
        table.case, table.device, table.tensor, table.slots = case, tensor.device, tensor, slots
        return table

    def records(self):
        others = torch.ones(len(self.tensor), dtype=torch.bool, device=self.device)
        others[self.slots] = False
        assert torch.equal(self.tensor[others], self.garbage[others])
        return hbm.gather_records(self.tensor, self.slots).cpu()

    def plan(self, batch):
        """Slots of positions; unique row numbers, CSR and positions, as BatchPlan."""
        taken = np.arange(len(batch.numbers))
        if self.case.padding:
            taken = taken[batch.numbers != PADDING]
        unique, counts = np.unique(batch.numbers[taken], return_counts=True)
        positions = taken[np.argsort(batch.numbers[taken], kind="stable")]
        csr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        slots = np.full(len(batch.numbers), -1)
        slots[taken] = self.slots.cpu().numpy()[batch.numbers[taken]]
        return [torch.from_numpy(part).to(self.device) for part in (slots, unique, csr, positions)]

    def forward(self, batch, slots, random):
        """Pool the positions in pieces, each over a random split of the bags."""
        case = self.case
        wide = torch.full((case.num_bags, case.dim + 4), 7.0, device=self.device)
        out = wide[:, 1 : 1 + case.dim]
        argmax = torch.full((case.num_bags, case.dim), -7, device=self.device) if case.mode == "max" else None
        counts = torch.full((case.num_bags,), NAN, device=self.device)
        cuts = np.sort(random.integers(0, len(slots) + 1, case.pieces - 1))
        bounds = [0, *cuts.tolist(), len(slots)]
        middle = int(random.integers(0, case.num_bags + 1))
        for piece in range(case.pieces):
            for bags in ((0, middle), (middle, case.num_bags)):
                hbm.pool(
                    self.tensor, case.layout, slot_of_position=slots, offsets=self.on_device(batch.offsets),
                    bag_begin=bags[0], bag_end=bags[1],
                    position_begin=bounds[piece], position_end=bounds[piece + 1], first_piece=piece == 0,
                    last_piece=piece == case.pieces - 1, mode=MODES.index(case.mode),
                    per_sample_weights=self.on_device(batch.weights), out=out, argmax=argmax, counts=counts,
                )  # fmt: skip
        assert (wide[:, 0] == 7).all()
        assert (wide[:, 1 + case.dim :] == 7).all()
        return out, argmax, counts

    def on_device(self, values):
        if isinstance(values, np.ndarray):
            values = torch.from_numpy(values)
        return None if values is None else values.to(self.device)

    def row_sums(self, batch, plan, argmax, counts, prior=None, sum_of_unique=None, scale=1.0):
        grad = self.on_device(batch.grad)
        if self.case.mode == "mean":
            grad = hbm.divide_by_counts(grad, counts)
        _, _, csr, positions = plan
        return hbm.sum_rows(
            csr=csr, positions=positions, bag_of_position=self.on_device(batch.bag_of_position), grad=grad,
            per_sample_weights=self.on_device(batch.weights), argmax=argmax, sums=prior,
            sum_of_unique=sum_of_unique, scale=scale, dim=self.case.dim,
        )  # fmt: skip

    def step(self, numbers, sums):
        hbm.update_rows(
            self.tensor, self.case.layout, slots=self.slots[numbers], rows=self.on_device(IDS)[numbers],
            sums=sums, **self.case.rule.scalars(), rounding_key=KEY, update_count=self.updates,
        )  # fmt: skip
        self.updates += 1


def same(actual, expected):
    """Equal bits; of NaN, equal places: which of two NaN operands goes on is not defined, here as there."""
    actual = actual.cpu()
    if actual.is_floating_point():
        integer = torch.int32 if actual.dtype is torch.float32 else torch.int16
        actual, expected = (
            torch.where(values.isnan(), torch.iinfo(integer).max, values.contiguous().view(integer))
            for values in (actual, expected)
        )
    return torch.equal(actual, expected)


def same_records(actual, expected, layout):
    padding = slice(layout.dtype.itemsize * layout.dim, layout.state_offset)
    return (
        same(weights_of(actual, layout), weights_of(expected, layout))
        and same(state_of(actual, layout), state_of(expected, layout))
        and torch.equal(actual[:, padding], expected[:, padding])
    )


rules = st.builds(
    Rule,
    optimizer=st.sampled_from(Optimizer),
    decay=st.sampled_from(Decay),
    maximize=st.booleans(),
    weight_decay=st.just(0.3),
    decay_factor=st.just(0.99),
)
cases = st.builds(
    Case,
    dim=st.sampled_from(DIMS),
    dtype=st.sampled_from(DTYPES),
    mode=st.sampled_from(MODES),
    padding=st.booleans(),
    special=st.sampled_from((0.0, 0.1, 0.8)),
    num_bags=st.integers(0, 9),
    longest=st.sampled_from((0, 3, 40)),
    pieces=st.integers(1, 4),
    scale=st.sampled_from((1.0, -0.5, float(np.float32(1 / 3)))),
    rule=rules,
    seed=st.integers(0, 2**32 - 1),
)


@pytest.mark.parametrize("device", DEVICES)
@settings(deadline=None, max_examples=150)
@given(case=cases, weighted=st.booleans(), fused=st.booleans())
def test_training_has_the_bits_of_the_native_engine(device, case, weighted, fused):
    train_both(replace(case, weighted=weighted and case.mode == "sum"), device, fused)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer", Optimizer)
def test_every_optimizer_has_the_bits_of_the_native_engine(device, optimizer):
    for decay, maximize, dtype in product(Decay, (False, True), DTYPES):
        rule = Rule(optimizer, decay, maximize, weight_decay=0.3, decay_factor=0.99)
        for dim in (7, 130):
            train_both(Case(dim=dim, dtype=dtype, rule=rule, seed=dim), device, fused=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_has_the_bits_of_the_native_engine(device, mode):
    for dtype, special, pieces in product(DTYPES, (0.0, 0.5), (1, 3)):
        case = Case(dim=33, dtype=dtype, mode=mode, special=special, num_bags=40, pieces=pieces, seed=pieces)
        train_both(case, device, fused=True)


def train_both(case, device, fused):
    """Train three steps, by sums inside or outside of the native step; compare whatever comes out."""
    random = np.random.default_rng(case.seed)
    native = NativeTable(case, random)
    table = HbmTable(case, native.records(), random, device)
    for _ in range(3):
        batch = Batch(case, random)
        plan = table.plan(batch)
        lookup, native_out, native_argmax = native.forward(batch)
        out, argmax, counts = table.forward(batch, plan[0], random)
        assert same(out, native_out)
        assert native_argmax is None or same(argmax, native_argmax)
        assert same(counts, counts_of(batch, plan[0].cpu()))
        if case.mode == "sum":
            assert same(weight_grad(table, batch, plan[0], random), native.weight_grad(lookup, batch))
        check_row_sums(case, native, table, lookup, batch, plan, argmax, counts, random)
        if fused:
            native.step(lookup=lookup, feature=0, **source(batch, native_argmax))
            table.step(plan[1], table.row_sums(batch, plan, argmax, counts, scale=case.scale))
        else:
            rows, sums = native.row_sums(lookup, batch, native_argmax, (None, None))
            native.step(rows_ptr=rows.ctypes.data, sums_ptr=sums.ctypes.data, num_rows=len(rows))
            table.step(plan[1], scaled(table.row_sums(batch, plan, argmax, counts), case))
        assert same_records(table.records(), native.records(), case.layout)
    native.engine.close()


def counts_of(batch, slots):
    counts = torch.zeros(len(batch.offsets) - 1)
    return counts.index_add_(0, torch.from_numpy(batch.bag_of_position), (slots >= 0).float())


def weight_grad(table, batch, slots, random):
    out = torch.full((len(slots),), NAN, device=table.device)
    middle = int(random.integers(0, len(slots) + 1))
    for begin, end in ((0, middle), (middle, len(slots))):
        hbm.per_sample_weight_grad(
            table.tensor, table.case.layout, slot_of_position=slots, offsets=table.on_device(batch.offsets),
            bag_begin=0, bag_end=table.case.num_bags, position_begin=begin, position_end=end,
            grad=table.on_device(batch.grad), out=out,
        )  # fmt: skip
    return out


def check_row_sums(case, native, table, lookup, batch, plan, argmax, counts, random):
    """Sums of their own, and going on from sums of some of the rows, zeros of either sign among them."""
    native_argmax = None if argmax is None else argmax.cpu()
    rows, sums = native.row_sums(lookup, batch, native_argmax, (None, None))
    unique = plan[1].cpu().numpy()
    assert (rows == IDS[unique]).all()
    assert same(table.row_sums(batch, plan, argmax, counts), torch.from_numpy(sums))
    prior_numbers = np.flatnonzero(random.random(len(IDS)) < 0.5)
    prior = floats(random, (len(prior_numbers), case.dim), max(case.special, 0.1))
    rows, sums = native.row_sums(lookup, batch, native_argmax, (IDS[prior_numbers], prior))
    sum_of_number = np.full(len(IDS), -1)
    sum_of_number[prior_numbers] = np.arange(len(prior_numbers))
    actual = table.row_sums(
        batch, plan, argmax, counts, table.on_device(prior), table.on_device(sum_of_number[unique])
    )
    assert same(actual, torch.from_numpy(sums[np.isin(rows, IDS[unique])]))


def scaled(sums, case):
    return hbm.sum_rows(
        csr=None, positions=None, bag_of_position=None, grad=None, per_sample_weights=None, argmax=None,
        sums=sums, sum_of_unique=None, scale=case.scale, dim=case.dim,
    )  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("start_with", [None, -0.0, 0.0, NAN, 1e30])
def test_fold_adds_in_order(device, start_with):
    for dim in (*range(1, 34), 63, 64, 65, 100, 127, 128, 129, 200, 256, 257):
        check_fold(device, start_with, dim)


def check_fold(device, start_with, dim):
    """Values that cancel, so that every order has its own bits."""
    random = np.random.default_rng(dim)
    lengths = np.array([0, 1, 2, 0, 3, 8, 9, 100, 0])
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    sizes = 10.0 ** random.integers(-3, 4, (60, dim))
    values = (random.standard_normal((60, dim)) * sizes).astype(np.float32)
    values[random.random(values.shape) < 0.2] = -0.0
    values[random.random(60) < 0.2] = -0.0
    indices = random.integers(0, 60, bounds[-1])
    start = None if start_with is None else np.full((len(lengths), dim), start_with, np.float32)
    expected = np.zeros((len(lengths), dim), np.float32) if start is None else start.copy()
    for run in range(len(lengths)):
        for index in indices[bounds[run] : bounds[run + 1]]:
            expected[run] = expected[run] + values[index]
    arguments = (values, bounds, start, indices)
    folded = left_fold(*[None if part is None else torch.from_numpy(part).to(device) for part in arguments])
    assert same(folded, torch.from_numpy(expected))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_every_float32_rounds_as_in_the_native_engine(device, dtype):
    """From rows of zeros a step of SGD stores minus the gradient: all exponents, both signs, subnormals."""
    case = Case(dim=4096, dtype=dtype, mode="sum", num_bags=len(IDS), rule=Rule(lr=1.0))
    random = np.random.default_rng(3)
    native = NativeTable(case, random)
    native.engine.write_rows(native.number, IDS, np.zeros((len(IDS), case.dim), np.float32))
    table = HbmTable(case, native.records(), random, device)
    bits = random.integers(0, 1 << 32, (len(IDS), case.dim), dtype=np.uint32)
    bits[:, :1024] &= 0xFFFFE000  # near what has 16 bits
    bits[:, 1024:1536] |= 0x47000000  # about the largest of float16
    bits[:, 1536:2048] = bits[:, 1536:2048] & 0x8000FFFF | 0x7F7F0000  # and of bfloat16
    gradient = torch.from_numpy(bits.view(np.float32))
    for _ in range(3):
        native.step(rows_ptr=IDS.ctypes.data, sums_ptr=gradient.data_ptr(), num_rows=len(IDS))
        table.step(torch.arange(len(IDS), device=device), gradient.to(device))
        assert same_records(table.records(), native.records(), case.layout)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_every_sixteen_bit_weight_is_loaded_exactly(device, dtype):
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    if dtype is torch.float16:
        expected = bits.view(np.float16).astype(np.float32)
    else:
        expected = (bits.astype(np.uint32) << 16).view(np.float32)
    layout = RecordLayout(dtype=dtype, dim=255, state_floats=1)
    records = torch.zeros((256, layout.stride), dtype=torch.uint8)
    weights_of(records, layout).copy_(torch.from_numpy(bits.view(np.int16)).view(dtype)[:, :255])
    slots = torch.arange(255, -1, -1)
    rows = hbm.load_rows(records.to(device), layout, slots.to(device))
    assert same(rows, torch.from_numpy(expected[::-1, :255].copy()))


class Workload:
    """A lookup and a step of subnormal rows, large enough for several threads; `run` leaves it as it was."""

    def __init__(self, mode, device):
        random = np.random.default_rng(8)
        rule = Rule(Optimizer.PARTIAL_ROWWISE_ADAM, lr=SUBNORMAL, eps=1.0)
        weighted = mode == "sum"
        self.case = Case(
            dim=65, mode=mode, weighted=weighted, num_bags=200, longest=20, pieces=2, rule=rule
        )
        self.records = torch.zeros((3000, self.case.layout.stride), dtype=torch.uint8, device=device)
        tiny = np.float32(2.0**-125) * floats(random, (3000, 65), 0.0)
        weights_of(self.records, self.case.layout).copy_(torch.from_numpy(tiny))
        slots = torch.from_numpy(random.permutation(3000)).to(device)
        self.table = HbmTable.of(self.case, self.records, slots)
        self.batch = Batch(self.case, random)
        self.plan = self.table.plan(self.batch)
        self.rows = torch.arange(3000, device=device)

    def run(self):
        table, batch, plan = self.table, self.batch, self.plan
        table.tensor = self.records.clone()
        out, argmax, counts = table.forward(batch, plan[0], np.random.default_rng(1))
        sums = table.row_sums(batch, plan, argmax, counts, scale=2.0**-126)
        hbm.update_rows(
            table.tensor, self.case.layout, slots=table.slots, rows=self.rows,
            sums=sums[self.rows % len(sums)], **self.case.rule.scalars(), rounding_key=KEY, update_count=1,
        )  # fmt: skip
        dots = weight_grad(table, batch, plan[0], np.random.default_rng(2))
        return [part.cpu().numpy().tobytes() for part in (out, sums, table.tensor, dots)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", MODES)
def test_again_and_with_any_threads_and_flush_denormal_the_same_bits(device, mode):
    workload = Workload(mode, device)
    expected = workload.run()
    for num_threads in (1, 2, 5):
        torch.set_num_threads(num_threads)
        for flush in (False, True):
            torch.set_flush_denormal(flush)
            assert workload.run() == expected
            halved = sys.float_info.min * 0.5
            assert (halved == 0.0) is flush
    assert torch.get_num_threads() == 5
