"""A run of training that may be cut anywhere: it goes on from the last checkpoint, to the same bits at every step.

It has sessions, checkpoints, garbage collection, folds, flushes, restores, a pin, releases. Before and after every
change of the checkpoints it says so in a log outside of the store, so that a test knows which may be the newest.
"""

import contextlib
import ctypes
import json
import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # the first optimizer would import it, in every child

import mtrains
import mtrains.store
from mtrains.errors import MtrainsError, StateError
from mtrains.tiers import checkpoint, fold, layout, log_writer, session
from mtrains.tiers.catalog_records import retained
from mtrains.tiers.commit_points import CommitPoint
from mtrains.tiers.container import LmdbSegmentContainer
from mtrains.tiers.disk_budget import DiskBudget
from mtrains.tiers.gc import GcPolicy
from mtrains.tiers.session import Session
from mtrains.tiers.verify import verify_store

STEPS, EVERY = 28, 4
SESSION_ENDS = (8, 16)
DETOURS = (4, 20)  # after these steps others are trained and dropped again
PIN_AT, RELEASE_AT, UNPIN_AT = 12, 16, 20
CAP = 1 << 30


def make_everything_happen_early():
    """In a small store nothing is collected, folded, or committed ahead."""
    policy = GcPolicy(slack=1)
    log_writer.DEFAULT_POLICY, log_writer.policy_for = policy, lambda room: policy
    log_writer._GATHER_SECONDS = 0.01
    fold._MAX_DELTAS, fold._STEP_PAGES = 2, 1
    checkpoint._COMMIT_BYTES = 1


def tell(passed):
    """Have every store of this process tell its commit points to `passed`."""
    open_session = mtrains.store.open_session
    mtrains.store.open_session = lambda folder, options: open_session(folder, replace(options, passed=passed))


@dataclass(frozen=True)
class Shape:
    num_rows: int
    dim: int
    batch: int
    dram: str


# The steps of the large one write while they run, so that a full disk stops them half way.
SHAPES = {"small": Shape(3000, 8, 400, "32KiB"), "large": Shape(30_000, 32, 3000, "256KiB")}


class Run:
    """The run in `folder`: the store is folder/s, the log folder/acknowledged."""

    def __init__(self, folder, shape="small", ssd=None):
        self.folder, self.shape, self.ssd = Path(folder), SHAPES[shape], ssd
        self.log = os.open(self.folder / "acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.digests = {}
        self.store = None

    def open(self):
        self.store = None
        self.store = mtrains.Store(self.folder / "s", dram=self.shape.dram, ssd=self.ssd, seed=1, keep=2)
        specs = [mtrains.TableSpec(name, self.shape.num_rows, self.shape.dim) for name in "ab"]
        self.bags = mtrains.TieredEmbeddingBagCollection(specs, store=self.store)
        self.optimizer = mtrains.optim.Adagrad(self.bags.parameters(), lr=0.1)

    def newest(self):
        done = self.store.checkpoints()
        return done[-1] if done else None

    def to_the_end(self):
        """Go on from the newest checkpoint, in the open store if one is; return the digest of the last step."""
        digest = None
        while digest is None:
            if self.store is None:
                self.open()
            if self.session():
                digest = self.store.digest()
            self.store.close()
            self.store = None
        return digest

    def forget(self):
        """Close the store, whatever a checkpoint that runs may say."""
        if self.store is not None:
            with contextlib.suppress(MtrainsError):
                self.store.close()
        self.store = None

    def session(self):
        newest = self.newest()
        if newest is not None and newest.tag == "detour":
            self.restore(newest.step)
        at = 0 if self.newest() is None else self.newest().step
        while at < STEPS:
            at += 1
            self.train(at)
            if at % EVERY == 0:
                self.checkpoint(at, at)
                self.others(at)
                if at in SESSION_ENDS:
                    self.train(1000 + at)
                    self.flush()
                    return False
        return True

    def others(self, at):
        if at in DETOURS:
            self.train(2000 + at)
            self.checkpoint("detour", at)
            self.train(3000 + at)
            self.restore(at)
        if at == PIN_AT:
            self.store.hold_epoch()
        if at == RELEASE_AT:
            self.store.release(at)
        if at == UNPIN_AT:
            for held in [c for c in self.store.checkpoints() if c.pinned]:
                self.store.release(held.epoch)

    def train(self, number):
        random = np.random.default_rng(number)
        ids = torch.from_numpy(random.integers(0, self.shape.num_rows, (2 * self.shape.batch,)))
        offsets = torch.arange(0, 2 * self.shape.batch + 1, 2)
        out = self.bags(ids, offsets)
        weights = torch.from_numpy(random.random(out.shape, np.float32))
        self.optimizer.zero_grad()
        (out * weights).sum().backward()
        self.optimizer.step()

    def checkpoint(self, tag, step):
        self.say("begin", tag)
        self.store.checkpoint(tag, step=step)
        self.say("end", tag)
        if self.digests is not None:
            self.digests[f"{tag} {step}"] = self.store.digest()

    def flush(self):
        self.store.flush()

    def say(self, what, tag):
        os.write(self.log, f"{what} {tag}\n".encode())

    def restore(self, tag):
        self.say("begin", tag)
        self.store.restore(tag)
        self.say("end", tag)


def possible_newest(lines):
    """Return the tags that the newest checkpoint may have after these lines of a run's log; "" is none."""
    possible = {""}
    for line in lines:
        kind, tag = line.split()
        possible = possible | {tag} if kind == "begin" else {tag}
    return sorted(possible)


def undisturbed(folder, shape="small"):
    """Run to the end; return what every checkpoint's rows are, and how often each point was passed."""
    passings = dict.fromkeys((point.name for point in CommitPoint), 0)

    def count(point):
        passings[point.name] += 1

    tell(count)
    run = Run(folder, shape)
    return {"final": run.to_the_end(), "digests": run.digests, "passings": passings}


def killed(folder, point, passing, mutation="none"):
    """Run until the process kills itself at one passing of a point, or to the end."""
    MUTATIONS[mutation]()
    left = passing

    def kill(passed):
        nonlocal left
        if passed.name == point:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), 9)

    tell(kill)
    run = Run(folder)
    run.digests = None
    run.to_the_end()
    return None


