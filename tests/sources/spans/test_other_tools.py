"""Spans of other tools: Primus, MegaScan, and any table with --columns."""

import json
import os
import random
from dataclasses import replace
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from samples.generators.pipeline import Block, Timing, one_f_one_b, simulate, zb_h1
from tests.support.rows import crossed
from trace_export import api
from trace_export.errors import NothingToExportError, SourceError, TraceExportError, UsageError
from trace_export.schedules.schedule import schedule
from trace_export.schedules.simulate import Costs, durations, start_and_end
from trace_export.sources.spans.columns import Columns

STAGES, MICROBATCHES = 4, 8
MAP = "rank=gpu,kind=what,start=begin:ms,end=finish:ms,step=iteration,stage=stage"


def blocks(chunks: int = 1) -> list[dict[str, Any]]:
    """A step of 1F1B, with several chunks interleaved: times in ms, from 0."""
    s = schedule("1f1b" if chunks == 1 else "interleaved", STAGES, MICROBATCHES, chunks if chunks > 1 else None)
    start, end = start_and_end(s, durations(s, Costs(10, 20)), 1)
    return [
        {**row, "start": float(a), "end": float(b)}
        for row, a, b in zip(s.ops.select("stage", "kind", "microbatch", "chunk").to_dicts(), start, end, strict=True)
    ]


def primus(folder: Path, iterations: int = 3) -> list[float]:
    """Iterations of different lengths, each rank with a zero of its own; the lengths in ms."""
    rows, totals = blocks(), []
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"world_size": STAGES, "dp_size": 1, "pp_size": STAGES, "vp_size": 1, "num_mbs": MICROBATCHES}
    (folder / "config.json").write_text(json.dumps(sizes))
    for stage in range(STAGES):
        of_stage = [row for row in rows if row["stage"] == stage]
        content = {}
        for n in range(1, iterations + 1):
            scale, zero = 1 + n / 100, 0.5 * stage
            lists = {
                f"{name}_{end}": [row[end] * scale + zero for row in of_stage if row["kind"] == kind]
                for name, kind in (("fwd", "F"), ("bwd", "B")) for end in ("start", "end")
            }  # fmt: skip
            content[str(n)] = {"total": max(lists["bwd_end"]) + 1, "memory": 80.0, **lists}
        totals.append([iteration["total"] for iteration in content.values()])
        (folder / f"pp_rank_{stage}.json").write_text(json.dumps(content))
    return [max(each) for each in zip(*totals, strict=True)]


def test_primus(tmp_path: Path) -> None:
    totals = primus(tmp_path / "logs")
    run = api.load(tmp_path / "logs").align()
    result = run.report()
    assert result.theory.recognition.plan.name == "1f1b"
    assert (result.theory.recognition.plan.stages, result.theory.recognition.plan.microbatches) == (
        STAGES,
        MICROBATCHES,
    )
    assert result.steps["step_ns"][:2].to_list() == pytest.approx([t * 1e6 for t in totals[:2]], rel=1e-3)
    assert run.spans.group_by("rank", "step", "kind").len()["len"].unique().to_list() == [MICROBATCHES]
    # The clocks' zeros are 0.5 ms apart from stage to stage; a transfer takes 1 ms, so they are known to that.
    moved = run.clocks.sort("host")["offset_ns"].diff().drop_nulls()
    assert ((moved - 500_000).abs() < 500_000).all()


@pytest.mark.parametrize("broken", ["{", "[]", '{"1": {}}', "a pipe"])
def test_the_broken_file_of_one_rank_of_primus_costs_that_rank_only(tmp_path: Path, broken: str) -> None:
    primus(tmp_path / "logs")
    whole = api.load(tmp_path / "logs").align()
    place = tmp_path / "logs" / f"pp_rank_{STAGES - 1}.json"
    place.unlink()
    if broken == "a pipe":
        os.mkfifo(place)
    else:
        place.write_text(broken)
    run = api.load(tmp_path / "logs").align()
    assert run.ranks["rank"].to_list() == list(range(STAGES - 1))
    assert [place.name in str(failure) for failure in run.failures] == ([] if broken == "a pipe" else [True])
    kept = pl.col("rank") < STAGES - 1
    lengths = [r.spans.filter(kept).select(pl.col("end_ns") - pl.col("start_ns")).to_series() for r in (run, whole)]
    assert lengths[0].equals(lengths[1])


