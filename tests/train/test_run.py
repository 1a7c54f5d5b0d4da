import dataclasses
import gzip
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mtrains.errors import StateError
from mtrains.store import Store
from mtrains.train.config import OPTIMIZERS, ModelShape, TrainConfig
from mtrains.train.data.errors import DataError
from mtrains.train.data.schema import Feature, Schema
from mtrains.train.demo import demo_config, run_demo, train_control
from mtrains.train.result import Observer
from mtrains.train.run import train

SCHEMA = Schema("click", ("price",), (Feature("user"), Feature("item"), Feature("tags", "^")))
NUM_LINES = 600


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    """A click log with skewed users, items and bags, and four malformed lines."""
    random = np.random.default_rng(1)
    lines = ["click,price,user,item,tags"]
    for i in range(NUM_LINES):
        user, item = random.zipf(1.3, 2) % 500
        tags = "^".join(str(tag) for tag in random.integers(0, 40, random.integers(0, 4)))
        click = int(random.random() < 0.2 + 0.6 * (user % 2))
        lines.append("oops" if i % 150 == 77 else f"{click},{random.random():.3f},{user},{item},{tags}")
    path = tmp_path_factory.mktemp("data") / "clicks.csv.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return str(path)


@pytest.fixture
def config(clicks):
    return TrainConfig(
        data=(clicks,),
        format="csv",
        schema=SCHEMA,
        table_rows=(1000, 1000, 100),
        shape=ModelShape(embedding_dim=8, bottom_mlp=(8,), top_mlp=(8,)),
        optimizer="adagrad",
        lr=0.05,
        batch_size=32,
        epochs=2,
        holdout=0.2,
        on_bad_line="skip",
        seed=3,
        deterministic=True,
    )


def outcome(result):
    return (
        result.steps,
        result.samples,
        result.rows_sha256,
        result.loss,
        result.auc,
        result.training_loss,
        result.bad_lines,
    )


def test_the_bits_do_not_depend_on_what_comes_ahead_which_is_told(config):
    expected = outcome(train(dataclasses.replace(config, dram="64MiB", lookahead=0, depth=0)))
    for lookahead, depth in ((0, 0), (0, 2), (1, 1), (64, 2), (8, 30)):
        result = train(dataclasses.replace(config, dram="12KiB", lookahead=lookahead, depth=depth))
        assert outcome(result) == expected
        facts = result.prefetch
        assert (facts.lookahead, facts.depth) == (lookahead, depth)
        assert (facts.staged_fetches > 0) == (depth > 0)
        assert (facts.demand_fetches > 0) == (depth == 0)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_bits_do_not_depend_on_memory_threads_or_workers(config, optimizer):
    config = dataclasses.replace(config, optimizer=optimizer)
    large = train(dataclasses.replace(config, dram="64MiB", threads=1))
    small = train(dataclasses.replace(config, dram="3KiB", threads=2, workers=2))
    assert outcome(small) == outcome(large)
    assert small.tiers["dram"]["evictions"] > 0
    assert large.tiers["dram"]["evictions"] == 0


def test_counts(config):
    result = train(config)
    # The last 120 of 600 records are held out; 3 of the 4 malformed ones are among the first 480.
    assert (result.samples, result.bad_lines, result.evaluated_samples) == (2 * 477, 3, 119)
    assert result.steps == 2 * 15
    assert result.epochs == 2
    assert result.evaluated_on == "held-out"
    assert result.logloss == pytest.approx(result.loss, rel=1e-5)
    assert 0.5 < result.auc < 1


def test_without_held_out_records_the_loss_is_that_of_the_last_epoch(config):
    result = train(dataclasses.replace(config, holdout=None))
    assert (result.logloss, result.auc, result.evaluated_on) == (None, None, "training")
    assert result.loss == result.training_loss


def test_held_out_files_equal_held_out_records(config, clicks, tmp_path):
    text = gzip.decompress(Path(clicks).read_bytes()).decode().splitlines()
    first, last = tmp_path / "first.csv", tmp_path / "last.csv"
    first.write_text("\n".join(text[:481]))
    last.write_text("\n".join([text[0], *text[481:]]))
    apart = train(dataclasses.replace(config, data=(str(first),), holdout=None, eval_data=(str(last),)))
    assert outcome(apart) == outcome(train(config))
    assert outcome(train(dataclasses.replace(config, holdout=None, holdout_samples=120))) == outcome(apart)


def test_torch_settings_are_put_back(config):
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    threads = torch.get_num_threads()
    train(dataclasses.replace(config, dense_threads=1, max_steps=2))
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()


