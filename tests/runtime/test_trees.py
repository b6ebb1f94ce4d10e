"""Static trees: published ones, files, and trees grown by rates."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_edge.models.contract import BadUsage
from spec_edge.runtime import Options, request
from spec_edge.runtime.trees import by_levels, checked, fitting, grown, parents, paths_of

PUBLISHED = [f"vicuna_{size}_stage{n}" for size in ("7b", "13b", "33b") for n in (1, 2)]
PUBLISHED += ["mc_sim_7b_63", "zephyr_stage2", "vicuna_7b_stage1_ablation"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_trees(name: str) -> None:
    """63 different paths of at most 4 ranks below 10, and every first part of the list is a tree."""
    paths = paths_of(name)
    assert len(set(paths)) == 63 and max(map(len, paths)) <= 4 and max(map(max, paths)) == 9
    for n in range(1, 64):
        assert checked(paths[:n], name) == paths[:n]


def test_a_known_tree() -> None:
    paths = paths_of("mc_sim_7b_63")
    assert paths[:6] == ((0,), (0, 0), (1,), (0, 1), (2,), (0, 0, 0))
    assert parents(fitting(paths, 5, 10, 6)) == (-1, -1, -1, 0, 0, 3)


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("0\n0 0\n1\n", ((0,), (0, 0), (1,))),
        ("# mine\n\n0,0\n0\n", ((0,), (0, 0))),
        ("[[0], [1], [1, 3]]", ((0,), (1,), (1, 3))),
        ("\ufeff0\r\n1\r\n", ((0,), (1,))),
    ],
)
def test_a_file_of_paths(tmp_path: Path, text: str, paths: tuple[tuple[int, ...], ...]) -> None:
    (tmp_path / "tree.txt").write_bytes(text.encode())
    assert paths_of(str(tmp_path / "tree.txt")) == paths


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"0 0\n", "has the path [0, 0] but not its beginning [0]"),
        (b"0 " * 199 + b"0", "but not its beginning [0, 0, 0, 0, 0, 0, 0, 0, ...] of 199 ranks"),
        (b"[[" + b"7, " * 199 + b"99]]", "not [7, 7, 7, 7, 7, 7, 7, 7, ...] of 200 ranks"),
        (b"[[" + b"9" * 4000 + b"]]", "ranks between 0 and 63, not [...]"),
        (b"0\n0\n", "different paths"),
        (b"", "between 1 and"),
        (b"[]", "between 1 and"),
        (b"[[0], 3]", "no list of paths"),
        (b"[[0], [true]]", "no list of paths"),
        (b"[[0.5]]", "no list of paths"),
        (b'{"a": 1}', "no list of paths"),
        (b"[[0", "no list of paths"),
        (b"[" * 9000, "no list of paths"),
        (b"[[64]]", "ranks between 0 and 63"),
        (b"[[-1]]", "ranks between 0 and 63"),
        (b"[[]]", "ranks between 0 and 63"),
        (b"one two", "no list of paths"),
        (b"\xff\xfe", "no list of paths"),
        (b"0\n" * (1 << 20), "no list of paths"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "tree").write_bytes(data)
    with pytest.raises(BadUsage) as caught:
        paths_of(str(tmp_path / "tree"))
    assert message in caught.value.message and "\n" not in caught.value.message
    assert len(caught.value.message) < 200 + len(str(tmp_path))


def test_an_unknown_tree_names_the_nearest() -> None:
    with pytest.raises(BadUsage, match="Did you mean 'mc_sim_7b_63'"):
        paths_of("mc_sim_7b_64")


def test_trees_in_options() -> None:
    for value, tree, paths in (
        ("4,2", (4, 2), None),
        ((4, 2), (4, 2), None),
        ("best", (), None),
        (None, None, None),
        ("mc_sim_7b_63", None, paths_of("mc_sim_7b_63")),
        ([(0,), (0, 1), (0, 1, 0), (0, 0)], None, None),
    ):
        told = request.drafting(Options(tree=value))  # type: ignore[arg-type]
        assert told.tree == tree
        if paths is not None:
            assert told.paths == paths
    with pytest.raises(BadUsage, match="but not its beginning"):
        request.drafting(Options(tree=[(0, 1)]))
    with pytest.raises(BadUsage, match=r"a tree of paths needs method .*medusa"):
        request.check(Options(method="draft", tree="mc_sim_7b_63"))
    with pytest.raises(BadUsage, match="tree must be whole numbers"):
        request.check(Options(method="medusa", tree="4,,2"))


def test_levels() -> None:
    assert by_levels((2, 1)) == ((0,), (1,), (0, 0), (1, 0))
    assert len(by_levels((64, 64, 64))) == 1024


RATES = st.lists(
    st.lists(st.floats(0, 1), min_size=1, max_size=4).map(lambda r: sorted(r, reverse=True)), min_size=1, max_size=3
)


@settings(max_examples=60, deadline=None)
@given(RATES, st.integers(0, 40))
def test_a_grown_tree_is_the_likeliest(rates: list[list[float]], nodes: int) -> None:
    """By brute force over all paths; every first part of it is a tree, and it is best first."""
    paths = grown(rates, nodes)
    every = [p for d in range(1, len(rates) + 1) for p in product(*(range(len(r)) for r in rates[:d]))]
    value = {p: float(np.prod([rates[level][rank] for level, rank in enumerate(p)])) for p in every}
    assert len(paths) == min(nodes, len(every)) == len(set(paths))
    if not paths:
        return
    found = [value[p] for p in paths]
    assert found == pytest.approx(sorted(found, reverse=True))
    assert sum(found) == pytest.approx(sum(sorted(value.values(), reverse=True)[: len(paths)]))
    checked(paths, "grown")
    for n in range(1, len(paths) + 1):
        kept = fitting(paths, len(rates), 4, n)
        assert all(-1 <= parent < i for i, parent in enumerate(parents(kept)))
        assert all(kept[p] == path[:-1] for path, p in zip(kept, parents(kept), strict=True) if p >= 0)


def test_fitting_cuts_what_the_heads_do_not_have() -> None:
    paths = paths_of("mc_sim_7b_63")
    assert max(map(len, fitting(paths, 2, 10, 63))) == 2
    assert max(map(max, fitting(paths, 5, 3, 63))) == 2
    assert len(fitting(paths, 5, 10, 7)) == 7 and fitting(paths, 5, 10, 0) == ()