@pytest.mark.parametrize("size", [None, "four", 1 << 40, 0])
def test_sizes_of_primus_that_cannot_be_are_not_known(tmp_path: Path, size: object) -> None:
    primus(tmp_path / "logs")
    (tmp_path / "logs" / "config.json").write_text(json.dumps({"pp_size": size, "num_mbs": size}))
    run = api.load(tmp_path / "logs")
    assert run.failures == ()
    assert run.ranks["stage"].to_list() == list(range(STAGES))


@pytest.mark.parametrize("name", ["9" * 5000, "9999999999", "-1", "1.5", ""])
def test_an_iteration_of_primus_has_a_number(tmp_path: Path, name: str) -> None:
    primus(tmp_path / "logs")
    place = tmp_path / "logs" / "pp_rank_0.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), name: {"total": 1.0}}))
    (failure,) = api.load(tmp_path / "logs").failures
    assert str(failure).startswith(f'{place} has no duration "total" of the iteration "{name[:20]}"')


def megascan(path: Path, iteration: int = 10) -> None:
    events: list[dict[str, Any]] = []
    for stage in range(STAGES):
        events.append(
            {"name": "iteration begin", "ph": "i", "ts": 0, "pid": stage, "tid": 0, "args": {"iteration": iteration}}
        )
    for row in blocks(chunks=2):
        names = {"F": "forward", "B": "backward"}
        common = {"name": names[row["kind"]], "pid": row["stage"], "tid": 0}
        numbers = {"microbatch": row["microbatch"], "model_chunk": row["chunk"], "pp_rank": row["stage"]}
        events.append({**common, "ph": "B", "ts": round(row["start"] * 1000), "args": {"iteration": iteration}})
        events.append(
            {**common, "ph": "E", "ts": round(row["end"] * 1000), "args": {"iteration": iteration, **numbers}}
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(sorted(events, key=lambda e: (e["ts"], e["ph"] == "B"))))


def test_megascan(tmp_path: Path) -> None:
    megascan(tmp_path / "logs" / "aggregated-iter10.json")
    run = api.load(tmp_path / "logs").align()
    result = run.report()
    plan = result.theory.recognition.plan
    assert (plan.name, plan.stages, plan.microbatches, plan.chunks) == ("interleaved", STAGES, MICROBATCHES, 2)
    length = max(row["end"] for row in blocks(chunks=2))
    assert result.steps["pipeline_ns"].to_list() == [round(length * 1e6)]
    assert set(run.spans["step"]) == {10}
    assert not result.explanation.levels.is_empty()


def test_megascan_with_a_file_for_each_iteration(tmp_path: Path) -> None:
    """They are steps of one run, in the order of their numbers; each counts its time from 0."""
    for iteration in (9, 10, 11):
        megascan(tmp_path / "logs" / f"data-aggregated-iter{iteration}.json", iteration)
    run = api.load(tmp_path / "logs").align()
    length = max(row["end"] for row in blocks(chunks=2))
    steps = run.report().steps
    assert steps.select("step", "pipeline_ns").rows() == [(n, round(length * 1e6)) for n in (9, 10, 11)]
    first = run.spans.group_by("step").agg(pl.col("start_ns").min()).sort("step")["start_ns"].to_list()
    assert first == sorted(first)
    run.write(tmp_path / "logs")
    assert api.load(tmp_path / "logs").align().write(tmp_path / "logs")


def test_an_iteration_twice_is_refused(tmp_path: Path) -> None:
    for name in ("a-iter1.json", "a-iter01.json"):
        megascan(tmp_path / name, 1)
    with pytest.raises(SourceError, match="holds iteration 1, which"):
        api.load(tmp_path)


