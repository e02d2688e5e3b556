"""The verdict: a planted cause is what it begins with, named by its place, with what fixing it gives."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from tests.support.profiles import concluded
from tests.support.reports import report_of
from trace_export.analysis import cause_words, markdown
from trace_export.analysis.report import Report
from trace_export.answer import Sentence
from trace_export.model import HOSTS, RANKS, SPANS, Declared, Profile, conform
from trace_export.pipeline import missing_ranks
from trace_export.pipeline.completeness import mark_whole_steps
from trace_export.schedules.schedule import Schedule, schedule
from trace_export.schedules.simulate import Costs, Times, as_profile, durations, start_and_end
from trace_export.selection import Numbers
from trace_export.units import duration
from trace_export.writers import html

MS = 1_000_000
STAGES, MICROBATCHES, STEPS = 4, 8, 3
TRANSFER = 2 * MS


def even(s: Schedule) -> Times:
    return durations(s, Costs(10 * MS, 20 * MS))


def stage_of(s: Schedule) -> np.ndarray:
    return s.ops["stage"].to_numpy()


def one(times: Times | None = None, transfer: float | Times = TRANSFER, late: Times | None = None) -> pl.DataFrame:
    """The blocks of a step of 1F1B; `late`: how long after its input is there each block starts."""
    s = schedule("1f1b", STAGES, MICROBATCHES)
    late = np.zeros(len(s.ops)) if late is None else late
    start, end = start_and_end(s, (even(s) if times is None else times) + late, transfer)
    return as_profile(s, start + late, end).spans


def run(replicas: list[pl.DataFrame], optimizer: dict[int, int] | None = None, by_stage: bool = False) -> Profile:
    """Some steps of data-parallel replicas, rank = stage + stages · replica, with an optimizer of 5 ms (or as long as
    the given ranks take). A host for each stage or for each replica."""
    blocks = pl.concat([spans.with_columns(pl.col("rank") + STAGES * n) for n, spans in enumerate(replicas)])
    end = int(blocks["end_ns"].max())  # type: ignore[arg-type]
    ranks = STAGES * len(replicas)
    lengths = [(optimizer or {}).get(rank, 5 * MS) for rank in range(ranks)]
    opt = pl.DataFrame({"rank": range(ranks), "run": 0, "step": 0, "kind": "OPT", "start_ns": end})
    opt = opt.with_columns(end_ns=end + pl.Series(lengths), origin=pl.lit("model"))
    step = pl.concat([blocks, conform(opt, SPANS)])
    length = end + max(lengths) + 2 * MS
    spans = pl.concat(
        step.with_columns(pl.col("start_ns", "end_ns") + n * length, step=pl.lit(n, pl.Int32)) for n in range(STEPS)
    )
    host = pl.col("stage" if by_stage else "dp")
    table = pl.DataFrame({"rank": range(ranks)}).with_columns(
        stage=pl.col("rank") % STAGES, dp=pl.col("rank") // STAGES
    )
    table = table.with_columns(host=pl.format("node{}", host), stage_origin=pl.lit("recorded"))
    hosts = table.select("host", machine=host, label="host").unique("host")
    made = Profile(hosts=conform(hosts, HOSTS), ranks=conform(table, RANKS), spans=spans)
    return mark_whole_steps(concluded(replace(made, declared=Declared(pp=STAGES))), one_clock=True, all_ranks=True)


def saved(times: Times, transfer: float | Times = TRANSFER) -> float:
    """How much longer a step is with these times than with even ones."""
    s = schedule("1f1b", STAGES, MICROBATCHES)
    slow, sound = (start_and_end(s, *given)[1].max() for given in ((times, transfer), (even(s), TRANSFER)))  # type: ignore[arg-type]
    return float(slow - sound)


def first(result: Report) -> tuple[str, str]:
    """The code and the text of the first sentence, which JSON has too."""
    assert [each["code"] for each in json.loads(result.json())["verdict"]] == [each.code for each in result.verdict]
    return result.verdict[0].code, result.verdict[0].text


def test_the_verdict_and_the_tables_share_one_basis() -> None:
    """The time from start to start, which is longer than the pipeline time by optimizer and pause."""
    s = schedule("1f1b", STAGES, MICROBATCHES)
    slow = np.where(stage_of(s) == 2, 1.5, 1.0) * even(s)
    result = report_of(run([one(slow)] * 2, optimizer=dict.fromkeys(range(8), 40 * MS)))
    said = result.verdict[0].facts
    step_ns = start_and_end(s, slow, TRANSFER)[1].max() + 42 * MS
    assert said["gain_ns"] == pytest.approx(saved(slow), rel=0.02)
    assert said["gain"] == pytest.approx(said["gain_ns"] / step_ns)
    row = json.loads(result.json())["causes"][0]
    assert {name: row[name] for name in said} == said
    table = next(table for table in result.tables() if table.title == "Causes")
    assert table.frame["gain %"][0] == pytest.approx(100 * said["gain"], abs=0.006)


def test_a_replay_that_is_far_from_the_measurement_gives_no_gain() -> None:
    """Blocks of a rank begin 40 ms before their input is there, as on a clock that is wrong."""
    s = schedule("1f1b", STAGES, MICROBATCHES)
    slow = np.where(stage_of(s) == 2, 1.5, 1.0) * even(s)
    blocks = one(slow)
    early = pl.col("start_ns", "end_ns") - pl.when(pl.col("rank") == 1).then(40 * MS).otherwise(0)
    result = report_of(run([blocks.with_columns(early)]))
    assert result.verdict[0].code == "slow-stage"
    assert "gain_ns" not in result.verdict[0].facts
    assert "cannot be said" in result.verdict[0].text
    assert "gains are not given" in result.verdict[-1].text
    assert json.loads(result.json())["trust"]["overlap"] > 0.05


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_slow_rank_of_few_is_not_called_a_slow_stage(replicas: int) -> None:
    """Of two ranks one is slow, so that the median of its stage is high; of one rank nothing but the stage is known."""
    s = schedule("1f1b", STAGES, MICROBATCHES)
    slow = one(np.where(stage_of(s) == 1, 1.6, 1.0) * even(s))
    code, _ = first(report_of(run([slow, one()][:replicas])))
    assert code == ("slow-rank" if replicas == 2 else "slow-stage")


def test_a_stage_with_as_many_ranks_as_any_is_whole_where_another_lacks_one() -> None:
    s = schedule("1f1b", STAGES, MICROBATCHES)
    slow = even(s) * np.where(stage_of(s) == 3, 1.5, 1.0)
    made = run([one(slow)] * 2)
    lost = pl.col("rank") != 1
    made = replace(made, spans=made.spans.filter(lost), ranks=made.ranks.filter(lost))
    result = report_of(made.with_notes(missing_ranks.notes(made)))
    assert first(result)[0] == "missing-ranks"
    assert result.causes["code"].to_list() == ["slow-stage"]
    assert result.causes["stage"].to_list() == [3]


@pytest.mark.parametrize("step", [0, 1])
def test_a_cause_is_shown_in_the_step_that_it_costs_most(step: int) -> None:
    """Stage 2 of the second replica starts each block 5 ms late, and 6 ms in one step of three."""
    s = schedule("1f1b", STAGES, MICROBATCHES)
    usual, late = (run([one(), one(late=np.where(stage_of(s) == 2, by * MS, 0.0)), one()]) for by in (5.0, 6.0))
    period, longer = (
        int((spans.filter(step=1)["start_ns"].min() or 0) - (spans.filter(step=0)["start_ns"].min() or 0))  # type: ignore[operator]
        for spans in (usual.spans, late.spans)
    )
    shift = pl.when(pl.col("step") > step).then(longer - period).otherwise(0)
    others = usual.spans.filter(pl.col("step") != step).with_columns(pl.col("start_ns", "end_ns") + shift)
    that = late.spans.filter(step=step).with_columns(pl.col("start_ns", "end_ns") - step * (longer - period))
    spans = pl.concat([others, that]).with_columns(id=pl.int_range(pl.len(), dtype=usual.spans.schema["id"]))
    result = report_of(mark_whole_steps(concluded(replace(usual, spans=spans)), one_clock=True, all_ranks=True))
    assert first(result)[0].startswith("late")
    assert result.causes["step"][0] == step
    assert result.steps["step"][result.explained] == step


def test_parts_add_up_to_the_time_that_is_said_before_them() -> None:
    """Of three steps the middle one lacks a block: only the first is followed by a step, after a pause of 60 ms."""
    made = run([one()])
    spans = made.spans.with_columns(pl.col("start_ns", "end_ns") + pl.col("step").cast(pl.Int64) * 60 * MS)
    spans = spans.filter(~((pl.col("step") == 1) & (pl.col("rank") == 2) & (pl.col("microbatch") == 3)))
    spans = spans.with_columns(id=pl.int_range(pl.len(), dtype=made.spans.schema["id"]))
    result = report_of(mark_whole_steps(concluded(replace(made, spans=spans)), one_clock=True, all_ranks=True))
    step = next(each for each in result.verdict if each.code == "step")
    total = result.explanation.levels["adds_ns"].sum()
    assert result.steps["whole"].to_list() == [True, False, True]
    assert abs(total - step.facts["step_ns"]) > 20 * MS
    assert f"; the 2 steps that are explained take {duration(total)} in the mean: " in step.text


def test_of_a_part_of_the_stages_no_pause_is_claimed() -> None:
    """The stages that are missing may work between the last block of one step here and the first of the next."""
    last = one().filter(pl.col("rank") == STAGES - 1)
    made = run([one()])
    part = replace(
        made, ranks=made.ranks.filter(pl.col("rank") == STAGES - 1), spans=made.spans.join(last, on="rank", how="semi"),
        notes=(),
    )  # fmt: skip
    result = report_of(mark_whole_steps(concluded(part), one_clock=True, all_ranks=False))
    assert "long-pause" not in [each.code for each in result.verdict]


def test_missing_ranks_come_first_and_then_the_cause() -> None:
    s = schedule("1f1b", STAGES, MICROBATCHES)
    whole = run([one(np.where(stage_of(s) == 3, 1.5, 1.0) * even(s))] * 2)
    there = ~pl.col("rank").is_in([1, 5, 6])
    part = replace(
        whole, ranks=whole.ranks.filter(there), spans=whole.spans.filter(there), notes=(),
        declared=replace(whole.declared, world=8),
    )  # fmt: skip
    result = report_of(mark_whole_steps(concluded(part), one_clock=True, all_ranks=True))
    code, text = first(result)
    assert code == "missing-ranks"
    assert text.startswith("3 of 8 ranks have no blocks here (ranks 1,5-6, including all of stage 1 of 4)")
    assert "slow-stage" in [each.code for each in result.verdict]
    chosen = report_of(
        mark_whole_steps(concluded(part), one_clock=True, all_ranks=False)
    )  # the user asked for some ranks only
    assert chosen.verdict[0].code == "slow-stage"


def test_an_order_of_no_known_schedule_says_what_cannot_be_said() -> None:
    sound = run([one()])
    forward = sound.spans.filter(pl.col("kind") == "F")
    result = report_of(mark_whole_steps(concluded(replace(sound, spans=forward)), one_clock=True, all_ranks=True))
    said = next(each for each in result.verdict if each.code == "step")
    assert said.facts["schedule"] is None
    assert "the blocks follow no known schedule" in said.text


def test_of_nothing_it_is_said_that_there_is_no_step() -> None:
    assert [sentence.code for sentence in report_of(concluded(Profile())).verdict] == ["no-steps"]


def test_the_same_in_markdown() -> None:
    s = schedule("1f1b", STAGES, MICROBATCHES)
    result = report_of(run([one(np.where(stage_of(s) == 2, 1.5, 1.0) * even(s))] * 2))
    text = result.markdown("logs_of_*monday*")
    assert text.startswith("# Pipeline report: logs\\_of\\_\\*monday\\*\n\n8 ranks on 2 hosts (node0, node1)\n")
    assert "1. Stage 2 is slow (ranks 2,6" in text
    assert "| slow stage | stage 2" in text
    assert "**Next:** move layers from stage 2" in text
    for full, tables in ((False, result.brief()), (True, result.tables())):
        text = result.markdown("logs", full=full)
        titles = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
        assert titles == [table.title for table in tables]
    assert "| **Stage 2 is slow" in text


def test_a_next_step_ends_as_it_is_typed() -> None:
    """It may end with a command to copy."""
    said = Sentence(
        "hidden-causes", {}, "Several causes hide one another.", "see trace-export export logs --detail comm"
    )
    assert html.items([said]).endswith("--detail comm</p></li>")
    assert "--detail comm\n" in markdown.document("", "", [said], ())


def test_a_host_that_is_called_after_its_rank_is_not_named_again() -> None:
    """Primus records no host."""
    row = {"code": "slow-stage", "stage": 7, "ranks": [7], "hosts": ["rank 7"], "src_rank": None, "device": None}
    assert cause_words.where(row) == "stage 7, rank 7"
    assert cause_words.where(row | {"hosts": ["node7"]}) == "stage 7, rank 7, node7"


def test_one_rank_has_no_peers() -> None:
    """What it is compared with must not be claimed."""
    s = schedule("1f1b", 1, MICROBATCHES)
    start, end = start_and_end(s, even(s), 0)
    alone = as_profile(s, start, end)
    said = report_of(concluded(alone)).verdict[0]
    assert said.code == "nothing-stands-out"
    assert "peers" in said.text
    assert "no stage" not in said.text


def test_a_command_names_ranks_as_it_reads_them() -> None:
    """Every fourth of 512 ranks, as where two stages of eight are slow."""
    row = {"code": "slow-collective", "ranks": [*range(3, 512, 4)]}
    given = cause_words.next_step(row).split("--ranks ")[1].split()[0]
    named = Numbers.parse(given, "ranks")
    assert named is not None
    assert named.without(Numbers.of(row["ranks"])).count() == 0
