import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtrains.errors import PlanInfeasibleError
from mtrains.placement.baselines import all_ssd, greedy, size_proportional
from mtrains.placement.cost import Placement, price
from mtrains.placement.planner import plan
from mtrains.placement.problem import Problem
from mtrains.placement.rounding import whole_rows
from mtrains.placement.solve import solve
from mtrains.placement.topology import Cpu
from mtrains.placement.workload import Workload

WORKLOAD = Workload(writer_bytes=0, compute_seconds=1e-4)
SLACK = 2e-3  # 5e-4 for a cheaper placement, whole rows, the search's gap


def problem_of(cases, tables, machine, **changes):
    workload = dataclasses.replace(WORKLOAD, **changes)
    return Problem.build(cases.profile(tables), machine, workload)


@st.composite
def instances(draw, cases, num_tables=3):
    tables = [
        cases.table(
            f"t{number}",
            rows=draw(st.integers(2_000, 20_000)),
            dim=draw(st.sampled_from([4, 16, 64])),
            unique=draw(st.floats(50, 700)),
            new=draw(st.sampled_from([0.0, 10.0])),
            power=draw(st.floats(0.2, 0.95)),
            points=draw(st.integers(2, 6)),
            pages=draw(st.sampled_from([0.2, 1.0])),
        )
        for number in range(draw(st.integers(1, num_tables)))
    ]
    pinned = sum(min(table.num_embeddings, 2.5 * table.curves[0].unique_rows) * (4 * table.embedding_dim + 20)
                 for table in tables)  # fmt: skip
    total = sum(table.num_embeddings * (4 * table.embedding_dim + 20) for table in tables)
    directory = sum(8 * table.num_embeddings + 4096 for table in tables)
    window = sum(64 * 8 * table.curves[0].unique_rows for table in tables)
    machine = cases.machine(
        dram=directory + window + pinned * 1.05 + draw(st.floats(0, 0.5)) * total,
        scm=draw(st.one_of(st.none(), st.floats(0.02, 1.0).map(lambda share: share * total))),
        scm_rate=draw(st.sampled_from([1e7, 1e8, 1e9])),
        iops=draw(st.sampled_from([1e4, 1e5])),
        writes=draw(st.sampled_from([1e7, 1e9])),
        log=6 * total + 1e7,
    )
    return tables, machine


def everyone(problem, steps=4):
    """Every placement on a grid from the pins on, with the tiers that its rows may pass over."""
    per_table = []
    for rows, pinned in zip(problem.rows, problem.pinned_rows, strict=True):
        grid = np.linspace(pinned, rows, steps + 1)
        held = [c for c in itertools.product(grid, repeat=problem.num_tiers) if list(c) == sorted(c)]
        options = []
        for cumulative in held:
            own = np.diff(np.array(cumulative), prepend=0.0)
            options.append((own, own > 0))
        per_table.append(options)
    for combination in itertools.product(*per_table):
        rows = np.stack([own for own, _ in combination])
        passed = np.stack([through for _, through in combination])
        passed[:, 0] = True
        yield Placement(rows, passed)


def fits(problem, placement, cost):
    pinned = (placement.rows[:, 0] >= problem.pinned_rows).all()
    return pinned and (cost.used <= problem.capacity).all() and cost.log_bytes <= problem.topology.log.capacity_bytes


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_no_placement_on_a_grid_beats_the_bound_or_the_plan(cases, data):
    tables, machine = data.draw(instances(cases, num_tables=2))
    problem = problem_of(cases, tables, machine, max_segments=4)
    solved = solve(problem)
    best = min(
        (cost.seconds for one in everyone(problem) if fits(problem, one, cost := price(problem, one))),
        default=np.inf,
    )
    assert solved.bound_seconds <= best * (1 + 1e-6)
    assert solved.price.seconds <= best * 1.02
    assert solved.price.seconds >= solved.bound_seconds * (1 - 1e-6)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_room_is_kept_and_greedy_is_not_faster(cases, data):
    problem = problem_of(cases, *data.draw(instances(cases)))
    solved = solve(problem)
    rows = solved.placement.rows
    assert (rows == np.floor(rows)).all()
    assert (rows >= 0).all()
    assert (rows.sum(axis=1) <= problem.rows).all()
    assert (solved.price.used <= problem.capacity * (1 + 1e-9)).all()
    assert not rows[~solved.placement.passed].any()
    by_greedy = whole_rows(problem, greedy(problem))
    assert (rows[:, 0] >= np.floor(problem.pinned_rows) - 1).all()  # a capacity may cost a whole row
    if (by_greedy.rows[:, 0] >= np.floor(problem.pinned_rows)).all():
        assert solved.price.seconds <= price(problem, by_greedy).seconds
    assert price(problem, solved.placement).seconds == solved.price.seconds