def table(folder: Path, suffix: str = ".csv", **changes: Any) -> Path:
    names = {"F": "fwd", "B": "bwd"}
    rows = [
        {"gpu": row["stage"], "what": names[row["kind"]], "begin": row["start"], "finish": row["end"],
         "iteration": 5, "stage": row["stage"]}
        for row in blocks()
    ]  # fmt: skip
    frame = pl.DataFrame(rows).with_columns(**changes)
    path = folder / f"mine{suffix}"
    frame.write_csv(path) if suffix == ".csv" else frame.write_parquet(path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_with_columns(suffix: str, tmp_path: Path) -> None:
    run = api.load(table(tmp_path, suffix), columns=MAP).align()
    assert run.report().theory.recognition.plan.name == "1f1b"
    assert run.spans["step"].unique().to_list() == [5]
    length = max(row["end"] for row in blocks())
    assert run.spans["end_ns"].max() - run.spans["start_ns"].min() == round(length * 1e6)
    order = [op.microbatch for op in one_f_one_b(2, STAGES, MICROBATCHES)]
    on_stage = run.spans.filter(pl.col("rank") == 2).sort("start_ns")
    assert on_stage["microbatch"].to_list() == order


@pytest.mark.parametrize(
    ("name", "separator", "start"),
    [
        ("a.csv", ";", "\ufeff"), ("b.csv", "\t", ""), ("c.tsv", "\t", ""), ("d.csv", ";", "sep=;\r\n"),
        ("e.csv", "\t", '\ufeff"sep=\t"\n'),
    ],
)  # fmt: skip
def test_tables_of_spreadsheets(name: str, separator: str, start: str, tmp_path: Path) -> None:
    """Separated by semicolons or tabs, with a mark of its encoding or Excel's first line; with `columns`, or ours."""
    comma = table(tmp_path)
    other = tmp_path / name
    other.write_text(start + comma.read_text().replace(",", separator).replace("\n", "\r\n"), encoding="utf-8")
    run = api.load(comma, columns=MAP).align()
    assert api.load(other, columns=MAP).align().spans.equals(run.spans)
    run.write(tmp_path / "spans.csv")
    other.write_text(start + (tmp_path / "spans.csv").read_text().replace(",", separator), encoding="utf-8")
    assert api.load(other).spans.drop("id").equals(api.load(tmp_path / "spans.csv").spans.drop("id"))


def test_blanks_around_names_and_values_count_for_nothing(tmp_path: Path) -> None:
    comma = table(tmp_path)
    (tmp_path / "blanks.csv").write_text(comma.read_text().replace(",", " , ").replace("fwd", "Fwd"))
    spans = api.load(tmp_path / "blanks.csv", columns=MAP).spans
    assert spans.drop("marker").equals(api.load(comma, columns=MAP).spans.drop("marker"))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a.xlsx", "is a spreadsheet: save it as CSV, with its times as text"),
        ("a.csv.gz", "is packed: unpack it with gunzip"),
        ("a.jsonl", "is a file of JSON lines, which is not read"),
    ],
)
def test_what_is_no_table_gets_its_reason(name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"PK")
    with pytest.raises(SourceError, match=says):
        api.load(tmp_path / name, columns=MAP)


@pytest.mark.parametrize("names", [("wgrad", "Backward-W", "weight gradient"), ("other",)])
def test_work_between_the_passes_whose_kind_names_none_is_told_of(names: tuple[str, ...], tmp_path: Path) -> None:
    """The bubble counts it as idle. What lies inside of a pass, or around passes, is no such work."""
    timing = Timing({"F": 10**7, "B": 10**7, "W": 10**7, "OPT": 10**6}, 10**6)
    run = simulate([zb_h1(stage, 2, 4) for stage in range(2)], timing, range(2), random.Random(1))
    called = cycle(names)
    kinds = {"W": lambda: next(called), "OPT": lambda: "optimizer"}
    rows = [(b.rank, kinds[b.kind]() if b.kind in kinds else b.kind, b.step, b.start_ns, b.end_ns) for b in run.blocks]
    rows += [(b.rank, "attention", b.step, b.start_ns + 5, b.end_ns - 5) for b in run.blocks if b.kind == "F"]
    rows += [(rank, "whole", 0, 0, max(b.end_ns for b in run.blocks)) for rank in range(2)]
    path = tmp_path / "mine.csv"
    pl.DataFrame(rows, ["rank", "kind", "step", "start", "end"], orient="row").write_csv(path)
    loaded = api.load(path, columns=",".join(f"{field}={field}" for field in ("rank", "kind", "step", "start", "end")))
    told = [note for note in loaded.notes if note.code == "compute-outside-blocks"]
    if names != ("other",):
        assert not told
        assert loaded.spans.filter(kind="W").height == 2 * 2 * 4
        return
    (note,) = told
    share = 4 * 10 / (4 * 30 + 1)
    assert note.level == "warning"
    assert f"{share:.1%} of the time" in note.text
    assert "its kind (other) names no pass" in note.text
    assert loaded.ranks["outside"].to_list() == pytest.approx([share] * 2)


