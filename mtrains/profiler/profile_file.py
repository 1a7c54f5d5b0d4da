"""Profiles on disk: one JSON object, gzipped where the name ends in .gz."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtrains.errors import FormatError

__all__ = ["read_profile_file", "write_profile_file"]


def read_profile_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the object. Raises: FormatError if it is none, OSError."""
    content = Path(path).read_bytes()
    try:
        value = json.loads(gzip.decompress(content) if Path(path).suffix == ".gz" else content)
    except (ValueError, EOFError, gzip.BadGzipFile) as error:
        raise FormatError(f"{os.fspath(path)} is not a JSON file of mtrains: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{os.fspath(path)} holds no JSON object")
    return value


def write_profile_file(path: str | os.PathLike[str], value: Mapping[str, Any]) -> None:
    """Write the object: whole, or the file that was there stays."""
    final = Path(path)
    content = json.dumps(value, allow_nan=False).encode()
    if final.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    partial = final.with_name(final.name + ".tmp")
    partial.write_bytes(content)
    partial.replace(final)
