import io
from pathlib import Path

import pytest
from rich.console import Console

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def golden():
    """Compare what rich prints with a file of tests/cli/golden; after a wanted change edit it."""

    def check(name, renderable):
        out = io.StringIO()
        Console(file=out, width=100, highlight=False, markup=False, emoji=False).print(renderable)
        text = "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
        assert text == (GOLDEN / name).read_text()

    return check