def test_communication_and_waits_between_the_passes_are_no_work(tmp_path: Path) -> None:
    """Each of these names alone would take enough of the time to be told of as work."""
    names = ("recv_forward", "Send-B", "all_reduce", "ncclDevKernel_SendRecv", "P2P", "wait", "idle")
    timing = Timing({"F": 10**7, "B": 10**7, "OPT": 10**6}, 10**6, lead=7 * 10**6, gap=7 * 10**6)
    run = simulate([one_f_one_b(stage, 2, 8) for stage in range(2)], timing, range(2), random.Random(1))
    rows = [(b.rank, b.kind, b.start_ns, b.end_ns) for b in run.blocks]
    rows += [(b.rank, name, b.end_ns, b.end_ns + 7 * 10**6) for b, name in zip(run.blocks, cycle(names), strict=False)]
    path = tmp_path / "mine.csv"
    pl.DataFrame(rows, ["rank", "kind", "start", "end"], orient="row").write_csv(path)
    loaded = api.load(path, columns="rank=rank,kind=kind,start=start,end=end")
    assert not [note for note in loaded.notes if note.code == "compute-outside-blocks"]


@pytest.mark.parametrize("nothing", ["", "nan", "None", "<NA>", "NULL"])
def test_numbers_as_other_programs_write_them(nothing: str, tmp_path: Path) -> None:
    """A column of whole numbers that lacks some becomes one of floating-point numbers, or of texts."""
    path = table(tmp_path)
    content = pl.read_csv(path, infer_schema=False)
    optimizer = pl.DataFrame({"gpu": ["2"], "what": "optimizer", "begin": "900", "finish": "910"})
    rows = pl.concat([content.with_columns(pl.col("iteration", "gpu") + ".0"), optimizer], how="diagonal")
    rows.with_columns(pl.col("iteration", "stage").fill_null(nothing)).write_csv(path)
    run = api.load(path, columns=MAP)
    truth = api.load(table(tmp_path, ".parquet"), columns=MAP)
    assert run.spans.filter(pl.col("kind") == "OPT").height == 1
    work = [loaded.spans.filter(pl.col("kind") != "OPT").select("rank", "step", "start_ns") for loaded in (run, truth)]
    assert work[0].sort(pl.all()).equals(work[1].sort(pl.all()))


def test_negative_numbers_mean_none(tmp_path: Path) -> None:
    run = api.load(table(tmp_path, iteration=pl.lit(0), stage=pl.lit(-1)), columns=MAP.replace("step=iteration,", ""))
    stages = api.load(table(tmp_path), columns=MAP).ranks["stage"]
    assert run.ranks["stage"].to_list() == stages.to_list()
    assert run.ranks["stage_origin"].unique().to_list() == ["inferred"]


@pytest.mark.parametrize("form", ["number", "text", "begin and end"])
def test_times_keep_their_nanoseconds(tmp_path: Path, form: str) -> None:
    """Unix times in µs with three decimals have more digits than a float."""
    base = 1_760_000_000_000_000_123
    events, wanted = [], []
    for row in blocks():
        start, end = (base + round(row[side] * 1e6) + row["stage"] for side in ("start", "end"))
        wanted.append((row["stage"], start, end))
        ts, until, dur = (f"{ns // 1000}.{ns % 1000:03d}" for ns in (start, end, end - start))
        common = f'"name": "{row["kind"]}", "pid": {row["stage"]}, "tid": 1, "args": {{"mb": {row["microbatch"]}}}'
        if form == "begin and end":
            events += [f'{{"ph": "B", "ts": {ts}, {common}}}', f'{{"ph": "E", "ts": {until}, {common}}}']
        else:
            times = f'"ts": {ts}, "dur": {dur}' if form == "number" else f'"ts": "{ts}", "dur": "{dur}"'
            events.append(f'{{"ph": "X", {times}, {common}}}')
    path = tmp_path / "mine.json"
    path.write_text(f'{{"traceEvents": [{", ".join(events)}]}}')
    run = api.load(path, columns="rank=pid,kind=name,start=ts:us,end=end:us,microbatch=mb,stage=pid")
    assert sorted(run.spans.select("rank", "start_ns", "end_ns").rows()) == sorted(wanted)
    table = pl.DataFrame([(r, f"{a // 1000}.{a % 1000:03d}", f"{b // 1000}.{b % 1000:03d}", "F") for r, a, b in wanted],
                         schema=["rank", "start", "end", "kind"], orient="row")  # fmt: skip
    table.write_csv(tmp_path / "mine.csv")
    run = api.load(tmp_path / "mine.csv", columns="rank=rank,kind=kind,start=start:us,end=end:us")
    assert sorted(run.spans.select("rank", "start_ns", "end_ns").rows()) == sorted(wanted)


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_a_length_that_is_a_fraction_costs_no_nanosecond(form: str, tmp_path: Path) -> None:
    """5.5 µs from a start that is known to the nanosecond; as floating-point numbers dates are 256 ns apart."""
    path, starts = tmp_path / f"t.{form}", (1_700_000_000_000_000_123, 1_700_000_000_000_010_125)
    texts = [f"{start // 1000}.{start % 1000:03}" for start in starts]
    if form == "json":
        events = (f'{{"ph":"X","name":"F","pid":0,"tid":0,"ts":{text},"dur":5.5}}' for text in texts)
        path.write_text(f"[{','.join(events)}]")
    elif form == "csv":
        path.write_text("".join(["pid,name,ts,dur\n", *(f"0,F,{text},5.5\n" for text in texts)]))
    else:
        pl.DataFrame({"pid": 0, "name": "F", "ts": starts, "dur": [5500.0, 5500.0]}).write_parquet(path)
    unit = "ns" if form == "parquet" else "us"
    run = api.load(path, columns=f"rank=pid,kind=name,start=ts:{unit},duration=dur:{unit}", jobs=1)
    assert run.spans.select("start_ns", "end_ns").rows() == [(start, start + 5500) for start in starts]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rank=gpu,start=begin,end=finish", "kind is not given"),
        ("rank=gpu,kind=what,start=begin:s,end=finish:ms", r"different units \(start in s, end in ms\)"),
        ("rank=gpu,kind=what,start=begin", "neither end nor duration"),
        ("rank=gpu,kind=what,start=begin,end=finish,duration=d", "both end and duration"),
        ("rank=gpu,colour=what", '"colour=what" is not FIELD=COLUMN'),
        ("rank=gpu,rank=stage", "rank is given twice"),
        ("rank=gpu,kind=what,start=begin:h,end=finish:h", '"h" is not a unit of time'),
    ],
)
def test_wrong_columns_are_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Columns.parse(text)


