"""What differs between two runs and why, against the same simulated job with and without a cause."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import trace_export
from samples.generators import paddle
from samples.generators.data_parallel import WRITERS, Job, simulate
from samples.generators.pipeline import MS
from trace_export import Run
from trace_export.analysis.compare import compare

SOUND = Job(jitter=0.01)
SLOW = replace(SOUND, slow={(0, 2): 1.4, (1, 2): 1.4})
MANY = Job(replicas=16, microbatches=4, jitter=0.01)
CASES: dict[str, tuple[Job, dict[str, Any], str, dict[str, Any], str]] = {
    "slow-stage": (SOUND, {"slow": {(0, 2): 1.4, (1, 2): 1.4}}, "nsys", {"stage": 2, "ranks": [4, 5]}, "stages"),
    "slow-rank": (MANY, {"slow_ranks": {21: 1.3}}, "table", {"stage": 1, "ranks": [21]}, "ranks"),
    "slow-link": (SOUND, {"links": {(2, 4): 6 * MS}}, "nsys", {"src_rank": 2, "dst_rank": 4}, "transfers"),
    "data-loading": (SOUND, {"loading": {1: 20 * MS}}, "nsys", {"ranks": [1]}, "late"),
}  # fmt: skip
"""A job, what is planted in it, how it is written, the place of the cause, and the level that it is of."""


def written(folder: Path, job: Job, form: str = "nsys") -> Run:
    WRITERS[form](folder, job)
    return trace_export.load(folder, jobs=1).align()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Runs without a cause: of `SOUND` for Nsight Systems, of `MANY` as a table."""
    folder = tmp_path_factory.mktemp("sound")
    jobs = {"nsys": SOUND, "table": MANY}
    return {form: written(folder / form / "a", job, form) for form, job in jobs.items()}


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with a slow stage."""
    return written(tmp_path_factory.mktemp("slow") / "b", SLOW)


@pytest.mark.parametrize("code", CASES)
def test_a_cause_that_only_b_has_is_named_with_its_place_and_gain(
    code: str, sound: dict[str, Run], tmp_path: Path
) -> None:
    without, planted, form, place, level = CASES[code]
    job = replace(without, **planted)
    a, b = sound[form], written(tmp_path / "b", job, form)
    longer = simulate(job).step_ns - simulate(without).step_ns
    result, back = a.compare(b), b.compare(a)

    assert result.levels["difference"].sum() == pytest.approx(longer, abs=2_000)
    step = result.whole.filter(what="step time").row(0, named=True)
    assert step["change"] == pytest.approx(longer / simulate(without).step_ns, rel=0.01)
    most = result.levels.sort(pl.col("difference").abs()).row(-1, named=True)
    assert most["level"] == level
    cause = result.causes.row(0, named=True)
    assert cause["code"] == code
    assert {name: cause[name] for name in place} == place
    assert cause["difference"] == cause["b_gain_ns"] == pytest.approx(longer, rel=0.1)
    assert cause["a_gain_ns"] is None
    (said,) = (sentence for sentence in result.verdict if sentence.code == "cause-changed")
    assert said.text.startswith("Only in b: ")

    keys: dict[str, str | list[str]] = {"whole": "what", "levels": "level", "causes": "code"}
    for table, key in {**keys, "blocks": ["stage", "kind", "chunk"]}.items():
        one, other = getattr(result, table), getattr(back, table)
        assert other.select(key).equals(one.select(key))
        assert other["difference"].to_list() == [None if x is None else -x for x in one["difference"]]
    assert back.causes["a_gain_ns"].to_list() == result.causes["b_gain_ns"].to_list()
    assert [s.text for s in back.verdict if s.code == "cause-changed"] == [said.text]


def test_one_slow_rank_of_many_is_in_the_blocks(sound: dict[str, Run], tmp_path: Path) -> None:
    """Means and medians of its stage hardly change."""
    result = sound["table"].compare(written(tmp_path / "b", replace(MANY, slow_ranks={21: 1.3}), "table"))
    first = result.blocks.row(0, named=True)
    assert (first["stage"], first["kind"], first["b_slowest"]) == (1, "B", 21)
    assert first["b_slowest_ns"] / first["a_slowest_ns"] == pytest.approx(1.3, rel=0.02)
    assert first["change"] < 0.05
    blocks = next(table for table in result.tables() if table.title == "Blocks")
    assert sorted(blocks.flagged) == [0, 1]


def test_a_cause_of_both_has_both_gains(slow: Run, tmp_path: Path) -> None:
    less = replace(SOUND, slow={(0, 2): 1.2, (1, 2): 1.2})
    result = written(tmp_path / "a", less).compare(slow)
    longer = simulate(SLOW).step_ns - simulate(less).step_ns
    assert result.causes["difference"].to_list() == [pytest.approx(longer, rel=0.1)]
    (said,) = (sentence.text for sentence in result.verdict if sentence.code == "cause-changed")
    assert said.startswith("In both: Stage 2 is slow (ranks 4-5, node0)")


def test_a_pause_that_one_run_names_is_held_against_that_of_the_other(sound: dict[str, Run], tmp_path: Path) -> None:
    result = sound["nsys"].compare(written(tmp_path / "b", replace(SOUND, pause=30 * MS)))
    (cause,) = result.causes.rows(named=True)
    assert (cause["code"], cause["difference"]) == ("long-pause", pytest.approx(30 * MS, rel=0.01))
    assert cause["a_gain_ns"] == pytest.approx(SOUND.gap + SOUND.lead, rel=0.1)
    (said,) = (sentence.text for sentence in result.verdict if sentence.code == "cause-changed")
    assert said.startswith("In both: Between the steps all ranks pause")


def test_no_percent_of_what_is_next_to_nothing_in_a(sound: dict[str, Run], tmp_path: Path) -> None:
    late = replace(SOUND, pause=30 * MS)
    result = sound["nsys"].compare(written(tmp_path / "b", late))
    change, next_to_nothing = result.whole["change"].drop_nulls(), result.whole.with_columns(change=pl.lit(468.5))
    assert change.max() < 10
    assert result.tables()[0].frame["change %"].drop_nulls().to_list() == [100 * value for value in change]
    assert not replace(result, whole=next_to_nothing).tables()[0].frame["change %"].count()


def test_a_copy_does_not_differ(tmp_path: Path) -> None:
    job = replace(SLOW, uneven=0.2)
    result = written(tmp_path / "a", job).compare(written(tmp_path / "b", job))
    assert result.causes.height > 0
    for table in (result.whole, result.levels, result.causes, result.blocks):
        assert set(table["difference"].drop_nulls()) == {0.0}
    assert [s.code for s in result.verdict] == ["difference", "levels-changed", "no-cause-changed"]


def test_collectives_that_only_one_side_records_are_no_change(sound: dict[str, Run], tmp_path: Path) -> None:
    """The table of blocks of a run does not have its collectives."""
    run = sound["nsys"]
    run.write(tmp_path / "blocks.csv")
    table = trace_export.load(tmp_path / "blocks.csv")
    hint = "In blocks.csv no collective costs time: if none was recorded there, that time counts as delays."
    for result in (run.compare(table), table.compare(run)):
        (said,) = [each.text for each in result.verdict if each.code == "levels-changed"]
        assert "from collectives" in said
        assert said.endswith(hint)


def test_only_blocks_that_are_alike_are_compared(sound: dict[str, Run], tmp_path: Path) -> None:
    """The backward of 1F1B holds the weight gradient, that of ZB-H1 does not."""
    whole = sound["nsys"]
    result = whole.compare(written(tmp_path / "b", replace(SOUND, schedule="zb-h1")))
    assert result.unlike == ("schedule: 1F1B and ZB-H1", "backwards: whole and split into B and W")
    assert result.verdict[0].code == "unlike"
    assert set(result.blocks["kind"]) == {"F", "OPT"}
    assert json.loads(result.json())["unlike"] == list(result.unlike)
    more = whole.compare(written(tmp_path / "c", replace(SOUND, microbatches=12)))
    assert more.unlike == ("micro-batches: 8 and 12",)
    assert more.blocks.is_empty()
    assert more.levels["difference"].sum() > 0


def test_times_of_the_host_are_called_so_and_not_held_against_those_of_the_device(tmp_path: Path) -> None:
    """Paddle's dynamic-graph records have times of the host, its worker logs of the device."""
    job, (a, b, device) = paddle.Job(2, 4, range(1, 4)), (tmp_path / name for name in ("a", "b", "device"))
    for folder in (a, b):
        paddle.write_records(folder, job)
    paddle.write_logs(device, job)
    one, again, of_device = (trace_export.load(folder, jobs=1).align() for folder in (a, b, device))
    both = one.compare(again)
    assert not both.unlike
    assert both.verdict[0].text.endswith(", in times of the host and not of the device.")
    other = one.compare(of_device)
    assert "times: of the host and of the device" in other.unlike
    assert other.blocks.is_empty()
    assert "times of the host" not in other.verdict[1].text


