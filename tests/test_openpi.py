"""openpi's filters: ranges of frames by episode, written as JSON that plain json reads, and read back."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ileed import DemonstrationError
from ileed.formats import read_openpi_filter, write_openpi_filter

RANGES = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=6
)


def frames(ranges) -> set[int]:
    return {frame for start, end in ranges for frame in range(start, end)}


@given(kept=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), RANGES, max_size=4))
def test_the_frames_that_are_written_are_the_frames_that_are_read(tmp_path_factory, kept):
    path = tmp_path_factory.mktemp("openpi") / "filter.json"
    write_openpi_filter(kept, path)
    again = read_openpi_filter(path)
    assert {key: frames(ranges) for key, ranges in again.items()} == {key: frames(each) for key, each in kept.items()}
    for ranges in again.values():
        assert all(end < start for (_, end), (start, _) in pairwise(ranges))  # apart, in order
    assert json.loads(path.read_text()) == {key: [list(each) for each in ranges] for key, ranges in again.items()}


@pytest.mark.parametrize(
    "ranges",
    [3, "ab", [3], [[1]], [[1, 2, 3]], [[2, 2]], [[3, 1]], [[-1, 2]], [[0, 0.5]], None, [["a", "b"]]],
)
def test_what_is_no_range_is_refused_in_one_sentence_when_written_and_when_read(tmp_path, ranges):
    with pytest.raises(DemonstrationError, match=r"a range is \(start, end\)"):
        write_openpi_filter({"lab/episode": ranges}, tmp_path / "filter.json")
    assert not (tmp_path / "filter.json").exists()
    (tmp_path / "filter.json").write_text(json.dumps({"lab/episode": ranges}))
    with pytest.raises(DemonstrationError, match=r"a range is \(start, end\)") as caught:
        read_openpi_filter(tmp_path / "filter.json")
    assert len(str(caught.value).splitlines()) == 1


def test_other_files_and_values_are_refused(tmp_path):
    with pytest.raises(DemonstrationError, match="there is no file"):
        read_openpi_filter(tmp_path / "absent.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(DemonstrationError, match="must hold a JSON object"):
        read_openpi_filter(tmp_path / "list.json")
    with pytest.raises(DemonstrationError, match="keep_ranges is"):
        write_openpi_filter([("a", 1)], tmp_path / "x.json")
    with pytest.raises(DemonstrationError, match="key is 3"):
        write_openpi_filter({3: []}, tmp_path / "x.json")