def in_ms_on_rank_1() -> dict[str, pl.Expr]:
    """The times of rank 1 a thousand times as large."""
    factor = pl.when(pl.col("gpu") == 1).then(1000.0).otherwise(1.0)
    return {end: pl.col(end) * factor for end in ("begin", "finish")}


@pytest.mark.parametrize(
    ("columns", "changes", "says"),
    [
        (MAP.replace("what", "kind"), {}, "has no column kind; it has gpu, what"),
        (MAP, {"finish": pl.lit(-1.0)}, "ends before it starts"),
        (MAP, {"what": pl.lit("lunch")}, 'names no forward or backward: its kinds are "lunch"'),
        (
            MAP,
            {"begin": pl.lit("soon")},
            r"has a start that is not a number in the column begin; write times as digits",
        ),
        (MAP, {"begin": pl.lit("1,760,000")}, "not a number in the column begin; .* without a separator of thousands"),
        (MAP, {"gpu": pl.lit(None)}, "has a row without a rank"),
        (MAP, in_ms_on_rank_1(), "1,000 × as long on rank 1 as on rank 0, as if their times were in different units"),
    ],
)
def test_a_broken_table_gets_one_sentence(columns: str, changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=says) as caught:
        api.load(table(tmp_path, **changes), columns=columns)
    assert "\n" not in str(caught.value)


MOMENT = datetime(2025, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"gpu": pl.col("gpu") - 1}, "has a negative rank: -1"),
        ({"gpu": pl.col("gpu") + 0.5}, "has a rank that is not a whole number in the column gpu: 0.5"),
        ({"gpu": pl.lit("first")}, "has a rank that is not a number in the column gpu"),
        ({"gpu": pl.col("gpu") > 0}, "holds no numbers but boolean values in the column gpu"),
        ({"gpu": pl.concat_list("gpu")}, "holds no numbers but list values in the column gpu"),
        ({"iteration": pl.lit(1.5)}, "has a step that is not a whole number"),
        ({"what": pl.struct("what")}, "holds no texts but struct values in the column what"),
        ({"begin": pl.struct("begin")}, "holds no times but struct values in the column begin"),
        ({"begin": pl.lit(MOMENT.date())}, "holds no times but date values in the column begin"),
        ({"begin": pl.lit(MOMENT) + pl.duration(milliseconds="begin")}, "ends before it starts"),
        ({"begin": pl.lit(2**62), "finish": pl.lit(2**62)}, "at an impossible time"),
        ({"stage": pl.int_range(pl.len())}, "gives rank 0 more than one stage"),
    ],
)
def test_values_of_a_wrong_type_get_one_sentence(changes: dict[str, pl.Expr], says: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=says) as caught:
        api.load(table(tmp_path, ".parquet", **changes), columns=MAP)
    assert "\n" not in str(caught.value)


