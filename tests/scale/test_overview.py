"""Overviews: what they name, that their figures are those of a run read whole, and what they say is missing."""

import json
import re
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import trace_export
from samples.generators import data_parallel
from samples.generators.kineto_trace import Trace
from samples.generators.paddle import Job, log, write_logs
from tests.support.command import command
from tests.support.many_ranks import ManyRanks, Planted, write
from tests.support.rows import crossed
from trace_export import api
from trace_export.analysis.bubbles import Bubbles
from trace_export.read import load_options
from trace_export.run import Request
from trace_export.scale import parts, words
from trace_export.scale.build import Overview, overview
from trace_export.scale.replicas import look

Written = tuple[Path, trace_export.Overviewed]


def named(exceptions: pl.DataFrame, kind: str, *columns: str) -> list[tuple[object, ...]]:
    return sorted(exceptions.filter(pl.col("kind") == kind).select(columns).rows())


def said(result: Overview) -> list[str]:
    return [sentence.text for sentence in words.sentences(result)]


def check(exceptions: pl.DataFrame, run: ManyRanks) -> None:
    """Exactly what was planted is named."""
    wrong = run.planted
    assert named(exceptions, "slow-rank", "rank") == [(rank,) for rank in sorted(wrong.ranks)]
    links = [tuple(sorted(link)) for link in named(exceptions, "slow-link", "rank", "to_rank")]  # type: ignore[type-var]
    assert sorted(links) == sorted(wrong.links)
    assert named(exceptions, "drifting-clock", "host") == [(host,) for host in wrong.hosts]
    assert named(exceptions, "settings", "replica") == [(replica,) for replica in wrong.replicas]
    assert exceptions.height == len(wrong.ranks + wrong.links + wrong.hosts + wrong.replicas)


def test_exactly_what_was_planted_is_named(planted: tuple[Path, ManyRanks], written: Written) -> None:
    run, result = planted[1], written[1].overview
    check(result.exceptions, run)
    assert result.replicas.filter(pl.col("cohort") == 0).height == run.replicas - 1
    (unlike,) = [text for text in said(result) if text.startswith("Unlike their peers: ")]
    kinds = ("1 replica with other settings", "7 slow ranks", "2 slow links", "1 host with a drifting clock")
    assert [re.sub(r" \(.*", "", part) for part in re.split(r"\), | and ", unlike.partition(": ")[2])] == list(kinds)
    assert f"drifting clock ({run.planted.hosts[0]})." in unlike
    assert re.search(r"7 slow ranks \(rank \d+, rank \d+, rank \d+, …\)", unlike)


FEW = ManyRanks(stages=3, tensor=2, replicas=8, microbatches=4, seed=2)
ONE_OF_EACH = replace(
    FEW,
    planted=Planted(
        ranks=(FEW.rank(0, 1, 0),),
        links=((FEW.rank(0, 2, 1), FEW.rank(1, 2, 1)),),
        hosts=(FEW.host(0, 5),),
        replicas=(4,),
    ),
)
"""A smaller run with one exception of each kind, in replicas 1, 2, 5 and 4."""