@settings(max_examples=40, deadline=None)
@given(data=st.data(), what=st.sampled_from(["dram", "scm", "iops", "writes", "scm rate", "log"]))
def test_more_of_anything_is_never_slower(cases, data, what):
    tables, machine = data.draw(instances(cases))
    slots, log = machine.slots, machine.log
    factor = data.draw(st.floats(1.01, 4))
    if what in ("dram", "scm"):
        more = machine
        for slot in slots:
            if slot.tier == what:
                more = machine.with_capacity(what, slot.capacity_bytes * factor)
    elif what == "scm rate":
        faster = [
            dataclasses.replace(slot, read_bytes_per_second=slot.read_bytes_per_second * factor)
            if slot.tier == "scm"
            else slot
            for slot in slots
        ]
        more = dataclasses.replace(machine, slots=tuple(faster))
    else:
        field = {"iops": "read_iops", "writes": "write_bytes_per_second", "log": "capacity_bytes"}[what]
        more = dataclasses.replace(machine, log=dataclasses.replace(log, **{field: getattr(log, field) * factor}))
    before, after = (solve(problem_of(cases, tables, one)) for one in (machine, more))
    gap = after.price.seconds / after.bound_seconds - 1
    assert after.bound_seconds <= before.bound_seconds * (1 + 1e-6)
    assert after.price.seconds <= before.price.seconds * (1 + gap + SLACK)


def test_the_same_input_gives_the_same_plan(cases):
    tables = [cases.table(f"t{n}", rows=3000 * (n + 1), power=0.3 + 0.1 * n) for n in range(6)]
    machine = cases.machine(dram=4.5e6, scm=5e5, scm_rate=2e7)
    first, second = (solve(problem_of(cases, tables, machine)) for _ in range(2))
    assert (first.placement.rows == second.placement.rows).all()
    assert first.price.seconds == second.price.seconds


def test_a_slow_scm_is_passed_over_rather_than_making_things_worse(cases):
    tables = [cases.table(f"t{n}", rows=20_000, power=0.3) for n in range(3)]
    without = solve(problem_of(cases, tables, cases.machine(dram=3e6)))
    slow = solve(problem_of(cases, tables, cases.machine(dram=3e6, scm=5e5, scm_rate=1e5)))
    assert slow.price.seconds <= without.price.seconds * (1 + SLACK)
    assert (slow.placement.passed[:, 1]).sum() < 3
    through = price(problem_of(cases, tables, cases.machine(dram=3e6, scm=5e5, scm_rate=1e5)),
                    Placement(slow.placement.rows, np.ones((3, 2), dtype=bool)))  # fmt: skip
    assert through.seconds > 10 * slow.price.seconds


def test_without_a_log_every_touched_row_has_a_slot(cases):
    tables = [cases.table(f"t{n}", rows=5000 + n) for n in range(3)]
    machine = cases.machine(dram=2.1e6, scm=6e5, log=None)
    solved = solve(problem_of(cases, tables, machine))
    assert solved.placement.rows.sum(axis=1).tolist() == [5000, 5001, 5002]


def test_at_depth_0_a_step_waits_for_all_that_it_moves(cases):
    table = cases.table("t")
    curve = dataclasses.replace(table.curves[0], depth=0)
    tables = [dataclasses.replace(table, curves=(curve,))]
    machine = dataclasses.replace(cases.machine(dram=1e6, scm=2e5), cpu=Cpu(cores=2, seconds_per_miss=1e-5))
    solved = solve(problem_of(cases, tables, machine, depth=0))
    seconds = {load.name: load.seconds for load in solved.price.loads}
    reads = max(seconds["log IOPS"], seconds["log reads"])
    waits = seconds["compute"] + seconds["cpu"] + seconds["scm bandwidth"] + reads
    assert solved.price.seconds == pytest.approx(max(waits, seconds["log writes"]))
    writes = cases.machine(dram=1e6, writes=1e6)
    slow = solve(problem_of(cases, tables, writes, depth=0))  # the log's writer works beside it
    assert slow.price.seconds == pytest.approx(max(load.seconds for load in slow.price.loads))
    assert slow.price.binding.name == "log writes"