def test_places_of_other_sizes_are_not_the_same(slow: Run, tmp_path: Path) -> None:
    """Stage 2 of four holds other layers than stage 2 of five."""
    result = slow.compare(written(tmp_path / "a", replace(SLOW, stages=5)))
    assert result.causes["stage"].to_list() == [2, 2]
    assert result.causes.select(pl.col("a_gain_ns", "b_gain_ns").is_null().sum()).row(0) == (1, 1)


def test_a_step_beside_another(tmp_path: Path) -> None:
    """The levels are of the steps that are compared, and add up to their lengths."""
    written(tmp_path / "a", replace(SOUND, steps=4, uneven=0.3))
    result = trace_export.compare(tmp_path / "a", steps_a=0, steps_b=1, jobs=1).comparison
    time = result.whole.filter(pl.col("what") == "step time").row(0, named=True)
    assert time["difference"] != 0
    assert result.levels["difference"].sum() == pytest.approx(time["difference"])
    assert abs(result.levels.filter(pl.col("level") == "work")["difference"].item()) > 0


def test_without_gains_no_cause_is_held_against_the_other_run(slow: Run) -> None:
    figures = slow.baseline().figures
    result = compare(figures, replace(figures, gains=False))
    assert result.causes["difference"].to_list() == [None]
    assert [s.code for s in result.verdict] == ["difference", "levels-changed", "causes-unknown"]
    (table,) = (table.frame for table in result.tables() if table.title == "Causes")
    assert table.row(0) == ("slow stage", "stage 2, ranks 4-5, node0", "yes", "yes")


def test_a_baseline_keeps_levels_and_causes(slow: Run, tmp_path: Path) -> None:
    kept = slow.save_baseline(tmp_path / "kept.json")
    result = trace_export.compare(kept, slow.place, jobs=1).comparison
    assert result.causes["code"].to_list() == ["slow-stage"]
    for table in (result.whole, result.levels, result.causes, result.blocks):
        assert set(table["difference"].drop_nulls()) == {0.0}
