"""What the tests of imports and exports share."""

import re
from pathlib import Path

import pytest


@pytest.fixture
def anonymous_bytes():
    """Measure the anonymous memory of this process: what is not backed by a file, mapped or cached."""

    def measure():
        status = Path("/proc/self/status").read_text()
        return int(re.search(r"RssAnon:\s+(\d+) kB", status).group(1)) * 1024

    return measure