def test_at_depth_0_each_table_that_fetches_waits_for_a_read(cases):
    table = cases.table("t")
    curve = dataclasses.replace(table.curves[0], depth=0)
    profile = cases.profile([dataclasses.replace(table, name=name, curves=(curve,)) for name in "ab"])
    machine = cases.machine(dram=1.9e6)
    steps = []
    for seconds in (0.0, 1e-3):
        log = dataclasses.replace(machine.log, read_latency_seconds=seconds)
        workload = dataclasses.replace(WORKLOAD, depth=0)
        steps.append(plan(profile, dataclasses.replace(machine, log=log), workload=workload).step_seconds)
    assert steps[1] - steps[0] == pytest.approx(2e-3)


def test_a_target_takes_fewer_bytes_and_is_reached(cases):
    tables = [cases.table(f"t{n}", rows=20_000, power=0.4) for n in range(4)]
    problem = problem_of(cases, tables, cases.machine(dram=6e6))
    fastest = solve(problem)
    slower = solve(problem, fastest.price.seconds * 2)
    assert fastest.price.seconds * 1.9 < slower.price.seconds <= fastest.price.seconds * 2
    assert slower.price.used.sum() < 0.9 * fastest.price.used.sum()
    assert slower.fastest_seconds == pytest.approx(fastest.fastest_seconds, rel=SLACK)


def test_checkpoints_take_write_bandwidth_by_steps_or_by_time(cases):
    tables = [cases.table("t", rows=50_000)]
    machine = cases.machine(dram=4e6, writes=2e6)
    free = solve(problem_of(cases, tables, machine))
    by_steps = solve(problem_of(cases, tables, machine, checkpoint_steps=20))
    assert by_steps.price.seconds > free.price.seconds
    seconds = 20 * by_steps.price.seconds
    by_time = solve(problem_of(cases, tables, machine, checkpoint_seconds=seconds))
    assert by_time.price.seconds == pytest.approx(by_steps.price.seconds, rel=0.01)


def test_plans_beat_equal_shares_where_tables_differ(cases):
    tables = [cases.table(f"t{n}", rows=20_000, unique=50 * 2**n, power=0.25 + 0.12 * n) for n in range(5)]
    problem = problem_of(cases, tables, cases.machine(dram=3.2e6))
    solved = solve(problem)
    by_size = price(problem, size_proportional(problem))
    assert solved.price.seconds < by_size.seconds < price(problem, all_ssd(problem)).seconds
    assert solved.price.misses[:, -1].sum() < by_size.misses[:, -1].sum()


@pytest.mark.parametrize(
    ("machine", "limit"),
    [
        ({"dram": 1e4}, "dram capacity for directory, window, writer"),
        ({"dram": 9e5}, "dram capacity for rows of 3 batches at once"),
        ({"dram": 6e6, "log": 1e6}, "log capacity for all touched rows"),
        ({"dram": 3e6, "scm": 1e5, "log": None}, "capacity of dram + scm for all touched rows"),
    ],
)
def test_what_is_too_small_is_named_with_numbers(cases, machine, limit):
    tables = [cases.table(f"t{n}", rows=20_000) for n in range(4)]
    with pytest.raises(PlanInfeasibleError, match="no placement on made up") as error:
        solve(problem_of(cases, tables, cases.machine(**machine)))
    short = {one.limit: one for one in error.value.shortfalls}
    assert limit in short
    assert short[limit].needed > short[limit].available
    assert short[limit].unit == "B"


def test_a_rate_out_of_reach_names_every_limit_that_breaks(cases):
    tables = [cases.table(f"t{n}", rows=20_000, power=0.5) for n in range(4)]
    problem = problem_of(cases, tables, cases.machine(dram=4e6))
    reached = solve(problem).price
    with pytest.raises(PlanInfeasibleError, match="samples/s are out of reach") as error:
        solve(problem, reached.seconds / 3)
    assert reached.binding.name in {short.limit for short in error.value.shortfalls}
    assert all(short.needed > short.available for short in error.value.shortfalls)
