import dataclasses
import json

from mtrains.cli.render import format_counter, print_json
from mtrains.cli.render_demo import demo_report
from mtrains.cli.render_store import store_report
from mtrains.cli.render_training import training_report
from mtrains.placement.measured import Eviction, Figure, MeasuredPlan, MeasuredTable
from mtrains.train.demo import DemoResult
from mtrains.train.result import TrainResult

TRAINING = TrainResult(
    steps=1234,
    samples=157_952,
    epochs=2,
    loss=0.4512345,
    logloss=None,
    auc=None,
    evaluated_on="training",
    evaluated_samples=0,
    training_loss=0.4512345,
    bad_lines=0,
    resumed_at_step=None,
    samples_per_second=45678.9,
    rows_sha256="0123456789abcdef" * 4,
    io_engine="uring",
    providers={"dram": "anonymous memory"},
    emulated=(),
    tiers={
        "dram": {
            "hits": 1_234_567,
            "new": 8901,
            "fetches": 23_456,
            "evictions": 34_567,
            "used_bytes": 367_552,
        },
        "ssd": {"rows_read": 23_456, "bytes_read": 123_456_789, "bytes_written": 0},
    },
    seconds={"compute": 3.456, "io_wait": 0.5, "write_back": 0.25, "loader": 1.0, "checkpoint": 0.125},
)
HELD_OUT = dataclasses.replace(
    TRAINING,
    loss=0.52,
    logloss=0.52,
    auc=0.7123456,
    evaluated_on="held-out",
    evaluated_samples=16_158,
    bad_lines=3,
    resumed_at_step=1000,
    providers={"hbm": "torch tensor on cpu, emulated", "dram": "anonymous memory"},
    emulated=("hbm",),
)


def test_training_without_held_out_data(golden):
    golden("train.txt", training_report(TRAINING))


def test_training_resumed_with_held_out_data_and_malformed_lines(golden):
    golden("train_holdout.txt", training_report(HELD_OUT))


def test_training_with_a_plan(golden):
    def figure(predicted, measured):
        return Figure(predicted=predicted, measured=measured)

    def table(name, scale, hits):
        return MeasuredTable(
            name=name,
            accesses=figure(300.0 * scale, 301.2 * scale),
            hit_ratios=hits,
            new=figure(1.25, 1.31),
            fetches=figure(40.0 * scale, 42.5 * scale),
            written=figure(39.0 * scale, 41.0 * scale),
        )

    plan = MeasuredPlan(
        steps=1234,
        planned=Eviction(policy="next_use", lookahead=64, depth=2),
        ran=Eviction(policy="lru", lookahead=0, depth=0),
        planned_batch_size=128,
        batch_size=128,
        step_seconds=figure(0.00251, 0.00304),
        hit_ratio=figure(0.81, 0.7951),
        fetches=figure(120.0, 127.5),
        fetched_bytes=figure(32_640.0, 34_680.0),
        evicted_bytes=figure(31_824.0, 33_456.0),
        read_bytes=figure(491_520.0, 500_000.0),
        written_bytes=figure(None, 1_048_560.0),
        tables=(
            table("user", 2, {"dram": figure(0.5, 0.49), "scm": figure(0.35, 0.352)}),
            table("item", 1, {"dram": figure(0.996, 0.9957), "scm": figure(0.0, 0.0)}),
        ),
        warnings=("the plan is of eviction by next_use (lookahead 64, depth 2), this run evicted by lru",),
    )
    golden("train_planned.txt", training_report(dataclasses.replace(TRAINING, plan=plan)))


def demo_result(**changes):
    control = dataclasses.replace(HELD_OUT, tiers={}, rows_sha256=None, io_engine=None, auc=0.7123)
    result = DemoResult(
        touched_bytes=1_470_208,
        dram_bytes=367_552,
        bit_identical=True,
        in_memory=HELD_OUT,
        tiered=HELD_OUT,
        control=control,
    )
    return dataclasses.replace(result, **changes)


def test_demo(golden):
    golden("demo.txt", demo_report(demo_result()))


def test_demo_whose_bits_differ(golden):
    other = dataclasses.replace(HELD_OUT, rows_sha256="f" * 64)
    golden("demo_different.txt", demo_report(demo_result(bit_identical=False, tiered=other)))


def test_counters_are_shown_in_the_unit_of_their_name():
    assert format_counter("bytes_read", 1536) == "1.5 KiB"
    assert format_counter("wait_seconds", 1.256) == "1.26 s"
    assert format_counter("hits", 1234567) == "1,234,567"


def test_json_has_the_documented_keys_and_is_one_line(capsys):
    print_json(HELD_OUT.to_json())
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    value = json.loads(out)
    documented = (
        "steps samples loss logloss auc samples_per_second rows_sha256 io_engine emulated tiers seconds"
    )
    assert set(documented.split()) <= set(value)
    assert set(value["seconds"]) == {"compute", "io_wait", "write_back", "loader", "checkpoint"}


CHECKPOINT = {
    "tag": "step-1",
    "epoch": 7,
    "step": 1,
    "created": 1.7e9,
    "pinned": False,
    "leased": False,
    "extra_bytes": 5000,
}
STORE = {
    "path": "/data/rows",
    "in_use": False,
    "format": 1,
    "uuid": "00112233-4455-6677-8899-aabbccddeeff",
    "seed": 3,
    "tables": [
        {
            "name": "user",
            "num_embeddings": 1_000_000_000,
            "embedding_dim": 64,
            "dtype": "float32",
            "optimizer": "rowwise_adagrad",
            "touched_rows": 1_234_567,
            "row_bytes": 260,
            "touched_bytes": 320_987_420,
        },
        {
            "name": "item",
            "num_embeddings": 10,
            "embedding_dim": 16,
            "dtype": "bfloat16",
            "optimizer": None,
            "touched_rows": 0,
            "row_bytes": 32,
            "touched_bytes": 0,
        },
    ],
    "checkpoints": [
        CHECKPOINT,
        CHECKPOINT
        | {"tag": None, "epoch": 8, "step": None, "created": 1.7e9 + 1, "pinned": True, "extra_bytes": 0},
    ],
    "segments": 400,
    "live_bytes": 330_000_000,
    "held_bytes": 50_000_000,
    "dead_bytes": 39_000_000,
    "disk_bytes": {"rows": 450_000_000, "catalog": 1_000_000, "total": 451_000_000},
}


def test_store(golden):
    golden("inspect.txt", store_report(STORE))


def test_new_store(golden):
    golden("inspect_new.txt", store_report(STORE | {"tables": [], "checkpoints": []}))


def test_store_in_use(golden):
    read = CHECKPOINT | {"leased": True}
    both = CHECKPOINT | {"leased": True, "pinned": True}
    golden("inspect_in_use.txt", store_report(STORE | {"in_use": True, "checkpoints": [read, both]}))