def recorded(folder, mutation):
    """Run to the end, perhaps with a mistake in the protocol."""
    MUTATIONS[mutation]()
    run = Run(folder)
    run.digests = None
    run.to_the_end()


def recovered(folder, digests, final, possible, oldest=True, go_on=True):
    """Check the store that a cut run left, go on from its newest or oldest checkpoint; return what is wrong.

    possible: tags that the newest may have.
    """
    path = Path(folder) / "s"
    try:
        problems = verify_store(path) if (path / "store.json").exists() else []
        run = Run(folder)
        run.digests = None
        run.open()
        done = run.store.checkpoints()
        tag = str(done[-1].tag) if done else ""
        if tag not in possible:
            problems.append(f"the newest checkpoint is {tag!r}, none of {possible}")
        for one in reversed(done if oldest else done[-1:]):
            if one is not done[-1]:
                run.store.restore(one.tag if one.tag is not None else one.epoch)
            if run.store.digest() != digests[f"{one.tag} {one.step}"]:
                problems.append(f"checkpoint {one.tag!r} of step {one.step} has other rows")
        run.forget()
        if go_on:
            if run.to_the_end() != final:
                problems.append("training went on to other bits")
            problems += verify_store(path)
    except MtrainsError as error:
        return [f"{type(error).__name__}: {error}"]
    return problems


def counted(folder):
    """Run to the end under fault_shim.c; return how often each kind of call was made, and the last digest."""
    shim = ctypes.CDLL(None)
    shim.watch_faults(os.fsencode(Path(folder) / "s"))
    run = Run(folder)
    final = run.to_the_end()
    names = ("open", "write", "sync", "allocate", "truncate", "rename", "mkdir")
    return {"final": final, "calls": {name: shim.count_calls(name.encode()) for name in names}}


def faulted(folder, call, number, times, error, digests, final):
    """Run while calls of one kind fail; reopen, check and go on. error: 0 is a short write.

    Returns: (whether the fault was met, the error that came up or "", what is wrong).
    """
    shim = ctypes.CDLL(None)
    shim.watch_faults(os.fsencode(Path(folder) / "s"))
    assert shim.inject_fault(call.encode(), number, number + times - 1, error) == 0
    run = Run(folder)
    run.digests = None
    problems, first = [], ""
    try:
        if run.to_the_end() != final:
            problems.append("the run ended with other bits")
    except MtrainsError as failure:
        first = f"{type(failure).__name__}: {failure}"
        problems += refusals(run)
    run.forget()
    shim.inject_fault(call.encode(), 1, 0, 0)
    lines = (Path(folder) / "acknowledged").read_text().splitlines()
    problems += recovered(folder, digests, final, possible_newest(lines))
    return shim.count_faults(), first, problems