def test_a_name_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("gpu,what,begin,finish,begin\n0,fwd,1,2,3\n")
    with pytest.raises(SourceError, match="has two columns begin"):
        api.load(path, columns="rank=gpu,kind=what,start=begin,end=finish")


@pytest.mark.parametrize(("precision", "zone"), crossed(["ms", "us", "ns"], [None, "Europe/Berlin"]))
def test_a_date_has_a_unit_of_its_own(precision: Any, zone: str | None, tmp_path: Path) -> None:
    """Whatever the unit in --columns says, which is that of numbers."""
    moments = {
        name: (pl.lit(MOMENT) + pl.duration(milliseconds=pl.col(name).round()))
        .cast(pl.Datetime(precision, "UTC")).dt.convert_time_zone(zone or "UTC")
        for name in ("begin", "finish")
    }  # fmt: skip
    if zone is None:
        moments = {name: moment.dt.replace_time_zone(None) for name, moment in moments.items()}
    spans = api.load(table(tmp_path, ".parquet", **moments), columns=MAP).spans
    zero = int(MOMENT.timestamp()) * 10**9
    assert spans["start_ns"].min() == zero
    assert spans["end_ns"].max() == zero + round(max(row["end"] for row in blocks())) * 10**6


def test_blocks_without_length_have_no_slowdown(tmp_path: Path) -> None:
    run = api.load(table(tmp_path, begin=pl.lit(5.0), finish=pl.lit(5.0)), columns=MAP).align()
    assert run.report().causes.is_empty()
    with pytest.raises(NothingToExportError, match="no step has a length"):
        run.what_if()


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([{"ph": "X", "ts": 1}], "has a complete event .X. whose duration is not a number"),
        ([{"ph": "X", "ts": 1, "dur": "long"}], "has a complete event .X. whose duration is not a number"),
        ([{"ph": "X", "ts": True, "dur": 1}], "holds no times but boolean values in the column ts"),
        ([{"ph": "B", "ts": 1}, {"ph": "B", "ts": 2}, {"ph": "E", "ts": 3}], "begin events .B. without their end: 1,"),
        ([{"ph": "E", "ts": 1}], "has an end event .E. without its begin"),
        ([{"ph": "i", "ts": 1}], "holds no event with a start and an end"),
    ],
)
def test_broken_events_get_one_sentence(events: list[dict[str, object]], says: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps([{"name": "F", "pid": 0, "tid": 0, **each} for each in events]))
    with pytest.raises(SourceError, match=says) as caught:
        api.load(path, columns="rank=pid,kind=name,start=ts:us,end=end:us")
    assert "\n" not in str(caught.value)


def test_a_field_that_no_event_has_is_said_with_those_that_there_are(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    event = {"name": "F", "ph": "X", "pid": 0, "tid": 0, "ts": 1, "dur": 1, "args": {"micro": 3}}
    path.write_text(json.dumps([event]))
    with pytest.raises(SourceError, match=r"has no column batch; it has .*\bmicro\b"):
        api.load(path, columns="rank=pid,kind=name,start=ts:us,end=end:us,microbatch=batch")


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda c: c["1"].pop("bwd_end"), "lacks one of the lists of numbers"),
        (lambda c: c["1"]["fwd_end"].pop(), "fwd_start and fwd_end of different lengths"),
        (lambda c: c["1"]["fwd_end"].__setitem__(0, -5.0), "has a block with impossible times"),
        (lambda c: c["1"].pop("total"), 'has no duration "total"'),
    ],
)
def test_a_broken_file_of_primus_gets_one_sentence(broken: Any, says: str, tmp_path: Path) -> None:
    primus(tmp_path, iterations=1)
    path = tmp_path / "pp_rank_0.json"
    content = json.loads(path.read_text())
    broken(content)
    path.write_text(json.dumps(content))
    with pytest.raises(TraceExportError, match=says):
        run = api.load(tmp_path)
        raise run.failures[0]


def test_columns_need_a_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a file"):
        api.load(tmp_path, columns=MAP)


def event(**fields: object) -> dict[str, object]:
    numbers = {"microbatch": 0, "model_chunk": 0, "pp_rank": 0, "iteration": 0}
    return {"name": "forward", "ph": "X", "ts": 0, "dur": 5, "pid": 0, "tid": 0, "args": numbers, **fields}


