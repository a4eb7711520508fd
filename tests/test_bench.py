"""The table of ratios and the figures of scaling are what a record says; what is not installed is named."""

import sys
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
MADE = {
    "torch": "2.0",
    "commit": "abc",
    "date": "2026-01-01T00:00:00",
    "machine": "a machine",
    "device": "cpu",
    "cores": 2,
}


@pytest.fixture
def benchmark_module(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    return import_module


def scaling_record(threads=1):
    def point(size, kind):
        names = ("seconds_per_step", "processor_seconds_per_step", "seconds_before", "processor_seconds_before")
        return {"size": size, "kind": kind, "load": 0.5} | dict.fromkeys(names, size / 1e6)

    sizes = [1, 10, 100, 1_000, 10_000]
    kinds = {"steps": "no observation twice", "people": "repeating observations", "members": "the demo's data"}
    axes = {axis: [point(size, kind) for size in sizes] for axis, kind in kinds.items()}
    grid = [point(count, "a grid of fits") | {"seconds": 8 / count, "times_first": count} for count in (1, 2, 4)]
    settings = {"threads": threads, "restarts": 20, "fits": 4, "shared_steps": 10}
    return {"provenance": MADE, "settings": settings, "name": "scaling-x", "axes": axes | {"processes": grid}}


def cells(text, first):
    return [cell.strip() for cell in next(line for line in text.splitlines() if first in line).strip("|").split("|")]


def test_a_ratio_above_one_says_that_ours_is_faster_by_seconds_and_by_rates(benchmark_module):
    bench = benchmark_module("bench")
    assert bench.Row("x", "w", "s", theirs=6.0, ours=2.0).times == 3
    assert bench.Row("x", "w", "games/s", theirs=6.0, ours=2.0).times == pytest.approx(1 / 3)


def test_the_table_has_every_ratio_the_machine_and_what_is_missing(benchmark_module):
    bench = benchmark_module("bench")
    ways = {
        "ours": {"seconds": 1.0, "processor_seconds": 0.5, "nats_per_action": 0.5},
        "ours, 20 seeds": {"seconds": 4.0, "processor_seconds": 4.0, "nats_per_action": 0.4},
        "imitation": {"seconds": 3.0, "processor_seconds": 2.0, "nats_per_action": 0.6, "version": "1.0.1"},
    }
    cloned = {"settings": {"steps": 10, "batch": 4}, "demonstrations": 100, "ways": ways}
    rows = [row._asdict() | {"times_faster": row.times} for row in bench._cloning(cloned)]
    found = {
        "cloning": {"rows": rows, "left_out": {"d3rlpy": "no environment"}, "load_before": 1.0, "load_after": 2.5},
        "crowd": {"skipped": "there is no .cache/crowdkit"},
        "chess": {"failed": "it broke"},
    }
    about = {"processor": "a processor", "cores": 2, "memory_gib": 7.6, "system": "Linux"}
    text = bench.table({"provenance": MADE, "machine": about, "threads": 1, "comparisons": found})
    assert "a processor, 2 cores, 8 GiB; 1 thread each; load average 1.0 to 2.5" in text
    assert cells(text, "batches of 4 |")[2:] == ["3.00 s", "1.00 s", "3.00", "4.00", "0.6000", "0.5000"]
    assert cells(text, "20 seeds")[2:] == ["60.00 s", "4.00 s", "15", "10", "0.6000", "0.4000"]
    for reason in ("d3rlpy (no environment)", "crowd (there is no .cache/crowdkit)", "chess (it broke)"):
        assert reason in text


def test_a_comparison_without_its_environment_is_skipped_with_what_to_do(benchmark_module, monkeypatch, tmp_path):
    bench = benchmark_module("bench")
    monkeypatch.setattr(bench, "CACHE", tmp_path)
    found = {name: bench.run(one, 1) for name, one in bench.comparisons(1).items() if one.environment}
    assert set(found) == {"robomimic", "crowd"}
    assert "run tests/robomimic_environment.sh" in found["robomimic"]["skipped"]


def test_a_benchmark_that_fails_is_recorded_with_its_last_line(benchmark_module, tmp_path):
    bench, script = benchmark_module("bench"), tmp_path / "breaks.py"
    script.write_text("print('so far')\nraise SystemExit('it broke')\n")
    assert bench.run(bench.Comparison(str(script), (), list), 1) == {"failed": "it broke"}


def test_every_environment_and_script_that_is_named_exists(benchmark_module):
    bench, cloning = benchmark_module("bench"), benchmark_module("cloning")
    environments = [one.environment for one in bench.comparisons(1).values() if one.environment]
    others = [way for way in cloning.WAYS if not way.startswith("ours")]
    for name in [*environments, *others]:
        assert (ROOT / "tests" / f"{name}_environment.sh").exists()
    assert all((ROOT / "benchmarks" / one.script).exists() for one in bench.comparisons(1).values())


def test_the_figure_of_scaling_has_four_panels_and_fits_on_a_page(benchmark_module):
    figure = benchmark_module("scaling_figure")
    svg = ElementTree.fromstring(figure.draw(scaling_record()))
    assert float(svg.get("width")) <= 800
    words = {text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")}
    assert set(figure.HEADINGS.values()) <= words


def test_the_page_shows_processor_seconds_where_one_thread_computed(benchmark_module):
    page = benchmark_module("speed_page")
    record = scaling_record()
    record["axes"]["members"][1]["processor_seconds_per_step"] = 0.5
    assert cells(page.scaling_section(record), "| members | 10 |")[3] == "500.00"
    record = scaling_record(threads=2)
    record["axes"]["members"][1]["processor_seconds_per_step"] = 0.5
    assert cells(page.scaling_section(record), "| members | 10 |")[3] == "0.01"
    del record["axes"]["members"], record["axes"]["steps"], record["axes"]["people"]
    assert cells(page.scaling_section(record), "| 4 |") == ["4", "2.0", "4.00"]
    assert "ms a step" not in page.scaling_section(record)


def test_simulated_people_share_the_steps_and_each_has_some(benchmark_module):
    scaling = benchmark_module("scaling")
    for people in (10, 500):
        data = scaling.simulate(2_000, people, repeats=True)
        assert (len(data), len(set(data.demonstrator.tolist()))) == (2_000, people)


def test_a_machine_whose_speed_drifts_between_rounds_leaves_ratios_of_paces_as_they_are(benchmark_module):
    summaries = benchmark_module("larger_than_memory").pace_summaries
    random = np.random.default_rng(0)
    pace = np.array([2.0, 2.2, 1.9])[:, None] * random.uniform(0.9, 1.1, size=(3, 40))
    drift = np.linspace(1, 2, 40)
    steady, drifting = summaries(pace), summaries(pace * drift)
    for one, other in zip(steady, drifting, strict=True):
        assert other["ratio_to_smallest"] == pytest.approx(one["ratio_to_smallest"])
        assert other["ratio_interval"] == pytest.approx(one["ratio_interval"])
    assert drifting[0]["ratio_interval"] == [1, 1]
    low, high = drifting[1]["ratio_interval"]
    assert low < 1.1 < high