class Disk:
    """Fills up at one passing of a point: the file system of a folder, or what `ssd=` allows."""

    def __init__(self, run, kind, point, passing):
        self.run, self.kind, self.point, self.left = run, kind, point, passing
        self.ballast = run.folder / "ballast"
        self.budget, self.full = None, False
        session.DiskBudget = self.budget_of

    def passed(self, point):
        if point.name == self.point:
            self.left -= 1
            if self.left == 0:
                self.fill()
        if point is CommitPoint.OPEN_READ and self.full and self.kind == "cap":  # it has set its map's size by now
            self.fill()

    def budget_of(self, cap, files):
        """Return the budget of a session that is opened."""
        self.budget = DiskBudget(cap, files)
        return self.budget

    def fill(self):
        self.full = True
        if self.kind == "cap":
            self.budget.cap_bytes = self.budget.allocated_bytes()
            return
        with open(self.ballast, "wb") as file:
            free = os.statvfs(self.run.folder)
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
            with contextlib.suppress(OSError):  # the last blocks
                while file.write(bytes(4096)):
                    file.flush()

    def make_room(self):
        self.full = False
        if self.kind == "cap":
            self.budget.cap_bytes = CAP
        self.ballast.unlink(missing_ok=True)


def filled(folder, shape, kind, point, passing, remedy, final):
    """Run on a disk that fills up; make room at the first error; go on. Return (errors, what is wrong).

    remedy: "again" repeats what failed, "restore" goes back to the newest checkpoint, "reopen" opens the store again.
    """
    run = Run(folder, shape, ssd=CAP if kind == "cap" else None)
    run.digests = None
    disk = Disk(run, kind, point, passing)
    tell(disk.passed)
    if point == "BEFORE":
        disk.fill()
    errors = []

    def repeating(change):
        def repeat(*arguments):
            try:
                change(*arguments)
            except MtrainsError as error:
                errors.append(f"{type(error).__name__}: {error}")
                disk.make_room()
                run.store.flush()  # StateError if a step was stopped half way
                change(*arguments)

        return repeat

    if remedy == "again":
        run.train, run.checkpoint = repeating(run.train), repeating(run.checkpoint)
        run.restore, run.flush = repeating(run.restore), repeating(run.flush)
    digest = None
    while digest is None and len(errors) < 4:
        try:
            digest = run.to_the_end()
        except MtrainsError as error:
            errors.append(f"{type(error).__name__}: {error}")
            disk.make_room()
            if remedy == "reopen" or run.store is None or not run.store.checkpoints():
                run.forget()
            else:
                run.restore(run.newest().tag)
    disk.make_room()
    run.forget()
    problems = verify_store(run.folder / "s")
    if digest != final:
        problems.append("training went on to other bits")
    return errors, problems


def refusals(run):
    """Return what is wrong with the store after an error of its disk: it can be read, and says what failed first."""
    if run.store is None or run.store._session is None or run.store._session.closed:
        return []
    run.store.digest()
    writer = run.store._session.writer
    if writer.error is None:
        return []
    problems = []
    for change in (lambda: run.store.checkpoint("x"), run.store.flush, lambda: run.store.restore(EVERY)):
        try:
            change()
            problems.append("the store takes changes after a failed write")
        except StateError as refusal:
            if str(writer.error) not in str(refusal):
                problems.append(f"{refusal} does not name {writer.error}")
    return problems


def no_sync():
    LmdbSegmentContainer.sync = lambda self: None


def delete_first():
    commit = Session._commit

    def early(self, draft):
        writer = self.writer
        kept = [c.epoch for c in retained([*self.checkpoints, draft.record], self.options.keep)]
        writer.needed_epochs = lambda: kept
        while writer._delete_due():
            pass
        del writer.needed_epochs
        return commit(self, draft)

    Session._commit = early


def no_folder_sync():
    layout.sync_folder = lambda folder: None


def no_sync_of_description():
    def write(self, description, passed):
        temporary = self.description.with_suffix(".json.tmp")
        temporary.write_text(json.dumps(description))
        os.rename(temporary, self.description)
        layout.sync_folder(self.folder)

    layout.StoreLayout._write_description = write


MUTATIONS = {
    "none": lambda: None,
    "no sync": no_sync,
    "delete first": delete_first,
    "no folder sync": no_folder_sync,
    "no sync of store.json": no_sync_of_description,
}


def prepare():
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    make_everything_happen_early()


CALLS = {call.__name__: call for call in (undisturbed, killed, recorded, recovered, counted, faulted, filled)}


def call(name, arguments):
    """Do one of the calls above; for fork_server.py."""
    prepare()
    return json.dumps(CALLS[name](**arguments))


