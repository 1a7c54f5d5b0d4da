"""The files of a store, and how they come into being (storage.md, "Crash protocol", open).

STORE/  store.json  lock  catalog.lmdb/  rows.lmdb/  leases/
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb

from mtrains.errors import FormatError, StateError, TierIOError
from mtrains.tiers.catalog_records import StoreState, encode
from mtrains.tiers.commit_points import CommitPoint, PassedPoint, pass_silently
from mtrains.tiers.disk_budget import MIN_CAP_BYTES
from mtrains.tiers.environment import DATA_FILE, close_environment, environment_error, open_environment
from mtrains.tiers.filesystem import FULL_ERRORS, free_bytes, sync_folder
from mtrains.tiers.format_record import FORMAT_KEY, FORMAT_VERSION
from mtrains.tiers.records import Kind, key_of, seal_value

__all__ = ["StoreLayout", "create_catalog"]

_CREATION_MAP_BYTES = 1 << 30
_OWN_NAMES = {"lock", "catalog.lmdb", "rows.lmdb", "scm.lmdb", "leases", "store.json.tmp"}


@dataclass(frozen=True)
class StoreLayout:
    """Paths of one store."""

    folder: Path

    @property
    def description(self) -> Path:
        return self.folder / "store.json"

    @property
    def catalog(self) -> Path:
        return self.folder / "catalog.lmdb"

    @property
    def rows(self) -> Path:
        return self.folder / "rows.lmdb"

    @property
    def leases(self) -> Path:
        return self.folder / "leases"

    @property
    def data_files(self) -> tuple[Path, Path]:
        """The files whose allocated bytes count."""
        return self.rows / DATA_FILE, self.catalog / DATA_FILE

    def make_folder(self) -> None:
        """Make the store's folder if only it is missing. Raises: StateError, TierIOError."""
        if self.folder.exists():
            if not self.folder.is_dir():
                raise StateError(f"{self.folder} is a file; a store is a folder")
            return
        try:
            self.folder.mkdir()
            sync_folder(self.folder.parent)
        except FileNotFoundError:
            raise StateError(f"{self.folder.parent} does not exist; create it first") from None
        except OSError as error:
            raise self._creation_error(error, f"cannot create {self.folder}") from error

    def exists(self) -> bool:
        """Return True if the store was created to the end."""
        return self.description.is_file()

    def require(self) -> str:
        """Return the uuid of a store that is there already. Raises: StateError if there is none, FormatError."""
        if not self.folder.exists():
            raise StateError(f"{self.folder} is not a store: it does not exist")
        if not self.folder.is_dir():
            raise StateError(f"{self.folder} is not a store: it is a file, and a store is a folder")
        if not self.exists():
            raise StateError(
                f"{self.folder} is not a store: it has no store.json, which is written when a store was created to "
                "the end"
            )
        return self.check()

    def create(self, seed: int, passed: PassedPoint = pass_silently) -> None:
        """Create an empty store under its lock; of a creation that a crash ended, remove what is left first.

        Raises: StateError if other files are there, or environments with checkpoints but without store.json.
        """
        strangers = sorted(set(os.listdir(self.folder)) - _OWN_NAMES)
        if strangers:
            raise StateError(
                f"{self.folder} is not a store and not empty (it holds {strangers[0]!r}); name a new folder"
            )
        self._remove_failed_creation()
        passed(CommitPoint.CREATE_BEGUN)
        uuid = secrets.token_hex(16)
        try:
            self.rows.mkdir()
            self.catalog.mkdir()
            environment = open_environment(self.rows, map_size=_CREATION_MAP_BYTES, create=True)
            _commit_and_close(
                environment, {FORMAT_KEY: encode({"rows_format": FORMAT_VERSION, "uuid": uuid})}
            )
            passed(CommitPoint.CREATE_ROWS)
            create_catalog(
                self.catalog, uuid, StoreState(uuid=uuid, seed=seed, incarnation=0, next_checkpoint=1)
            )
            passed(CommitPoint.CREATE_CATALOG)
            for folder in (self.rows, self.catalog, self.folder):
                sync_folder(folder)
            passed(CommitPoint.CREATE_FOLDERS)
            self._write_description({"mtrains_store": FORMAT_VERSION, "uuid": uuid}, passed)
        except OSError as error:
            raise self._creation_error(error, f"cannot create a store in {self.folder}: {error}") from error

    def check(self) -> str:
        """Return the store's uuid. Raises: FormatError if store.json is of another format or damaged."""
        try:
            description = json.loads(self.description.read_bytes())
            version, uuid = description["mtrains_store"], description["uuid"]
        except (ValueError, KeyError, TypeError):
            raise FormatError(f"{self.description} is damaged; restore it from a backup") from None
        except OSError as error:
            raise TierIOError(error.errno, f"cannot read {self.description}") from error
        if version != FORMAT_VERSION:
            raise FormatError(
                f"{self.folder} has store format {version}; this version of mtrains reads format "
                f"{FORMAT_VERSION}"
            )
        return str(uuid)

    def _write_description(self, description: dict[str, Any], passed: PassedPoint) -> None:
        temporary = self.description.with_suffix(".json.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            rest = encode(description) + b"\n"
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        passed(CommitPoint.CREATE_DESCRIBED)
        os.rename(temporary, self.description)
        passed(CommitPoint.CREATE_RENAMED)
        sync_folder(self.folder)
        passed(CommitPoint.CREATE_DONE)

    def _creation_error(self, error: OSError, what: str) -> TierIOError:
        if error.errno in FULL_ERRORS:
            what += f"; a store needs at least {MIN_CAP_BYTES} bytes, {free_bytes(self.folder)} bytes are free: "
            what += "make room and try again"
        return TierIOError(error.errno, what)

    def _remove_failed_creation(self) -> None:
        if holds_checkpoints(self.catalog):
            raise StateError(
                f"{self.folder} has environments with checkpoints but no store.json; restore "
                "store.json from a backup, or "
                "remove the folder"
            )
        for folder in (self.rows, self.catalog, self.leases):
            shutil.rmtree(folder, ignore_errors=True)
        self.description.with_suffix(".json.tmp").unlink(missing_ok=True)


def create_catalog(folder: Path, uuid: str, state: StoreState) -> None:
    """Create an empty catalog in an existing folder, durable but for the folder's own entry."""
    environment = open_environment(folder, map_size=_CREATION_MAP_BYTES, create=True)
    records = {
        key_of(Kind.FORMAT): encode({"catalog_format": FORMAT_VERSION, "uuid": uuid}),
        key_of(Kind.STATE): state.to_bytes(),
    }
    _commit_and_close(environment, records)


def holds_checkpoints(catalog: Path) -> bool:
    """Return True if this is an environment that anything was checkpointed in. One that cannot be read holds
    none."""
    if not (catalog / DATA_FILE).is_file():
        return False
    try:
        environment = open_environment(catalog, map_size=_CREATION_MAP_BYTES, readonly=True)
    except (FormatError, TierIOError):
        return False
    try:
        with environment.begin() as transaction, transaction.cursor() as cursor:
            found = cursor.set_range(key_of(Kind.CHECKPOINT))
            return bool(found) and cursor.key()[0] == Kind.CHECKPOINT
    finally:
        close_environment(environment)


def _commit_and_close(environment: lmdb.Environment, records: dict[bytes, bytes]) -> None:
    try:
        with environment.begin(write=True) as transaction:
            for key, payload in records.items():
                transaction.put(key, seal_value(key, payload))
        environment.sync(True)
    except lmdb.Error as error:
        raise environment_error(error, f"creating {environment.path()}") from error
    finally:
        close_environment(environment)
