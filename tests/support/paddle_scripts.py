"""What PaddlePaddle's own scripts leave of a job beside its logs: `profiler_helper_static.py` of 2.6 to 3.3 from worker
logs, `profiler_helper.py` from the records of dynamic graphs. Written anew after a description of both."""

import json
import re
from pathlib import Path

from samples.generators.paddle import Job

COLOURS = {
    "forward": "thread_state_running", "backward": "rail_idle", "optimizer": "rail_response",
    "default": "thread_state_unknown",
}  # fmt: skip
STEP_THREAD, FIRST_THREAD = 2333, 2334


def write_static(folder: Path, job: Job) -> tuple[Path, Path]:
    """`pipeline_profile.json` and `pipeline_profile_perfetto.json` of a job with machines; both paths."""
    events: list[dict[str, object]] = []
    threads = {}
    for rank in range(job.ranks):
        machine, worker = divmod(rank, job.workers)
        place = f"(machine:{machine})" if job.machines > 1 else ""
        threads[f"GPU{worker}{place}"] = FIRST_THREAD + rank, f"GPU:{worker}{place}"
        for block in job.blocks():
            if block.rank == rank:
                kind, times = job.type(block), (block.start_ns / 1000, block.end_ns / 1000)
                common = {"name": f"{kind}_{block.microbatch or 0}", "cat": kind}
                end = {"tid": f"GPU{worker}{place}"} | ({"cname": COLOURS[kind]} if kind in COLOURS else {})
                events.append({**common, "ph": "B", "ts": times[0], "pid": 0, **end})
                events.append({**common, "ph": "E", "pid": 0, "ts": times[1], **end})
    for step in job.steps:
        times = [t / 1000 for b in job.blocks() if b.step == step for t in (b.start_ns, b.end_ns)]
        for phase, time in (("B", min(times)), ("E", max(times))):
            common = {"name": f"step{step}", "cat": "step", "ph": phase, "ts": time, "pid": 0, "tid": "Step"}
            events.append({**common, "cname": COLOURS["default"]})
    chart, copy = folder / "pipeline_profile.json", folder / "pipeline_profile_perfetto.json"
    chart.write_text(json.dumps({"traceEvents": events}))
    names = [(STEP_THREAD, "STEP"), *threads.values()]
    named = [
        {"args": {"name": n}, "cat": "__metadata", "name": "thread_name", "ph": "M", "pid": 0, "tid": tid, "ts": 0}
        for tid, n in names
    ]
    text = json.dumps({"traceEvents": events + named}).replace('"Step"', str(STEP_THREAD))
    for name, (tid, _) in threads.items():
        text = text.replace(f'"{name}"', str(tid))
    copy.write_text(text)
    return chart, copy


def write_dynamic(folder: Path) -> Path:
    """`pipeline_profile.json` of the records in a folder."""
    lines = [line for path in sorted(folder.glob("profile_record*")) for line in path.read_text().splitlines()]
    colours = [re.sub(r'"cname": "\w+"', '"cname": "rail_idle"', line) if '"B' in line[:11] else line for line in lines]
    chart = folder / "pipeline_profile.json"
    chart.write_text("[ " + ",\n".join(colours) + " ]\n")
    return chart
