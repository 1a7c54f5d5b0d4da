"""Files and folders that are there complete or not at all."""

import errno
import os

import pytest

from mtrains.errors import StateError, TierIOError
from mtrains.transfer.new_file import check_room, new_file, new_folder


def test_a_file_takes_its_name_at_the_end(tmp_path):
    target = tmp_path / "rows"
    target.write_bytes(b"old")
    with new_file(target, 5) as file:
        file.write_at(3, memoryview(b"45"))
        file.write_at(0, memoryview(b"123"))
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"12345"
    assert os.listdir(tmp_path) == ["rows"]
    assert target.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_short_writes_are_continued(tmp_path, monkeypatch):
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: write(fd, data[:3], offset))
    with new_file(tmp_path / "rows", 10) as file:
        file.write_at(0, memoryview(b"0123456789"))
    assert (tmp_path / "rows").read_bytes() == b"0123456789"


@pytest.mark.parametrize("call", ["pwrite", "fsync", "posix_fallocate", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_after_a_failed_call_nothing_is_left_and_the_old_file_stays(tmp_path, monkeypatch, call, code):
    def fail(*_):
        raise OSError(code, os.strerror(code))

    target = tmp_path / "rows"
    target.write_bytes(b"old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(TierIOError, match=r"cannot write .*rows, nothing of it is left") as caught:
        write_twelve(target)
    assert caught.value.errno == code
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["rows"]


def write_twelve(target):
    with new_file(target, 12) as file:
        file.write_at(0, memoryview(b"123456789012"))


@pytest.mark.parametrize("error", [ValueError("stop"), KeyboardInterrupt()])
def test_errors_of_others_pass_and_leave_nothing(tmp_path, error):
    def write():
        with new_file(tmp_path / "rows", 3):
            raise error

    with pytest.raises(type(error)):
        write()
    assert os.listdir(tmp_path) == []


def test_a_folder_that_does_not_exist_is_one_line(tmp_path):
    with pytest.raises(TierIOError, match=r"cannot write .*No such file or directory"):
        write_twelve(tmp_path / "none" / "rows")


def test_a_folder_takes_its_name_at_the_end_and_no_other(tmp_path):
    target = tmp_path / "tables"
    with new_folder(target) as folder:
        (folder / "a").write_bytes(b"1")
        assert not target.exists()
    assert os.listdir(tmp_path) == ["tables"]
    assert os.listdir(target) == ["a"]
    with pytest.raises(StateError, match="is there already"), new_folder(target):
        pass
    (target / "a").unlink()

    def fail():
        with new_folder(target) as folder:
            (folder / "b").write_bytes(b"1")
            raise OSError(errno.EIO, "broken")

    with pytest.raises(TierIOError, match="nothing of it is left"):
        fail()
    assert os.listdir(tmp_path) == ["tables"]
    with new_folder(target) as folder:  # an empty one may take its place
        (folder / "c").write_bytes(b"1")
    assert os.listdir(target) == ["c"]


def test_too_little_room_is_told_with_both_numbers_before_anything_is_written(tmp_path):
    with pytest.raises(TierIOError, match=rf"would take {10**18} bytes .* are free there") as caught:
        check_room(tmp_path / "rows", 10**18)
    assert caught.value.errno == errno.ENOSPC
    check_room(tmp_path / "rows", 1)