def test_names_of_the_users_are_short_in_messages(tmp_path: Path) -> None:
    place = tmp_path / "iter0.json"
    place.write_text(json.dumps([event(name="SECRET" + "x" * 20_000)]))
    with pytest.raises(TraceExportError, match="names no forward or backward") as caught:
        api.load(tmp_path, jobs=1)
    assert len(str(caught.value)) < len(str(place)) + 300


COLUMNS = "rank=rank,kind=kind,start=start,end=end,stage=stage,dp=dp,microbatch=microbatch,host=host,step=step"


def run_of_replicas(*, own_zeros: bool, early_ns: int = 0) -> tuple[pl.DataFrame, list[Block]]:
    """The table of a simulated run of two replicas on two hosts, with transfers and the collectives of each stage, and
    its blocks, with the rank in place of the stage. `own_zeros`: each step counts from its start; `early_ns`: how long
    before the step a stage posts its first receive, while other ranks still run the step before."""
    replicas, stages, steps = 2, 3, 3
    timing = Timing({"F": 10**7, "B": 2 * 10**7, "OPT": 10**6}, 10**6, gap=10**6, first=10**9, length_jitter=range(900))
    rows: list[dict[str, Any]] = []
    result: list[Block] = []
    for dp in range(replicas):
        orders = [one_f_one_b(stage, stages, 4) for stage in range(stages)]
        run = simulate(orders, timing, range(steps), random.Random(dp))
        for b in run.blocks:
            place = {"rank": b.rank * replicas + dp, "stage": b.rank, "dp": dp, "host": f"node{b.rank % 2}"}
            kind = {"F": "forward-compute", "B": "backward-compute", "OPT": "optimizer"}[b.kind]
            result.append(replace(b, rank=place["rank"]))
            row = {**place, "kind": kind, "step": b.step, "microbatch": b.microbatch, "start": b.start_ns}
            rows.append({**row, "end": b.end_ns})
            if b.kind == "OPT":
                rows.append({**row, "kind": "grads-reduce-scatter", "start": b.start_ns - 3 * 10**6 * (1 + b.rank),
                             "end": b.start_ns - 10**5 * (1 + b.rank)})  # fmt: skip
            if (b.kind, b.microbatch) == ("F", 0) and b.rank:
                start = b.start_ns - early_ns - 10**5
                rows.append({**row, "kind": "forward-recv", "start": start, "end": b.start_ns})
    table = pl.DataFrame(rows)
    if own_zeros:
        zero = pl.col("start").min().over("step")
        table = table.with_columns(start=pl.col("start") - zero, end=pl.col("end") - zero)
    return table, result


@pytest.mark.parametrize("early_ns", [0, 5 * 10**6, 4 * 10**7])
def test_a_table_on_one_clock_keeps_its_times(tmp_path: Path, early_ns: int) -> None:
    """Whatever hosts it names, and however early a receive for a step is posted; each stage has collectives of its
    own."""
    table, blocks = run_of_replicas(own_zeros=False, early_ns=early_ns)
    table.write_csv(tmp_path / "ops.csv")
    run = api.load(tmp_path / "ops.csv", columns=COLUMNS).align()
    columns = ["rank", "step", "start_ns", "end_ns"]
    wanted = sorted((b.rank, b.step, b.start_ns, b.end_ns) for b in blocks)
    moved = run.spans["start_ns"].min() - min(b.start_ns for b in blocks)  # type: ignore[operator]
    assert sorted((rank, step, a - moved, b - moved) for rank, step, a, b in run.spans.select(columns).rows()) == wanted
    assert not [note for note in run.notes if note.code.startswith("clock")]
    groups = run.profile.collectives.group_by("group").agg(pl.col("rank").unique().sort()).sort("group")
    assert groups.rows() == [(f"stage {s} chunk 000", [2 * s, 2 * s + 1]) for s in range(3)]
    assert "all ranks are on one clock" in run.report().verdict[-1].text


