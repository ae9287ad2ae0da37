"""A profile as table, data and page: everything is there, names of models can't break anything."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from tilewright.cost.roofline import RooflineBound
from tilewright.driver.diagnostics.profile import Entry, Profile
from tilewright.machine.shipped import machine_named, shipped_machines
from tilewright.measure.profiling import ThreadTimes
from tilewright.report import profile as report
from tilewright.report.profile_timeline import MAIN_MEMORY, NEAREST_CACHE, OTHER, colour

NAME = 'conv <1> & "two"\x1b[31m\n\x00'
HTML = "{http://www.w3.org/1999/xhtml}"


def made(machine: str = "zen4") -> Profile:
    """Four entries of a call of 100 us, one after the other."""
    described = machine_named(machine)
    near, *_, far = [x.name for x in described.levels[1:]]
    compute = RooflineBound(10.0, "compute", 10.0, ((near, 2.0), (far, 0.0)), 1e5)
    limits = [compute, RooflineBound(6.0, near, 0.0, ((near, 6.0), (far, 1.0)), 2e5)]
    threads = (ThreadTimes(1.0, 37.0, 2.0, 6.0, 43.0), ThreadTimes(4.5, 35.0, 0.5, 9.5, 44.5))
    entries = (
        Entry("k0_conv", "kernel", NAME, 0, 5.0, 40.0, 0.4, 1, threads, 2.56e6, limits[0]),
        Entry("k1_relu", "kernel", "relu (Relu)", 0, 45.0, 10.0, 0.1, 0, (), 0.0, limits[1]),
        Entry("fallback", "fallback", "det (Det)", 1, 60.0, 25.0, 0.25, 0, (), None, None),
        Entry("copy", "copy", "output 'y'", 2, 90.0, 5.0, 0.05, 0, (), None, replace(limits[1], us=7.0)),
    )
    return Profile(
        "net <x>", {"in put": (2, 3)}, {"batch": 2}, 2, 40, 100.0, 104.0, entries, described, "shipped", 0.01
    )


def test_the_table() -> None:
    rows = report.rows(report.slowest(made()))
    assert all(len(row) == len(report.HEADER) for row in rows)
    assert [row[1] for row in rows] == ["40.0", "25.0", "10.0", "5.0"]
    assert rows[0] == ('conv <1> & "two"?[31m??', "40.0", "40.0%", "64.0", "10.0", "25%", "compute", "4.5", "2.0")
    assert rows[1] == ("det (Det) on the reference evaluator", "25.0", "25.0%", "-", "-", "-", "-", "-", "-")
    assert rows[2][-2:] == ("-", "-")


def test_long_names_are_cut_for_terminals_only() -> None:
    long = replace(made().entries[0], nodes="n" * 300)
    (row,) = report.rows([long])
    assert len(row[0]) == 300
    assert len(report.shortened(row)[0]) == report.MAX_NAME_LENGTH


def test_the_summary_adds_up() -> None:
    text = "\n".join(report.summary(made()))
    assert "100.0 us a call, 2 threads, batch=2" in text
    assert "fastest quarter of 40 calls, whose median is 104.0 us" in text
    assert "2 kernels, 2 other steps: 80.0 us; outside of them 20.0 us (20.0%)" in text
    assert "the clock readings cost +1.00% of a call" in text
    assert "walked" not in text
    assert "the runtime walked the steps here" in "\n".join(report.summary(replace(made(), is_walked=True)))


def test_data() -> None:
    fields = json.loads(json.dumps(report.data(made())))
    assert {"format", "version", "model", "inputs", "sizes", "threads", "calls", "call_us", "median_us", "sum_us",
            "outside_us", "overhead", "is_walked", "machine", "entries"} == set(fields)  # fmt: skip
    assert fields["sum_us"] == sum(e["us"] for e in fields["entries"]) == 80.0
    assert fields["outside_us"] == 20.0
    first = fields["entries"][0]
    assert {"name", "kind", "nodes", "step", "begin_us", "us", "share", "regions", "flops", "limit", "threads"} == set(
        first
    )
    assert first["nodes"] == NAME  # as it is in the model
    assert first["limit"]["by"] == "compute"
    assert first["threads"][1] == {"start_us": 4.5, "busy_us": 35.0, "wait_us": 0.5, "first_us": 9.5, "last_us": 44.5}
    assert fields["entries"][2]["limit"] is None


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("machine", sorted(n for n in shipped_machines() if machine_named(n).gpu is None))
def test_the_page_is_well_formed_and_stands_alone(machine: str) -> None:
    page = report.html(made(machine))
    root = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>"))
    tags = _Tags()
    tags.feed(page)
    tags.close()
    assert tags.open == []
    assert not tags.seen & {"script", "link", "img", "iframe"}
    assert not re.search(r"(src|href)=|@import|url\(", page)
    rows = root.findall(f".//{HTML}tbody/{HTML}tr")
    assert [r.attrib["class"] for r in rows] == ["kernel", "fallback", "kernel", "copy"]
    assert "".join(rows[0][0].itertext()) == 'conv <1> & "two"?[31m?? k0_conv'
    assert root.find(f".//{HTML}h1").text == "net <x>: where 0.100 ms go"
    assert "\x1b" not in page


def test_every_entry_and_every_thread_is_drawn_in_its_place() -> None:
    root = ElementTree.fromstring(report.html(made()).removeprefix("<!DOCTYPE html>"))
    picture, roofline = root.findall(".//{http://www.w3.org/2000/svg}svg")
    boxes = [r for r in picture if r.find("{http://www.w3.org/2000/svg}title") is not None]
    assert len(boxes) == 4 + 2 * 2
    lanes = sorted({float(b.attrib["y"]) for b in boxes})
    calls = [b for b in boxes if float(b.attrib["y"]) == lanes[0]]
    left, right = 70, 1130
    for box, e in zip(calls, made().entries, strict=True):
        assert float(box.attrib["x"]) == pytest.approx(left + e.begin / 100 * (right - left), abs=0.01)
        assert float(box.attrib["width"]) == pytest.approx(e.us / 100 * (right - left), abs=0.01)
    assert len(roofline.findall("{http://www.w3.org/2000/svg}circle")) == 1  # the others compute nothing


def test_colours_show_the_limiting_resource() -> None:
    kernel = made().entries[1]
    assert colour(kernel) == NEAREST_CACHE
    assert kernel.limit is not None
    last = kernel.limit.memory_us[-1][0]
    assert colour(replace(kernel, limit=replace(kernel.limit, by=last))) == MAIN_MEMORY
    assert colour(made().entries[3]) == OTHER


def test_a_call_without_kernels_has_a_page() -> None:
    empty = replace(made(), entries=(), call_us=0.0, sizes={}, overhead=None)
    ElementTree.fromstring(report.html(empty).removeprefix("<!DOCTYPE html>"))
    assert report.rows([]) == []
