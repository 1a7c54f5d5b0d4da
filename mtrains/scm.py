"""What the byte-addressable tier of a store shall be."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from mtrains.devices import DEVICES, EmulatedDevice
from mtrains.units import parse_bytes

__all__ = ["SCM_PROVIDERS", "Scm"]

SCM_PROVIDERS = ("auto", "lmdb", "file", "anonymous")
MIN_SCM_BYTES = 4096  # one page


@dataclass(frozen=True)
class Scm:
    """A byte-addressable tier (SCM): `Store(scm=Scm("8GiB", path="/mnt/pmem0"))`. Its contents are volatile.

    Args:
        capacity: bytes for rows, as a number or "8GiB"; 4,096 at least. Taken as rows need them.
        provider: where the memory comes from. "lmdb": values of a private LMDB environment, on a dax file system
            or tmpfs, else on the disk, which then writes the stores back. "file": one file on a dax file system or
            tmpfs. "anonymous": memory without a file, of one NUMA node if `numa_node` says so (a CXL expander).
            "auto": "anonymous" with a `numa_node`, else "lmdb".
        path: folder of the file; None takes a mounted dax file system, else /dev/shm, whichever has room; "lmdb"
            else takes the store's own folder.
        numa_node: number of the node, for "anonymous" memory.
        emulate: wait as a slower device would: a name of `mtrains.devices.DEVICES` or an EmulatedDevice.
    Raises: ValueError, TypeError.
    """

    capacity: int | str
    provider: str = field(default="auto", kw_only=True)
    path: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    numa_node: int | None = field(default=None, kw_only=True)
    emulate: str | EmulatedDevice | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.capacity_bytes < MIN_SCM_BYTES:
            raise ValueError(
                f"an SCM tier needs a capacity of at least {MIN_SCM_BYTES} bytes, got {self.capacity!r}; "
                "leave scm= out to have none"
            )
        if self.provider not in SCM_PROVIDERS:
            choices = ", ".join(map(repr, SCM_PROVIDERS))
            raise ValueError(f"provider must be one of {choices}, got {self.provider!r}")
        self._check_place()
        if isinstance(self.emulate, str) and self.emulate not in DEVICES:
            raise ValueError(
                f"emulate must be one of {', '.join(map(repr, DEVICES))} or an EmulatedDevice, got {self.emulate!r}"
            )
        if not isinstance(self.emulate, (str, EmulatedDevice, type(None))):
            raise TypeError(f"emulate must be a str or an EmulatedDevice, got {type(self.emulate).__name__}")

    def _check_place(self) -> None:
        if self.path is not None:
            if not isinstance(self.path, (str, os.PathLike)):
                raise TypeError(f"path must be a str or a path, got {type(self.path).__name__}")
            if self.effective_provider == "anonymous":
                raise ValueError("anonymous memory has no path; leave path= out, or name another provider")
        node = self.numa_node
        if node is None:
            return
        if isinstance(node, bool) or not isinstance(node, int):
            raise TypeError(f"numa_node must be an int, got {type(node).__name__}")
        if node < 0:
            raise ValueError(f"numa_node must be >= 0, got {node}")
        if self.effective_provider != "anonymous":
            raise ValueError(
                f"numa_node= is for provider='anonymous', got provider={self.provider!r}; a file lies where "
                "its file system does"
            )

    @property
    def capacity_bytes(self) -> int:
        """The capacity as a number."""
        return parse_bytes(self.capacity)

    @property
    def folder(self) -> Path | None:
        """`path` as a Path."""
        return None if self.path is None else Path(self.path)

    @property
    def effective_provider(self) -> str:
        """ "lmdb", "file" or "anonymous"."""
        if self.provider != "auto":
            return self.provider
        return "lmdb" if self.numa_node is None else "anonymous"

    @property
    def device(self) -> EmulatedDevice | None:
        """The device that is emulated, if one is."""
        return DEVICES[self.emulate] if isinstance(self.emulate, str) else self.emulate