class StopAt(Observer):
    """Raises after a step, as an interrupt would."""

    def __init__(self, step):
        self.step = step

    def stepped(self, report):
        if report.step == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_run_stopped_again_and_again_ends_in_the_same_bits(config, tmp_path, optimizer):
    config = dataclasses.replace(config, optimizer=optimizer)
    alone = train(config)
    store = dataclasses.replace(
        config, store=str(tmp_path / "store"), checkpoint_every=4, resume=True, dram="3KiB"
    )
    # Before the first checkpoint, right after one, in the second epoch, after the last step of an epoch.
    for step in (3, 4, 15, 16, 22, 30):
        with pytest.raises(KeyboardInterrupt):
            train(store, StopAt(step))
    result = train(store)
    assert outcome(result) == outcome(alone)
    assert result.resumed_at_step == 28
    again = train(store)
    assert outcome(again) == outcome(alone)
    assert again.resumed_at_step == 30


def test_more_epochs_may_follow(config, tmp_path):
    store = dataclasses.replace(config, store=str(tmp_path / "store"), resume=True)
    train(dataclasses.replace(store, epochs=1))
    assert outcome(train(store)) == outcome(train(config))
    part = dataclasses.replace(config, store=str(tmp_path / "part"), resume=True)
    train(dataclasses.replace(part, max_steps=17))
    assert outcome(train(part)) == outcome(train(config))


def test_a_store_with_a_run_is_not_overwritten(config, tmp_path):
    config = dataclasses.replace(config, store=str(tmp_path / "store"), max_steps=1)
    train(config)
    with pytest.raises(StateError, match=r"already holds a training run .*continue it with --resume"):
        train(config)


def test_a_resumed_run_has_the_same_arguments(config, tmp_path):
    config = dataclasses.replace(config, store=str(tmp_path / "store"), max_steps=1)
    train(config)
    changed = dataclasses.replace(config, resume=True, batch_size=64, optimizer="sgd")
    with pytest.raises(StateError, match=r"batch_size was 32, is 64; optimizer was 'adagrad', is 'sgd';"):
        train(changed)


def test_a_store_of_something_else_is_refused(config, tmp_path):
    with Store(tmp_path / "store", seed=3) as store:
        store.checkpoint("mine", extra=b"my own bytes")
    with pytest.raises(StateError, match=r"checkpoint 'mine' of .* holds no readable training state"):
        train(dataclasses.replace(config, store=str(tmp_path / "store"), resume=True))


def test_data_without_samples_is_one_clear_error(config, tmp_path):
    path = tmp_path / "none.csv"
    path.write_text("click,price,user,item,tags\noops\n")
    config = dataclasses.replace(config, data=(str(path),), holdout=None)
    with pytest.raises(DataError, match=r"no samples in .*none\.csv"):
        train(config)


KILLED = """
import dataclasses, os, pickle, signal, sys
from mtrains.train.result import Observer
from mtrains.train.run import train

class Kill(Observer):
    def stepped(self, report):
        if report.step == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

train(pickle.load(open(sys.argv[1], "rb")), Kill())
"""


def test_a_killed_run_resumes_to_the_same_bits(config, tmp_path):
    alone = train(config)
    store = dataclasses.replace(
        config, store=str(tmp_path / "store"), checkpoint_every=3, resume=True, dram="3KiB", workers=1
    )
    (tmp_path / "config").write_bytes(pickle.dumps(store))
    for step in (5, 13, 20):
        arguments = [sys.executable, "-c", KILLED, str(tmp_path / "config"), str(step)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        # No pipes: the worker lives on for some seconds, and the next run must start beside it.
        done = subprocess.run(arguments, env=environment, check=False)
        assert done.returncode == -signal.SIGKILL
    result = train(store)
    assert result.resumed_at_step in (15, 18)  # the checkpoint of step 18 was being written
    assert outcome(result) == outcome(alone)


def test_the_control_starts_from_the_same_rows_and_ends_close(config):
    config = dataclasses.replace(config, max_steps=5)
    control, tiered = train_control(config, Observer()), train(config)
    assert control.loss == pytest.approx(tiered.loss, rel=1e-4)
    assert control.rows_sha256 is None


def test_the_demo_shows_what_it_claims():
    result = run_demo(epochs=1)
    assert result.bit_identical
    assert result.dram_bytes <= result.touched_bytes / 4
    assert result.in_memory.auc == result.tiered.auc
    assert result.tiered.auc == pytest.approx(result.control.auc, abs=0.002)
    assert result.tiered.tiers["dram"]["evictions"] > 0
    assert result.in_memory.tiers["dram"]["evictions"] == 0


def test_flights_train_to_the_auc_of_the_control(shared_data):
    config = dataclasses.replace(
        demo_config(str(shared_data / "nycflights13_ctr.tsv.xz"), epochs=1), batch_size=1024, dram="1MiB"
    )
    tiered, control = train(config), train_control(config, Observer())
    assert tiered.auc == pytest.approx(control.auc, abs=0.002)
    assert tiered.auc > 0.55
