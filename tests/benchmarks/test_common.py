"""Figures, tables and pictures of the benchmarks."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from benchmarks.common import plots, report
from benchmarks.common.statistics import geometric_mean, quartile_spread, rank_correlation, ranks
from hypothesis import given
from hypothesis import strategies as st

POSITIVE = st.floats(1e-3, 1e3)


def test_the_geometric_mean_of_a_ratio_and_its_inverse_is_one() -> None:
    assert geometric_mean([4.0, 0.25]) == pytest.approx(1.0)
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


@pytest.mark.parametrize("values", [[], [1.0, 0.0], [-1.0]])
def test_a_geometric_mean_needs_positive_numbers(values: list[float]) -> None:
    with pytest.raises(ValueError, match="expected positive numbers"):
        geometric_mean(values)


def test_equal_values_share_a_rank() -> None:
    assert ranks([30.0, 10.0, 20.0, 10.0]) == [3.0, 0.5, 2.0, 0.5]


@given(st.lists(POSITIVE, min_size=2, max_size=20, unique=True), st.randoms())
def test_ranks_of_distinct_values_are_positions(values: list[float], random: object) -> None:
    assert sorted(ranks(values)) == list(range(len(values)))
    assert rank_correlation(values, [x**3 for x in values]) == pytest.approx(1.0)
    assert rank_correlation(values, [-x for x in values]) == pytest.approx(-1.0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=20))
def test_rank_correlation_does_not_depend_on_order_and_is_symmetric(pairs: list[tuple[int, int]]) -> None:
    a, b = [p[0] for p in pairs], [p[1] for p in pairs]
    correlation = rank_correlation(a, b)
    assert -1.0 - 1e-9 <= correlation <= 1.0 + 1e-9
    assert rank_correlation(b, a) == pytest.approx(correlation)
    assert rank_correlation(a[::-1], b[::-1]) == pytest.approx(correlation)


def test_rank_correlation_of_known_ranks() -> None:
    # 1 - 6 * sum(d^2) / (n (n^2 - 1)) without ties
    assert rank_correlation([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]) == pytest.approx(1 - 6 * 4 / 120)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) == 0.0
    with pytest.raises(ValueError, match="expected as many of both, got 1 and 2"):
        rank_correlation([1], [1, 2])


def test_the_spread_is_between_the_quartiles() -> None:
    assert quartile_spread([1.0]) == 0.0
    assert quartile_spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2.0 / 3.0)


def test_a_table_escapes_bars() -> None:
    assert report.markdown_table(["a", "b"], [["1|2", "3"]]) == "| a | b |\n|---|---|\n| 1\\|2 | 3 |"


def test_a_section_is_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text("head\n<!-- x:begin -->\nold\n<!-- x:end -->\ntail\n")
    report.write_section("x", "new", file)
    assert file.read_text() == "head\n<!-- x:begin -->\nnew\n<!-- x:end -->\ntail\n"
    with pytest.raises(ValueError, match=r"README.md has no markers <!-- y:begin"):
        report.write_section("y", "new", file)


def parsed(picture: str) -> ElementTree.Element:
    return ElementTree.fromstring(picture)


NAMESPACE = "{http://www.w3.org/2000/svg}"


def test_a_cloud_has_a_point_per_pair_inside_its_frame() -> None:
    points = [(float(x), float(y)) for x, y in np.random.default_rng(0).uniform(0.02, 500.0, (40, 2))]
    picture = parsed(plots.scatter("a < b", "x", "y", {"one": points[:30], "two & three": points[30:]}))
    circles = picture.findall(f"{NAMESPACE}circle")
    assert len(circles) == 40
    for c in circles:
        assert plots.LEFT <= float(c.attrib["cx"]) <= plots.WIDTH - plots.RIGHT
        assert plots.TOP <= float(c.attrib["cy"]) <= plots.HEIGHT - plots.BOTTOM
    # larger is further to the right, and higher up
    assert float(circles[0].attrib["cx"]) < float(circles[1].attrib["cx"]) or points[0][0] >= points[1][0]
    with pytest.raises(ValueError, match="expected points with positive coordinates"):
        plots.scatter("t", "x", "y", {"one": [(0.0, 1.0)]})


def test_bars_are_as_long_as_their_values() -> None:
    picture = parsed(plots.bars("t", [("a", "k", 1.0), ("b", "k", 0.5), ("c", "l", 2.0)]))
    widths = [float(r.attrib["width"]) for r in picture.findall(f"{NAMESPACE}rect") if "%" not in r.attrib["width"]]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.2)
    assert widths[2] == pytest.approx(2 * widths[0], abs=0.2)
    with pytest.raises(ValueError, match="expected rows with values of 0 or more"):
        plots.bars("t", [("a", "k", -1.0)])
