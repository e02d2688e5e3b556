"""The time of a step in training logs; each line is written as its framework prints it."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from trace_export.analysis.train_log import StepTimes, step_times
from trace_export.errors import SourceError

MS = 1_000_000


def megatron(step: int, ms: float, batch: int = 512, skipped: int = 0) -> str:
    return (
        f" [2025-10-02 22:54:30.123456] iteration {step:8d}/     500 | consumed samples: {step * batch:12d}"
        f" | elapsed time per iteration (ms): {ms:.1f} | learning rate: 2.6E-04 | global batch size: {batch:5d}"
        f" | lm loss: 8.79E-02 | number of skipped iterations: {skipped:3d} | number of nan iterations:   0 |"
    )


def mindspeed(step: int, ms: float) -> str:
    return f"iteration: {step} | consumed samples: {8 * step} | elapsed time per iteration (ms): {ms:.1f} | loss: 2.1 |"


def nemo(step: int, ms: float) -> str:
    return f"Training epoch 0, iteration {step - 1}/99 | lr: 3e-05 | train_step_timing in s: {ms / 1000:.4g} | loss: 9"


def deepspeed(step: int, ms: float) -> str:
    return f"steps: {step} loss: 2.3456 iter time (s): {ms / 1000:.3f} samples/sec: 51.867"


def mindformers(step: int, ms: float) -> str:
    epoch, within = divmod(step - 1, 4)
    return (
        f"2025-07-24 08:16:36,123 - mindformers - INFO - {{ Epoch:[{epoch + 1:3d}/  9], step:[{within + 1:5d}/    4],"
        f" loss: 5.123, per_step_time: {ms:.0f}ms, lr: 1e-05, overflow cond: False }}"
    )


def colossal(step: int, ms: float) -> str:
    return f"[{step}/100] Loss:2.345, Step time: {ms / 1000:.3f}s, TFLOPS: 42.123, FWD time: 0.1s"


def stated(log: Path, lines: Iterable[str]) -> StepTimes:
    """What a log of these lines, which is written there, says that a step takes."""
    log.write_text("\n".join(lines), encoding="utf-8")
    result = step_times(log)
    assert result is not None
    return result


@pytest.mark.parametrize("line", [megatron, mindspeed, nemo, deepspeed, mindformers, colossal])
def test_a_line_states_the_time_of_a_step(line: Callable[[int, float], str], tmp_path: Path) -> None:
    times = [9_000, 4_000, 8_300, 8_310, 11_060, 8_320, 8_305, 8_310, 8_315]
    text = "\n".join(["other text", *(f"[default7]:{line(step, ms)}" for step, ms in enumerate(times, 1))])
    (tmp_path / "train.log").write_text(text, encoding="utf-8")
    result = step_times(tmp_path / "train.log")
    assert result is not None
    assert result.step_ns == pytest.approx(8_310 * MS)
    assert result.deviation_ns == pytest.approx(1.4826 * 5 * MS)
    assert (result.lines, result.stated) == (7, 9)


def test_lines_of_torchtitan_state_when_and_not_how_long(tmp_path: Path) -> None:
    """One of four ranks prints each step twice; a line covers two steps."""
    lines = []
    for n in range(9):
        at = f"2026-08-21 12:00:{2 * n:02d},{100 + n:03d}"
        line = f"[titan] {at} - root - INFO - \x1b[31mstep: {2 * n:2d}  \x1b[32mloss:  7.12  memory: 47GiB  tps: 5,432"
        lines += [line, line.replace("root", "other"), line.replace("step", "validate step")]
    (tmp_path / "log").write_text("\n".join(lines), encoding="utf-8")
    result = step_times(tmp_path / "log")
    assert result is None  # each line comes after a validation
    result = stated(tmp_path / "log", [line for line in lines if "validate" not in line])
    assert result.step_ns == pytest.approx(1_000.5 * MS)
    assert (result.lines, result.stated) == (7, 9)


def test_lines_of_paddle_state_the_time_of_all_steps_since_the_line_before(tmp_path: Path) -> None:
    lines = [
        f"[2024-05-01 12:00:00,123] [    INFO] - loss: 12.06, global_step: {10 * n}, interval_runtime: 11.518,"
        " interval_samples_per_second: 0.868, interval_steps_per_second: 0.868, progress_or_epoch: 0.0"
        for n in range(1, 9)
    ]
    result = stated(tmp_path / "workerlog.0", lines)
    assert result.step_ns == pytest.approx(1_151.8 * MS)


@pytest.mark.parametrize(
    "between",
    [
        "validation loss at iteration 30 | lm loss value: 1.0 |", "saving checkpoint at iteration 30 to /ckpt",
        "Generating 'nsys-report-1234.qdstrm'", "Dumping profiler traces at step 30",
        "Saving model checkpoint to ./out/checkpoint-30", "......Saving ckpt......", "***** Running Evaluation *****",
        "Saving the checkpoint (or staging if async is enabled).", "[Torch] Saving ./ckpt/mp_00_model_states.pt...",
        "Finished saving the checkpoint in 4.22 seconds.",
    ],
)  # fmt: skip
def test_what_is_done_beside_training_leaves_a_line_out(between: str, tmp_path: Path) -> None:
    """Five of the lines come after it, and take twice as long."""
    lines = []
    for step in range(1, 13):
        disturbed = step > 2 and step % 2
        lines += [between] if disturbed else []
        lines.append(megatron(step, 2_000 if disturbed else 1_000))
    result = stated(tmp_path / "log", lines)
    assert (result.step_ns, result.lines) == (1_000 * MS, 5)


def test_profiled_steps_are_left_out_though_they_are_most(tmp_path: Path) -> None:
    lines = [megatron(step, 2_000 if 8 <= step < 30 else 1_000) for step in range(1, 33)]
    lines[29:29] = ["Capture range ended in the application.", "Generating 'nsys-report-1.qdstrm'"]
    lines[7:7] = ["Capture range started in the application."]
    result = stated(tmp_path / "log", lines)
    assert (result.step_ns, result.lines, result.steps) == (1_000 * MS, 7, 32)


@pytest.mark.parametrize("line", [megatron, colossal, deepspeed])
@pytest.mark.parametrize(
    "written",
    [
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.replace("\n", "\r").encode(),
        lambda text: text.replace("\n", "\r\n").encode("utf-16"),
        lambda text: text.replace("time", "\x1b[1;31mtime\x1b[0m\x1b[K").encode(),
        lambda text: ("\0 caf\xe9 \xff\xfe\n" + text).encode("latin-1"),
        lambda text: "\n".join(f"[rank{r}]:{each}" for each in text.split("\n") for r in (1, 0)).encode(),
        lambda text: text.encode() + b"\n" + 9_999 * b"iteration 3 | [3/9] steps: 3 loss: ",
    ],
    ids=["CRLF", "CR", "UTF-16", "colours", "latin", "ranks", "long line"],
)
def test_logs_as_terminals_and_launchers_leave_them(
    written: Callable[[str], bytes], line: Callable[[int, float], str], tmp_path: Path
) -> None:
    (tmp_path / "log").write_bytes(written("\n".join(line(n, 1_000 if n > 2 else 5_000) for n in range(1, 12))))
    result = step_times(tmp_path / "log")
    assert result is not None
    assert (result.step_ns, result.lines) == (1_000 * MS, 9)


def test_ranks_whose_lines_come_late_and_a_second_start(tmp_path: Path) -> None:
    """Each of three ranks prints a line of torchtitan up to 1.6 s late; after a crash the steps begin anew at 6. Only
    a step that some rank states late may be off."""
    lines = []
    for first, at in ((1, 0), (6, 90)):
        rows = sorted((n + (n * 7 + r * 5) % 9 / 5, r, n) for n in range(first, first + 16) for r in range(3))
        lines += [
            f"[rank{r}]:[titan] 2026-08-21 12:{(at + n) // 60:02d}:{(at + n) % 60:02d},000 - root - INFO - step: {n:2d}"
            "  loss:  7.12  memory: 47GiB  tps: 5,432"
            for _, r, n in rows
        ]
    result = stated(tmp_path / "log", lines)
    assert (result.step_ns, result.deviation_ns) == (1_000 * MS, 0)


def test_lines_of_the_first_rank_of_megatron_bridge_state_no_step(tmp_path: Path) -> None:
    text = [f"Step Time : {5 if n < 2 else 14.26}s GPU utilization: 58.2MODEL_TFLOP/s/GPU" for n in range(9)]
    result = stated(tmp_path / "log", text)
    assert (result.framework, result.step_ns, result.lines) == ("Megatron-Bridge", 14_260 * MS, 7)
    both = [part for n, each in enumerate(text, 1) for part in (each, megatron(n, 14_300))]
    result = stated(tmp_path / "log", both)
    assert (result.framework, result.step_ns) == ("Megatron-LM", 14_300 * MS)


def test_lines_of_the_engine_of_deepspeed_state_when(tmp_path: Path) -> None:
    text = [
        f"[2024-03-01 12:00:{2 * n:02d},123] [INFO] [timer.py:258:stop] epoch=0/micro_step=8/global_step={10 * n}"
        ", RunningAvgSamplesPerSec=12.3, CurrSamplesPerSec=12.4, MemAllocated=10.2GB"
        for n in range(1, 12)
    ]
    result = stated(tmp_path / "log", text)
    assert (result.framework, result.step_ns, result.lines) == ("DeepSpeed", 200 * MS, 9)


@pytest.mark.parametrize(("shown", "instead"), [("1000.0", "0.0"), ("1000.0", "1.0.0"), ("2025", "0")])
def test_times_that_are_none(shown: str, instead: str, tmp_path: Path) -> None:
    lines = [megatron(step, 1_000).replace(shown, instead) for step in range(1, 20)]
    (tmp_path / "log").write_text("\n".join([*lines[:9], megatron(10, 1_000), *lines[10:]]), encoding="utf-8")
    result = step_times(tmp_path / "log")
    assert (result is None) == (shown == "1000.0")


def test_other_batch_sizes_skipped_iterations_and_the_start_of_each_run_are_left_out(tmp_path: Path) -> None:
    first = [megatron(step, 500, batch=256) for step in range(1, 6)]
    again = [megatron(step, 9_000) for step in (3, 4)] + [megatron(step, 1_000) for step in range(5, 10)]
    result = stated(tmp_path / "log", [*first, *again, megatron(10, 3_000, skipped=1)])
    assert (result.step_ns, result.deviation_ns, result.lines) == (1_000 * MS, 0, 5)


def test_too_few_lines_give_no_time(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n".join(megatron(step, 1_000) for step in range(1, 7)), encoding="utf-8")
    assert step_times(tmp_path / "log") is None


def test_a_log_without_such_a_line_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("epoch 1\n", encoding="utf-8")
    with pytest.raises(SourceError, match="no line that states the time of a step"):
        step_times(tmp_path / "log")
    with pytest.raises(SourceError, match="cannot be read"):
        step_times(tmp_path / "none")
