"""The disk fills up at any stage of a run: one error that says so, and the same bits after room was made.

On a small file system where one can be mounted, and by `ssd=` everywhere. `--full` tries more moments and all remedies.
"""

import shutil
import subprocess

import pytest

MIB = 1 << 20
STAGES = [
    "BEFORE",
    "CREATE_ROWS",
    "CREATE_FOLDERS",
    "CREATE_DONE",
    "OPEN_READ",
    "OPEN_LOADED",
    "APPEND_SEALED",
    "APPEND_PUBLISHED",
    "DELETE_CHOSEN",
    "GC_EVACUATED",
    "CHECKPOINT_BEGUN",
    "CHECKPOINT_SWEPT",
    "CHECKPOINT_WRITTEN",
    "CATALOG_STAGED",
    "CHECKPOINT_FINISHED",
    "FOLD_COMMITTED",
    "RESTORE_BEGUN",
    "RESTORE_COMMITTED",
    "MARKS_CHANGED",
    "CLOSE_BEGUN",
]
REMEDIES = ["again", "restore", "reopen"]


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory):
    """A file system of 256 MiB, emptied by each test that uses it."""
    folder = tmp_path_factory.mktemp("disk")
    image, disk = folder / "image", folder / "mounted"
    disk.mkdir()
    with open(image, "wb") as file:
        file.truncate(256 * MIB)
    for command in (["mkfs.ext4", "-q", "-m", "0", image], ["mount", "-o", "loop", image, disk]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            pytest.skip(f"no small file system can be made here: {error}")
        if done.returncode != 0:
            pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)
    image.unlink()


def check(server, reference, folder, kind, stage, passing, remedy, shape="small"):
    """Run on a disk that fills up at a stage; return the errors that came up."""
    errors, problems = server.result(
        "filled",
        folder,
        shape=shape,
        kind=kind,
        point=stage,
        passing=passing,
        remedy=remedy,
        final=reference["final"],
    )
    print(kind, stage, passing, remedy, errors)
    assert problems == [], errors
    return errors


@pytest.mark.parametrize("stage", STAGES)
def test_training_goes_on_after_a_full_disk(stage, fork_server, reference, small_disk, full):
    total = reference["passings"].get(stage, 1)
    for passing in sorted({1, (total + 1) // 2, total}) if full else [(total + 1) // 2]:
        for remedy in REMEDIES if full else [REMEDIES[STAGES.index(stage) % 3]]:
            folder = small_disk / "run"
            folder.mkdir()
            try:
                errors = check(fork_server, reference, folder, "disk", stage, passing, remedy)
            finally:
                shutil.rmtree(folder)
            assert len(errors) <= 2
            if errors:
                assert "TierIOError" in errors[0]
                assert "bytes are free" in errors[0]
                assert str(folder) in errors[0]


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage != "BEFORE" and "CREATE" not in stage])
def test_training_goes_on_after_the_cap_was_met(stage, fork_server, reference, memory_folder, full):
    total = reference["passings"][stage]
    for passing in sorted({1, (total + 1) // 2, total}) if full else [(total + 1) // 2]:
        for remedy in REMEDIES if full else [REMEDIES[STAGES.index(stage) % 3]]:
            folder = memory_folder / f"{passing}-{remedy}"
            folder.mkdir()
            errors = check(fork_server, reference, folder, "cap", stage, passing, remedy)
            assert len(errors) <= 2
            if errors:
                assert "ssd=" in errors[0]
                assert str(folder) in errors[0]


@pytest.fixture(scope="module")
def large_reference(fork_server, tmp_path_factory):
    return fork_server.result("undisturbed", tmp_path_factory.mktemp("large"), shape="large")


@pytest.mark.parametrize("remedy", REMEDIES)
def test_a_step_that_a_full_disk_stops_can_be_undone(remedy, fork_server, large_reference, memory_folder, full):
    total = large_reference["passings"]["APPEND_PUBLISHED"]
    stopped = 0
    for passing in range(1, total, max(1, total // (24 if full else 2))):
        folder = memory_folder / f"{passing}"
        folder.mkdir()
        errors = check(
            fork_server, large_reference, folder, "cap", "APPEND_PUBLISHED", passing, remedy, shape="large"
        )
        stopped += any("half way" in error for error in errors)
        shutil.rmtree(folder)
    assert stopped > 0
