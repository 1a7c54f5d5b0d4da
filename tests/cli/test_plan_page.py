"""`mtrains plan --html`: one page, whole, in a browser too."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import matplotlib.image
import numpy as np
import pytest

from mtrains.cli import main
from mtrains.placement.topology import LogTier, SlotTier, Topology
from mtrains.placement.topology_file import topology_to_dict
from mtrains.profiler.profile import LocalityCurve, LocalityProfile, TableProfile

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DRAM_BLUE, FETCHED_ORANGE = (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)
SECTIONS = [
    "Where the tables live",
    "The tiers",
    "What limits a step",
    "What if",
    "Against placements without a planner",
    "What a cache of each table misses",
    "Size against bandwidth",
    "What it is made of",
]


def table(name, rows):
    curve = LocalityCurve(
        policy="next_use",
        lookahead=64,
        depth=2,
        batch_size=1000,
        unique_rows=500.0,
        pinned_rows=900.0,
        new_rows=5.0,
        capacity_rows=(rows / 8, rows / 2, float(rows)),
        hits=(200.0, 400.0, 495.0),
        fetches=(295.0, 95.0, 0.0),
        pages_per_fetch=(0.5, 0.5, 0.5),
    )
    return TableProfile(
        name=name,
        num_embeddings=rows,
        embedding_dim=16,
        dtype="float32",
        touched_rows=rows,
        lookups_per_sample=1.0,
        footprint=(),
        curves=(curve,),
    )


MACHINE = Topology(
    name="<small> & quick",
    slots=(
        SlotTier(
            tier="dram",
            device="DDR",
            capacity_bytes=37e6,
            read_bytes_per_second=2e10,
            write_bytes_per_second=1e10,
            source="https://example.org/ddr",
        ),
    ),
    log=LogTier(
        device="SSD", capacity_bytes=1e9, read_iops=5e4, read_bytes_per_second=2e8, write_bytes_per_second=1e8
    ),
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a plan, and the folder that has it."""
    folder = tmp_path_factory.mktemp("page")
    tables = (table("users <b>", 50_000), table("items", 20_000))
    LocalityProfile(tables=tables, samples=1e6, source="made up").save(folder / "profile.json")
    (folder / "machine.json").write_text(json.dumps(topology_to_dict(MACHINE)))
    for name in ("page.html", "again.html"):
        arguments = [str(folder / "profile.json"), "--topology", str(folder / "machine.json"), "--json"]
        assert main(["plan", *arguments, "--html", str(folder / name), "--pictures", str(folder / "pictures")]) == 0
    return folder


class Reader(HTMLParser):
    VOID = ("meta", "link", "br")

    def __init__(self):
        super().__init__()
        self.open, self.titles, self.pictures, self.cells, self.links = [], [], 0, [], []

    def handle_starttag(self, tag, attributes):
        if tag not in self.VOID:
            self.open.append(tag)
        self.pictures += tag == "svg"
        self.links += [value for name, value in attributes if name in ("src", "href", "xlink:href", "data")]

    def handle_startendtag(self, tag, attributes):
        self.links += [value for name, value in attributes if name in ("src", "href", "xlink:href", "data")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.titles.append(data)
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


def test_the_page_is_whole_and_asks_for_nothing_else(page):
    text = (page / "page.html").read_text()
    assert text == (page / "again.html").read_text()  # equal plans, equal pages
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert reader.titles == SECTIONS
    assert reader.pictures == 6
    assert {link for link in reader.links if not link.startswith("#")} == {"data:,"}
    assert not re.search(r"url\((?!#)|@import|<script", text)
    assert "users <b>" in reader.cells  # told, not obeyed
    assert "no room" in reader.cells  # with half the memory
    assert any("dram holds" in cell for cell in reader.cells)


def test_the_pictures_are_files_too(page):
    names = {path.name for path in (page / "pictures").iterdir()}
    assert names == {f"{name}.{kind}" for name in ("tables", "tiers", "limits", "what_if") for kind in ("png", "svg")}
    image = matplotlib.image.imread(page / "pictures" / "tables.png")
    assert share(image, DRAM_BLUE) > 0.01
    assert share(image, FETCHED_ORANGE) > 0.01


def share(image, colour):
    """Return the share of the picture that has nearly this colour."""
    return float((np.abs(image[..., :3] * 255 - np.array(colour)).max(axis=-1) < 6).mean())


def test_a_browser_shows_text_and_pictures(page, tmp_path):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"needs one of {', '.join(BROWSERS)}")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1300,5200",
               f"--user-data-dir={tmp_path / 'user'}"]  # fmt: skip
    url = (page / "page.html").as_uri()
    shot = tmp_path / "shot.png"
    subprocess.run([*command, f"--screenshot={shot}", url], check=True, capture_output=True, timeout=180)
    image = matplotlib.image.imread(shot)
    for colour in (DRAM_BLUE, FETCHED_ORANGE):
        assert share(image, colour) > 0.002
    shown = subprocess.run([*command, "--dump-dom", url], check=True, capture_output=True, text=True, timeout=180)
    reader = Reader()
    reader.feed(shown.stdout)
    assert reader.titles == SECTIONS
    assert reader.pictures == 6


@pytest.mark.parametrize("option", ["--html", "--pictures"])
def test_pictures_without_a_plan_are_a_usage_error(capsys, option):
    assert main(["plan", "--nodes", "tiny", "--target-rate", "1", option, "x"]) == 2
    assert "--html and --pictures show where tables live" in capsys.readouterr().err
