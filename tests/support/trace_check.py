"""Whether a written trace holds all of its chart: what the trace processor finds, compared with the chart."""

from pathlib import Path

import polars as pl

from tests.support.trace_processor import TraceProcessor
from trace_export.chart.chart import Chart, Track

KEYS = ["track", "slices", "busy_ns", "first_ns", "last_ns"]

# A track of a Perfetto trace keeps the id that the file gave it, a thread of a JSON trace has it as its number.
_FOUND = """
    select coalesce(extract_arg(t.source_arg_set_id, 'trace_id'), h.tid) track, count(*) slices, sum(s.dur) busy_ns,
      min(s.ts) first_ns, max(s.ts + s.dur) last_ns
    from slice s join track t on s.track_id = t.id
      left join thread_track of on of.id = t.id left join thread h on h.utid = of.utid
    group by 1"""


def differences(chart: Chart, path: Path) -> list[str]:
    """Compares the trace at `path` (Perfetto or Chrome) with the chart it was written from.

    Per track: number of slices, sum of durations, first and last time; of the whole: arrows, counter samples, slices
    without end or name, and the trace processor's statistics of errors and lost data. Returns a sentence per
    difference, so an empty list is a good file. Raises TraceProcessorError when the file cannot be loaded.
    """
    expected, tracks, arrows, samples = _expected(chart)
    with TraceProcessor(path) as processor:
        result = _per_track(processor.query(_FOUND), tracks)
        wrong = _differing(expected, result, tracks)
        counts = {
            "arrows": ("select count(*) n from flow", arrows),
            "counter samples": ("select count(*) n from counter", samples),
            "slices without an end": ("select count(*) n from slice where dur < 0", 0),
            "slices without a name": ("select count(*) n from slice where name is null", 0),
        }
        for what, (sql, wanted) in counts.items():
            if (n := processor.query(sql).item()) != wanted:
                wrong.append(f"{what}: {n} in the file, {wanted} expected")
        for name, severity, value in processor.problems().iter_rows():
            wrong.append(f"the trace processor counts {value} × {name} ({severity})")
    return wrong


def _expected(chart: Chart) -> tuple[pl.DataFrame, dict[int, Track], int, int]:
    """Per track what is to be found (`KEYS`), the track that each lane belongs to, and the numbers of arrows and
    counter samples."""
    frames, arrows, samples = [], 0, 0
    rows: dict[tuple[int | None, str], Track] = {}
    tracks: dict[int, Track] = {}
    for part in chart.parts():
        tracks |= {track.id: rows.setdefault((track.parent, track.name), track) for track in part.tracks}
        marks = part.instants.select("track", start_ns="ts_ns", end_ns="ts_ns")
        both = pl.concat([part.slices.select("track", "start_ns", "end_ns"), marks])
        frames.append(both.group_by("track").agg(*_facts(chart.origin_ns)))
        if "flow_out" in part.slices.columns:
            arrows += int(part.slices["flow_out"].list.len().sum())
        samples += len(part.samples)
    return _per_track(pl.concat(frames), tracks), tracks, arrows, samples


def _facts(origin_ns: int) -> list[pl.Expr]:
    return [
        pl.len().alias("slices"),
        (pl.col("end_ns") - pl.col("start_ns")).sum().alias("busy_ns"),
        (pl.col("start_ns").min() - origin_ns).alias("first_ns"),
        (pl.col("end_ns").max() - origin_ns).alias("last_ns"),
    ]


def _per_track(lanes: pl.DataFrame, tracks: dict[int, Track]) -> pl.DataFrame:
    """The numbers of all lanes of a track together: which lane holds what is the trace processor's affair."""
    first = {lane: track.id for lane, track in tracks.items()}
    together = lanes.select(pl.col(KEYS).cast(pl.Int64)).with_columns(pl.col("track").replace(first))
    sums = [pl.col("slices", "busy_ns").sum(), pl.col("first_ns").min(), pl.col("last_ns").max()]
    return together.group_by("track").agg(sums).sort("track")


def _differing(expected: pl.DataFrame, result: pl.DataFrame, tracks: dict[int, Track]) -> list[str]:
    """A sentence for each number of each track that is not as expected."""
    both = expected.join(result, on="track", how="full", coalesce=True).sort("track").fill_null(0)
    words = {"slices": "slices", "busy_ns": "ns in slices", "first_ns": "ns to the first", "last_ns": "ns to the last"}
    return [
        f'track "{tracks[row["track"]].name if row["track"] in tracks else "?"}": '
        f"{row[f'{key}_right']} {text} in the file, {row[key]} expected"
        for row in both.iter_rows(named=True)
        for key, text in words.items()
        if row[key] != row[f"{key}_right"]
    ]