@pytest.fixture(scope="module")
def one_of_each(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("few")
    write(folder, ONE_OF_EACH)
    return folder


def test_nothing_is_named_where_nothing_is_wrong(tmp_path: Path) -> None:
    write(tmp_path / "logs", ManyRanks(stages=4, tensor=2, replicas=8, microbatches=8, seed=5))
    result = trace_export.overview(tmp_path / "logs", formats=None, jobs=1).overview
    assert result.exceptions.is_empty()
    assert result.replicas["cohort"].to_list() == [0] * 8


def test_a_stage_that_is_slow_in_every_replica_is_the_first_sentence(tmp_path: Path) -> None:
    run = ManyRanks(stages=4, tensor=2, replicas=8, microbatches=6)
    slow = [run.rank(2, replica, tensor) for replica in range(8) for tensor in range(2)]
    write(tmp_path / "logs", ManyRanks(**{**vars(run), "planted": type(run.planted)(ranks=tuple(slow))}))
    result = trace_export.overview(tmp_path / "logs", formats=None, jobs=1).overview
    assert result.exceptions.select("kind", "stage").rows() == [("slow-stage", 2)]
    assert result.exceptions["ratio"].to_list() == pytest.approx([1.3], rel=0.01)
    assert said(result)[0].startswith("Stage 2 is slow")


def test_a_replica_of_which_every_rank_is_slow_is_named_instead_of_its_ranks(tmp_path: Path) -> None:
    run = ManyRanks(stages=2, tensor=2, replicas=8, microbatches=6)
    slow = [run.rank(stage, 3, tensor) for stage in range(2) for tensor in range(2)]
    write(tmp_path / "logs", ManyRanks(**{**vars(run), "planted": type(run.planted)(ranks=tuple(slow))}))
    result = trace_export.overview(tmp_path / "logs", formats=None, jobs=1).overview
    assert result.exceptions.select("kind", "replica").rows() == [("slow-replica", 3)]
    assert result.exceptions["ratio"].to_list() == pytest.approx([1.3], rel=0.01)
    assert result.replicas.filter(pl.col("cohort") == 1)["replica"].to_list() == [3]


def many_logs(*, stages_last: bool, tensor: int = 1, host: int = 5) -> Job:
    """A job on 12 machines of 4 ranks; all blocks take longer on one of them."""
    data = 12 // tensor
    job = Job(
        4, 6, steps=range(2), tensor=tensor, data=data, machines=12, clock_errors_us=(0,) * 12, stages_last=stages_last
    )
    slow = {(job.stage(rank), job.replica(rank)): 1.2 for rank in range(host * job.workers, (host + 1) * job.workers)}
    return replace(job, slow=slow)


@pytest.mark.parametrize(
    ("sizes", "stages_last", "tensor"),
    crossed([{}, {"pp": 4}, {"pp": 4, "tp": "tensor", "dp": "data"}], [True, False], [1, 2]),
)
def test_ranks_are_placed_in_either_order(
    tmp_path: Path, stages_last: bool, tensor: int, sizes: dict[str, int | str]
) -> None:
    """More logs than a sample has; what is slow is a host, whichever ranks it has."""
    job = many_logs(stages_last=stages_last, tensor=tensor)
    write_logs(tmp_path / "logs", job)
    given = {name: size if isinstance(size, int) else getattr(job, size) for name, size in sizes.items()}
    result = trace_export.overview(tmp_path / "logs", formats=None, jobs=1, **given).overview
    places = result.ranks.sort("rank").select("rank", "stage", "replica", "tp").rows()
    assert places == [(rank, job.stage(rank), job.replica(rank), rank % tensor) for rank in range(job.ranks)]
    replica = tensor == 1 and not stages_last  # the host has a whole replica, the coarsest of both names
    assert result.exceptions.select("kind", "host").rows() == [("slow-replica" if replica else "slow-host", "machine5")]
    assert result.causes.select("code", "hosts").rows() == [("slow-replica" if replica else "slow-host", ["machine5"])]
    assert "stages-contradict" not in [note.code for note in result.notes]


def test_sizes_of_the_user_that_the_blocks_contradict_are_obeyed_with_a_warning(tmp_path: Path) -> None:
    job = many_logs(stages_last=True)
    write_logs(tmp_path / "logs", job)
    result = trace_export.overview(tmp_path / "logs", formats=None, jobs=1, pp=8, tp=1, dp=6).overview
    assert result.ranks.sort("rank")["stage"].to_list() in [
        [rank // 6 for rank in range(48)], [rank % 8 for rank in range(48)],
    ]  # fmt: skip
    assert ("stages-contradict", "warning") in [(note.code, note.level) for note in result.notes]


def test_a_run_that_no_order_of_ranks_explains_is_refused(tmp_path: Path) -> None:
    """The machines were collected under the names of others: no ranks in a row are on a stage."""
    write_logs(tmp_path / "logs", many_logs(stages_last=True))
    for number in range(12):
        (tmp_path / "logs" / f"machine{number}").rename(tmp_path / "logs" / f"other{number}")
    for number in range(12):
        (tmp_path / "logs" / f"other{number}").rename(tmp_path / "logs" / f"machine{7 * number % 12}")
    with pytest.raises(trace_export.NothingToExportError, match=r"rank .* is on stage .*, and its profile shows stage"):
        trace_export.overview(tmp_path / "logs", formats=None, jobs=1)


def test_steps_of_optimizers_alone_are_refused_in_a_sentence(tmp_path: Path) -> None:
    table = tmp_path / "spans.csv"
    table.write_text("rank,kind,step,start_ns,end_ns\n0,OPT,0,1,5\n0,OPT,1,7,9\n")
    with pytest.raises(trace_export.NothingToExportError, match="no step has a forward or a backward"):
        trace_export.overview(table, tmp_path / "out", jobs=1)


JOBS = {
    "tensor and data parallel": Job(2, 6, tensor=2, data=4, machines=2, clock_errors_us=(0, 3_000)),
    "one replica": Job(4, 8, machines=2, clock_errors_us=(0, 3_000)),
    "replicas on all machines": Job(2, 4, data=6, machines=3, clock_errors_us=(0, 900, -500)),
}


@pytest.mark.parametrize("name", JOBS)
def test_places_and_figures_are_those_of_a_run_read_whole(tmp_path: Path, name: str) -> None:
    """No size is given: a sample of the logs shows the stages, and which ranks are tensor-parallel peers."""
    write_logs(tmp_path / "logs", JOBS[name])
    result = trace_export.overview(tmp_path / "logs", formats=None, jobs=1).overview
    run = trace_export.load(tmp_path / "logs").align()
    places = run.ranks.select("rank", replica="dp", stage="stage", tp="tp").sort("rank")
    assert_frame_equal(result.ranks.select("rank", "replica", "stage", "tp"), places)
    ranks = Bubbles(run.profile).ranks.select("rank", "step", "busy_ns").sort("rank", "step")
    cells = result.cells.select("rank", "step", "busy_ns").sort("rank", "step")
    joined = cells.join(ranks, on=["rank", "step"], suffix="_whole")
    assert joined.height == cells.height == ranks.height
    apart = (joined["busy_ns"] - joined["busy_ns_whole"]).abs()
    assert apart.max() <= 2  # ns, by the rounding of a drift


def test_a_step_that_is_chosen_has_the_figures_of_the_whole_run(tmp_path: Path) -> None:
    logs = Job(2, 4, data=2, steps=range(3))
    write_logs(tmp_path / "logs", logs)
    result = [
        trace_export.overview(tmp_path / "logs", formats=None, steps=steps, pp=2, dp=2, jobs=1).overview.steps
        for steps in (None, 1)
    ]
    assert result[1].rows() == result[0].filter(pl.col("step") == 1).rows()
    assert result[1]["step_ns"].null_count() == 0


def test_sources_that_cannot_be_read_are_counted_by_reason(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    write(folder, ManyRanks(stages=2, tensor=2, replicas=8, microbatches=2, steps=1))
    for node in (3, 7, 10):
        (folder / f"node{node:05}" / "blocks.spans.parquet").write_bytes(b"PAR1 cut off")
    done = command("overview", folder, "--out", tmp_path / "out", "--pp", 2, "--tp", 2, "--jobs", 1)
    assert done.returncode == 3
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "node00003/blocks.spans.parquet" in errors[0]
    assert errors[0].endswith("(the same for 2 more of 16 sources)")
    page = (tmp_path / "out" / "pipeline_overview.html").read_text(encoding="utf-8")
    assert "3 of 16 sources (18.75%) could not be read" in page
    assert "6 of 32 ranks (18.75%) are missing here." in page


def test_a_run_of_which_nothing_can_be_read_says_why_as_the_other_commands_do(tmp_path: Path) -> None:
    """All kernels were lost."""
    for rank in range(2):
        trace = Trace(rank=rank, world=2, pid=700 + rank)
        for number in range(4):
            trace.range(10_000 * number, 10_000 * number + 5_000, f"F{number}", thread=700 + rank)
            trace.call(10_000 * number + 1_000, thread=700 + rank)
        trace.write(tmp_path / "in" / f"rank{rank}.pt.trace.json")
    report, result = (command(name, tmp_path / "in", cwd=tmp_path) for name in ("report", "overview"))
    assert report.returncode == result.returncode == 1
    why = "no GPU work in the file, though kernels were launched"
    assert why in report.stderr
    assert why in result.stderr


def test_ranks_without_a_source_are_counted(tmp_path: Path) -> None:
    """One whose log is empty, and one without a log; the share is that of the whole run."""
    write_logs(tmp_path / "logs", JOBS["tensor and data parallel"])
    (tmp_path / "logs" / "machine1" / "workerlog.3").unlink()
    (tmp_path / "logs" / "machine1" / "workerlog.5").write_text("no record")
    done = command("overview", tmp_path / "logs", "--json", "--pp", 2, "--tp", 2, "--dp", 4, "--jobs", 1)
    assert done.returncode == 3
    result = json.loads(done.stdout)
    assert (result["ranks"], result["missing_ranks"], result["unread"]) == (14, 2, 1)
    assert result["verdict"][-1]["text"] == "2 of 16 ranks (12.50%) are missing here."


SOUND = data_parallel.Job(replicas=1, steps=8, jitter=0.02, launch=200_000, unsteady=0.5)


@pytest.mark.parametrize(
    "job",
    [
        replace(SOUND, stages=8, microbatches=4, seed=1),
        replace(SOUND, stages=8, microbatches=6, seed=1),
        replace(SOUND, stages=4, microbatches=2, seed=3),
        replace(SOUND, stages=6, microbatches=4, replicas=2, steps=2, jitter=0.03, launch=100_000, seed=105),
    ],
)
def test_no_link_of_a_sound_run_is_slow(job: data_parallel.Job, tmp_path: Path) -> None:
    """Nothing records the transfers: their lengths are guessed, and differ by how late the ranks are by themselves. Of
    two replicas each link has one peer."""
    data_parallel.write_paddle(tmp_path, job)
    assert trace_export.overview(tmp_path, formats=None).overview.exceptions.is_empty()


def test_a_replica_that_lacks_a_rank_has_no_other_settings(tmp_path: Path) -> None:
    job = data_parallel.Job(replicas=4, jitter=0.02)
    data_parallel.write_paddle(tmp_path, job)
    (tmp_path / f"workerlog.{job.rank(2, 1)}").unlink()
    result = trace_export.overview(tmp_path, formats=None).overview
    assert result.missing_ranks == 1
    assert result.exceptions.is_empty()
    assert "All 4 replicas behave alike." in said(result)


def test_the_ranks_of_another_run_are_not_missing(tmp_path: Path) -> None:
    """The run of two ranks wrote over the files of two of four ranks; `report` says the same."""
    for job, at in ((data_parallel.Job(replicas=1), 0), (data_parallel.Job(stages=2, replicas=1), 3600)):
        data_parallel.write_kineto(tmp_path / str(at), job)
        for rank, path in enumerate(sorted((tmp_path / str(at)).glob("*.json"))):
            content = path.read_text().replace("1760000000000000000", str(1760000000000000000 + at * 10**9))
            (tmp_path / f"rank-{rank}.json").write_text(content)
            path.unlink()
    result = trace_export.overview(tmp_path, formats=None).overview
    assert (result.ranks["rank"].to_list(), result.missing_ranks) == ([0, 1], 0)


def test_a_stage_that_is_missing_counts(tmp_path: Path) -> None:
    job = data_parallel.Job(replicas=2, steps=2, jitter=0.02)
    data_parallel.write_kineto(tmp_path, job)
    for rank in job.lane(0, 2) + job.lane(1, 2):
        (tmp_path / f"node0_{700 + rank}.1760000000000000000.pt.trace.json").unlink()
    result = trace_export.overview(tmp_path, formats=None).overview
    assert words.heading(result) == "6 ranks on 1 host: 2 replicas of 3 of 4 stages, 2 steps"
    assert "2 of 8 ranks (25.00%) are missing here." in said(result)
    one = min(tmp_path.glob("*.json"))
    for path in set(tmp_path.glob("*.json")) - {one}:
        path.unlink()
    assert "7 of 8 ranks (87.50%) are missing here." in said(trace_export.overview(tmp_path, formats=None).overview)


def test_some_ranks_are_read_alone(planted: tuple[Path, ManyRanks], tmp_path: Path) -> None:
    folder, run = planted
    ranks = [run.rank(0, 5, 1), run.rank(2, 7, 0)]
    result = trace_export.overview(folder, formats=None, ranks=ranks, steps=1, jobs=1).overview
    assert result.replicas["replica"].to_list() == [5, 7]
    assert result.ranks["rank"].to_list() == ranks
    assert result.cells["step"].unique().to_list() == [1]


def test_of_a_source_of_several_ranks_those_asked_for_are_read(tmp_path: Path) -> None:
    """Two replicas of two hosts, so that each table has a rank of both."""
    run = ManyRanks(stages=2, tensor=2, replicas=1, microbatches=2, steps=1)
    write(tmp_path / "logs", run)
    for table in (tmp_path / "logs").rglob("*.parquet"):
        frame = pl.read_parquet(table)
        frame.with_columns(dp=pl.col("tp"), tp=pl.lit(0, pl.Int32)).write_parquet(table)
    result = trace_export.overview(tmp_path / "logs", formats=None, ranks=[1], jobs=1).overview
    assert result.unread == 0
    assert result.ranks.select("rank", "replica").rows() == [(1, 1)]


def test_json_writes_only_the_files_that_are_asked_for(tmp_path: Path) -> None:
    logs, out = tmp_path / "logs", tmp_path / "out"
    write_logs(logs, JOBS["tensor and data parallel"])
    sizes, before = ("--pp", 2, "--tp", 2, "--dp", 4, "--jobs", 1), sorted(logs.rglob("*"))
    assert command("overview", logs, "--json", *sizes).returncode == 0
    assert sorted(logs.rglob("*")) == before
    assert command("overview", logs, "--json", "--out", out, *sizes).returncode == 0
    assert {path.name for path in out.iterdir()} == {"pipeline_overview.html"}
    assert trace_export.overview(logs, formats=None, pp=2, tp=2, dp=4, jobs=1).files == ()
    assert sorted(logs.rglob("*")) == before


def test_json_has_the_figures_of_the_tables(one_of_each: Path, tmp_path: Path) -> None:
    """With the sizes as specified, where the tests above take those that were recorded; whatever the number of
    processes."""
    words = ("--format", "html,parquet", "--json", "--pp", FEW.stages, "--tp", FEW.tensor)
    done = command("overview", one_of_each, "--out", tmp_path, "--jobs", 1, *words)
    assert command("overview", one_of_each, "--out", tmp_path / "two", "--jobs", 2, *words).returncode == 0
    by_two = {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    assert by_two == {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert len(by_two) == 12
    document = json.loads(done.stdout)
    assert done.returncode == 0
    assert document["ranks"] == FEW.ranks
    exceptions = pl.read_parquet(tmp_path / "pipeline_overview.exceptions.parquet")
    check(exceptions, ONE_OF_EACH)
    assert document["exceptions"] == exceptions.to_dicts()
    said = next(sentence["text"] for sentence in document["verdict"] if sentence["code"] == "exceptions")
    link = " → ".join(map(str, ONE_OF_EACH.planted.links[0]))
    assert said == (
        "Unlike their peers: 1 replica with other settings (replica 4), 1 slow rank"
        f" (rank {ONE_OF_EACH.planted.ranks[0]}), 1 slow link (rank {link})"
        f" and 1 host with a drifting clock ({ONE_OF_EACH.planted.hosts[0]})."
    )


def test_one_table_is_read_whole(tmp_path: Path) -> None:
    write_logs(tmp_path / "logs", JOBS["one replica"])
    api.export(tmp_path / "logs", tmp_path / "blocks.parquet", "parquet")
    result, logs = (
        trace_export.overview(tmp_path / name, formats=None, jobs=1).overview for name in ("blocks.parquet", "logs")
    )
    assert_frame_equal(result.steps.drop("run"), logs.steps.drop("run"))
    with pytest.raises(trace_export.UsageError, match="is one table, so its replicas cannot be read apart"):
        trace_export.overview(tmp_path / "blocks.parquet", tmp_path, replica=1)


def test_a_replica_alone_is_as_in_the_whole_run(tmp_path: Path) -> None:
    """With the sizes of the whole run, which cannot be seen in a part of it."""
    write_logs(tmp_path / "logs", JOBS["tensor and data parallel"])
    whole = trace_export.load(tmp_path / "logs", jobs=1)
    part = trace_export.load(tmp_path / "logs", replica=2, jobs=1)
    ranks = whole.ranks.filter(pl.col("dp") == 2)
    left_out = ["cp", "replica", "stage_origin"]  # of a size that is not known; counted in what was read; as sampled
    assert_frame_equal(part.ranks.drop(left_out), ranks.drop(left_out))
    blocks = whole.spans.filter(pl.col("rank").is_in(ranks["rank"].implode()))
    assert_frame_equal(part.spans.drop("id"), blocks.drop("id"))


def test_a_replica_alone_opens_only_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trace_export.scale.places.SOURCES_SAMPLED", 1)
    write_logs(tmp_path / "logs", JOBS["tensor and data parallel"])
    for worker in (4, 5):  # of replica 1
        (tmp_path / "logs" / "machine0" / f"workerlog.{worker}").write_text("no record")
    sizes = {"pp": 2, "tp": 2}
    assert trace_export.load(tmp_path / "logs", replica=2, **sizes).failures == ()  # type: ignore[arg-type]
    assert len(trace_export.load(tmp_path / "logs", **sizes).failures) == 2  # type: ignore[arg-type]


def test_a_replica_that_is_not_there_is_refused(planted: tuple[Path, ManyRanks]) -> None:
    done = command("report", planted[0], "--replica", 99)
    assert done.returncode == 2
    assert "--replica: there is no replica 99; choose from replicas 0-11" in done.stderr


def test_a_report_of_many_ranks_has_an_overview_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trace_export.scale.requests.CHART_RANKS", 32)
    run = ManyRanks(stages=2, tensor=4, replicas=5, microbatches=2, steps=1)
    write(tmp_path / "logs", run)
    done = api.report(tmp_path / "logs", tmp_path / "out" / "why.html", html=True, jobs=1)
    assert [path.name for path in done.files] == ["why.html", "pipeline_overview.html"]
    assert '<a href="pipeline_overview.html">' in done.files[0].read_text(encoding="utf-8")
    page = done.files[1].read_text(encoding="utf-8")
    assert "40 ranks on 10 hosts: 5 replicas of 2 stages, 1 step" in page
    few = api.report(tmp_path / "logs", tmp_path / "few.html", html=True, ranks="0-31", jobs=1)
    assert [path.name for path in few.files] == ["few.html"]


def test_times_of_the_host_are_said(samples: Path) -> None:
    for host in (False, True):
        made = trace_export.overview(samples / "nsys" / "two_hosts", formats=None, host_ranges=host, jobs=1)
        assert ("in times of the host" in " ".join(said(made.overview))) is host


REPLICAS = 12


def test_replicas_whose_newest_complete_runs_differ_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second start of the job died before one rank of the last replica had written anything. The replicas are read
    in several parts."""
    monkeypatch.setattr(parts, "RANKS_A_PART", 8)
    for run in range(2):
        job = Job(2, 2, range(1, 3), data=REPLICAS, machines=REPLICAS, clock_errors_us=(0,) * REPLICAS)
        blocks = [
            replace(b, start_ns=b.start_ns + run * 600 * 10**9, end_ns=b.end_ns + run * 600 * 10**9)
            for b in job.blocks()
        ]
        for rank in range(2 * REPLICAS - run):
            place = tmp_path / f"machine{rank // 2}" / f"workerlog.{rank % 2}"
            place.parent.mkdir(exist_ok=True)
            with place.open("a") as file:
                file.write(log(job, blocks, rank, 22300 + 1000 * run))
    for run, told in (("latest", True), (1, False)):
        wanted = Request(load_options(tmp_path, {"pp": 2, "tp": 1, "dp": REPLICAS, "run": run, "jobs": 1}))
        result = overview(wanted, look(wanted.source), whole_ranks=8)
        assert ("replicas-of-runs" in {note.code for note in result.notes}) is told