def test_a_table_whose_steps_count_from_zeros_of_their_own(tmp_path: Path) -> None:
    table, blocks = run_of_replicas(own_zeros=True)
    table.write_csv(tmp_path / "ops.csv")
    run = api.load(tmp_path / "ops.csv", columns=COLUMNS).align()
    bounds = run.spans.group_by("step").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).sort("step")
    between = (bounds["start_ns"][1:] - bounds["end_ns"][:-1]).to_list()
    assert between == [10**6] * 2  # nothing of a step lies before its first block or after its last
    length = {step: max(b.end_ns for b in blocks if b.step == step) - min(b.start_ns for b in blocks if b.step == step)
              for step in range(3)}  # fmt: skip
    assert (bounds["end_ns"] - bounds["start_ns"]).to_list() == list(length.values())


def of_blocks(made: list[Block], **columns: pl.Expr) -> pl.DataFrame:
    """A table of blocks: times since the epoch in nanoseconds, unless `columns` give others."""
    rows = [{"rank": b.rank, "step": b.step, "kind": b.kind, "mb": b.microbatch, "start": b.start_ns, "end": b.end_ns}
            for b in made]  # fmt: skip
    times = pl.col("start", "end") + 1_760_000_000_000_000_000
    return pl.DataFrame(rows, infer_schema_length=None).with_columns(times).with_columns(**columns)


def drawn_run(seed: int, stages: int = 4) -> list[Block]:
    order = [one_f_one_b(stage, stages, 6) for stage in range(stages)]
    timing = Timing({"F": 2_000_000, "B": 4_000_000, "OPT": 1_000_000}, 300_000, gap=2_000_000, first=5_000_000)
    return simulate(order, timing, range(2), random.Random(seed)).blocks


OF_BLOCKS = "rank=rank,stage=rank,step=step,kind=kind,microbatch=mb,start=start{0},end=end{0}"


UNITS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


@pytest.mark.parametrize(("unit", "whole", "since"), crossed(UNITS, [False, True], ["epoch", "start"]))
def test_times_whose_unit_is_not_given(tmp_path: Path, unit: str, whole: bool, since: str) -> None:
    """They are taken for nanoseconds, with a warning, which is gone when the unit is given."""
    made = drawn_run(1)
    zero = 0 if since == "epoch" else 1_760_000_000_000_000_000
    table = of_blocks(made).with_columns((pl.col("start", "end") - zero) / UNITS[unit])
    if whole:
        table = table.with_columns(pl.col("start", "end").floor().cast(pl.Int64))
    table.write_parquet(tmp_path / "t.parquet")

    def said(columns: str) -> list[str]:
        run = api.load(tmp_path / "t.parquet", columns=columns)
        return [note.code for note in run.notes if note.code == "times-without-unit"]

    assert said(OF_BLOCKS.format("")) == ["times-without-unit"]
    assert said(OF_BLOCKS.format(f":{unit}")) == []


def test_nanoseconds_need_no_unit(tmp_path: Path) -> None:
    of_blocks(drawn_run(2)).write_parquet(tmp_path / "t.parquet")
    run = api.load(tmp_path / "t.parquet", columns=OF_BLOCKS.format(""))
    assert "times-without-unit" not in [note.code for note in run.notes]


@pytest.mark.parametrize("per_step", [False, True])
@pytest.mark.parametrize("stages", [2, 4])
def test_ranks_that_count_from_their_own_first_block_are_refused(tmp_path: Path, stages: int, per_step: bool) -> None:
    zero = pl.col("start").min().over("rank", *(["step"] if per_step else []))
    made = drawn_run(3, stages)
    table = of_blocks(made, start=pl.col("start") - zero, end=pl.col("end") - zero)
    table.write_parquet(tmp_path / "t.parquet")
    with pytest.raises(SourceError, match="as where each rank counts from its own start"):
        api.load(tmp_path / "t.parquet", columns=OF_BLOCKS.format(""))
    shared = pl.col("start").min().over("step") if per_step else pl.col("start").min()
    of_blocks(made, start=pl.col("start") - shared, end=pl.col("end") - shared).write_parquet(tmp_path / "t.parquet")
    assert api.load(tmp_path / "t.parquet", columns=OF_BLOCKS.format("")).spans.height == len(made)


@pytest.mark.parametrize("by", [1, 100, 10_000])
def test_a_span_that_ends_little_before_it_starts_is_refused(tmp_path: Path, by: int) -> None:
    """A floating-point number holds a date to 256 ns."""
    odd = pl.when(pl.int_range(pl.len()) == 20)
    of_blocks(drawn_run(4), end=odd.then(pl.col("start") - by).otherwise("end")).write_parquet(tmp_path / "t.parquet")
    with pytest.raises(SourceError, match="ends before it starts"):
        api.load(tmp_path / "t.parquet", columns=OF_BLOCKS.format(""))
