import json
import os

import pytest

from mtrains.errors import FormatError, StateError
from mtrains.tiers import filesystem
from mtrains.tiers.layout import StoreLayout


def test_create_and_check(tmp_path):
    layout = StoreLayout(tmp_path / "s")
    layout.make_folder()
    assert not layout.exists()
    layout.create(seed=5)
    assert layout.exists()
    assert layout.check() == json.loads(layout.description.read_text())["uuid"]


def test_a_file_or_a_missing_parent_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="is a file"):
        StoreLayout(tmp_path / "file").make_folder()
    with pytest.raises(StateError, match="does not exist"):
        StoreLayout(tmp_path / "no" / "store").make_folder()


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(StateError, match=r"thesis\.txt"):
        StoreLayout(tmp_path).create(seed=5)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("left", ["rows.lmdb", "catalog.lmdb", "store.json.tmp"])
def test_what_a_failed_creation_left_is_removed(tmp_path, left):
    layout = StoreLayout(tmp_path)
    layout.create(seed=5)
    layout.description.unlink()
    if left == "store.json.tmp":
        (tmp_path / left).write_text("{")
    else:
        (tmp_path / left / "data.mdb").write_bytes(b"torn")
    layout.create(seed=6)
    assert layout.check()


def test_another_format_version_is_refused(tmp_path):
    layout = StoreLayout(tmp_path)
    layout.create(seed=5)
    layout.description.write_text(json.dumps({"mtrains_store": 99, "uuid": "x"}))
    with pytest.raises(FormatError, match="format 99"):
        layout.check()
    layout.description.write_text("{")
    with pytest.raises(FormatError, match="damaged"):
        layout.check()


@pytest.mark.parametrize("magic", sorted(filesystem._REFUSED))
def test_network_and_fuse_file_systems_are_refused_by_name(tmp_path, monkeypatch, magic):
    monkeypatch.setattr(filesystem, "file_system_magic", lambda folder: magic)
    with pytest.raises(StateError, match=filesystem._REFUSED[magic].split()[0]):
        filesystem.check_file_system(tmp_path)


def test_copy_on_write_file_systems_warn(tmp_path, monkeypatch):
    monkeypatch.setattr(filesystem, "file_system_magic", lambda folder: 0x9123683E)
    with pytest.warns(UserWarning, match="btrfs"):
        filesystem.check_file_system(tmp_path)


def test_the_file_system_of_the_tests_is_known(tmp_path):
    assert filesystem.file_system_magic(tmp_path) not in filesystem._REFUSED


def test_a_short_write_of_the_description_is_taken_up(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[: max(1, len(data) // 2)]))
    layout = StoreLayout(tmp_path)
    layout.create(seed=1)
    monkeypatch.undo()
    assert len(layout.check()) == 32
