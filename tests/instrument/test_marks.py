"""The marks: what they say, that the readers understand them, and that they never disturb the program they mark."""

import ast
import importlib
import json
import os
import subprocess
import sys
import textwrap
import threading
import types
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trace_export.instrument as ti
from tests.conftest import Cli
from tests.support.wait import HANGS_S
from trace_export.instrument import marks
from trace_export.instrument.backends import choose, mstx
from trace_export.instrument.backends.recorder import Recorder
from trace_export.instrument.frameworks import megatron, patching
from trace_export.instrument.imports import when_imported
from trace_export.instrument.marks import Mark, Where, text
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.rules import OWN

DIALECTS = Dialects()
ROOT = Path(__file__).resolve().parents[2]
STARTUP = ROOT / "trace_export" / "instrument" / "startup"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process in which nothing has been marked yet, and no launcher has named a rank."""
    for name in (*marks.RANK_VARIABLES, "TRACE_EXPORT_MARKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(marks, "state", marks._State())
    marks._thread.block = None
    yield
    marks._thread.block = None


@pytest.fixture
def recorder() -> Recorder:
    recorder = Recorder()
    marks.state.backend = recorder
    return recorder


def said(recorder: Recorder) -> list[str]:
    return [text(m.mark, m.where).removeprefix("te:") for m in recorder.marks]


# --- what a mark says

numbers = st.none() | st.integers(0, 10**6)
chunks = st.none() | st.integers(0, 99)
kinds = st.sampled_from(["F", "B", "W", "FB", "OPT"])
blocks = st.builds(lambda *given: Mark(*given), kinds, numbers, chunks, numbers, chunks)
NOWHERE = Where(None, None, None, "")


def located(stage: int | None, step: int | None, rank: int | None) -> Where:
    """As a process at that place would have it."""
    marks.state = marks._State()
    marks.state.step = step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(marks, "global_rank", lambda: rank)
        return marks._locate(stage)


places = st.builds(located, numbers, numbers, numbers)


def meaning(said: str) -> dict[str, Any]:
    """The reader's non-null fields of one text."""
    (row,) = DIALECTS.parse(pl.Series([said])).names.rows(named=True)
    return {k: v for k, v in row.items() if v is not None and k not in ("text", "dialect")}


def fields(mark: Mark, where: Where) -> dict[str, Any]:
    """What a reader should get from `mark`: an optimizer has no micro-batch, only a pair a second one."""
    keys: tuple[str, ...] = ("kind",) if mark.kind == "OPT" else ("kind", "microbatch", "chunk")
    keys += ("microbatch_b", "chunk_b") if mark.kind == "FB" else ()
    result = {"role": "block", "place": where.stage, "step": where.step, "rank": where.rank}
    result |= {k: getattr(mark, k) for k in keys}
    return {k: v for k, v in result.items() if v is not None}


@settings(max_examples=50, deadline=None)
@given(blocks, places)
def test_the_readers_understand_every_text(mark: Mark, where: Where) -> None:
    assert meaning(text(mark, where)) == fields(mark, where)
    assert DIALECTS.parse(pl.Series([text(mark, where)])).names["dialect"].to_list() == [OWN]


@settings(max_examples=50, deadline=None)
@given(blocks, places)
def test_the_readers_understand_every_mstx_message(mark: Mark, where: Where) -> None:
    if mark.kind != "FB":
        mark = mark._replace(microbatch_b=None, chunk_b=None)
    if mark.kind == "OPT":
        mark = mark._replace(microbatch=None, chunk=None)
    written = mstx.message(mark, where)
    result, whole = meaning(written), fields(mark, where)
    assert len(written.encode()) <= 128
    assert result.items() <= whole.items()
    names = {"step": "step", "place": "stage", "rank": "rank"}  # what may be left out, the last first
    lost = [field for field in names if field in whole.keys() - result.keys()]
    assert whole.keys() - result.keys() == set(lost)
    assert [field for field in names if field in whole][-len(lost) :] == lost or not lost
    if lost:
        assert len(str(ast.literal_eval(written) | {names[lost[0]]: whole[lost[0]]})) > 128


def test_texts_are_short_to_read() -> None:
    assert text(Mark("F", 3, 1), located(0, 7, 5)) == "te:F3.1 stage=0 step=7 rank=5"
    assert text(Mark("FB", 5, 0, 2, 1), NOWHERE) == "te:F5.0+B2.1"
    assert text(Mark("W", chunk=1), NOWHERE) == "te:W?.1"
    assert text(Mark("OPT"), located(None, 2, None)) == "te:Optimizer step=2"
    assert meaning("te:Step step=7 rank=5") == {"role": "step", "step": 7, "rank": 5}


def test_mstx_messages_have_the_form_of_ascends_guide() -> None:
    message = mstx.message(Mark("F", 3, 0, name="forward_step_with_model_graph"), located(1, 7, 5))
    assert ast.literal_eval(message) == {
        "name": "forward_step_with_model_graph", "current_microbatch": 3, "chunk": 0, "stage": 1, "step": 7, "rank": 5,
    }  # fmt: skip
    assert ast.literal_eval(mstx.message(Mark("FB", 5, 0, 2, 1), NOWHERE))["name"] == "forward_backward_overlaping"
    assert meaning(mstx.message(Mark("STEP"), located(None, 7, None))) == {"role": "step", "step": 7}


@pytest.mark.parametrize("near", ["te:F3.0 stage=1 x", " te:F3", "te:X3", "te:F3.0.0", "te:F3 rank=1 step=2", "te:"])
def test_other_texts_are_not_taken_for_marks(near: str) -> None:
    assert DIALECTS.parse(pl.Series([near])).names.height == 0


# --- one's own loop


def test_blocks_carry_numbers_step_and_rank(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    with ti.step(7):
        with ti.forward(microbatch=3, chunk=1, stage=0):
            pass
        with ti.backward(microbatch=3), ti.optimizer():
            pass
        with ti.weight():
            pass
        with ti.forward_backward(5, 0, 2, 1):
            pass
        with ti.optimizer():
            pass
    assert said(recorder) == [
        "F3.1 stage=0 step=7 rank=5", "B3 stage=0 step=7 rank=5", "W stage=0 step=7 rank=5",
        "F5.0+B2.1 stage=0 step=7 rank=5", "Optimizer stage=0 step=7 rank=5", "Step step=7 rank=5",
    ]  # fmt: skip


def test_host_times_enclose_the_work(recorder: Recorder) -> None:
    for i in range(3):
        with ti.forward(microbatch=i):
            pass
    times = [t for m in recorder.marks for t in (m.start_ns, m.end_ns)]
    assert times == sorted(times)


def test_decorators_take_numbers_from_the_call(recorder: Recorder) -> None:
    @ti.forward(microbatch="i", chunk=1)
    def run(batch: str, i: int = 9) -> str:
        """Its own words."""
        return batch + str(i)

    assert (run("x", 3), run("y"), run(i=4, batch="z")) == ("x3", "y9", "z4")
    assert run.__doc__ == "Its own words."
    assert said(recorder) == ["F3.1", "F9.1", "F4.1"]
    with pytest.raises(TypeError, match=r"run\(\) has no parameter j"):
        ti.forward(microbatch="j")(run)


def test_the_outermost_block_wins_on_each_thread(recorder: Recorder) -> None:
    def other() -> None:
        with ti.backward(microbatch=1):
            pass

    with ti.forward(microbatch=0):
        with ti.weight(microbatch=0):
            pass
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert said(recorder) == ["B1", "F0"]


def test_a_block_ends_when_the_work_fails(recorder: Recorder) -> None:
    with pytest.raises(ZeroDivisionError), ti.forward(microbatch=0):
        raise ZeroDivisionError
    with ti.forward(microbatch=1):
        pass
    assert said(recorder) == ["F0", "F1"]


def test_a_lingering_block_ends_with_the_next(recorder: Recorder) -> None:
    first = marks.begin(Mark("OPT"), lingering=True)
    with ti.forward(microbatch=0):
        assert said(recorder) == ["Optimizer"]
    marks.end(first)
    assert said(recorder) == ["Optimizer", "F0"]


def test_steps_count_passes_unless_told(recorder: Recorder) -> None:
    owner = types.SimpleNamespace(run=lambda: ti.forward().__enter__().__exit__(None, None, None))
    patching.replace(owner, "run", patching.schedule_pass())
    owner.run()
    with ti.step(100):
        owner.run()
    owner.run()
    assert said(recorder) == ["F step=0", "F step=100", "Step step=100", "F step=2"]


# --- manners


class Broken:
    def begin(self, mark: Mark, where: Where) -> None:
        raise OSError("the profiler is gone")

    def end(self, token: None) -> None:
        raise AssertionError("never begun")


def test_a_failing_profiler_turns_the_marks_off(caplog: pytest.LogCaptureFixture) -> None:
    marks.state.backend = Broken()
    done = []
    for i in range(3):
        with ti.forward(microbatch=i):
            done.append(i)
    assert done == [0, 1, 2]
    assert [r.getMessage() for r in caplog.records] == [
        "trace_export: the marks are off from here on: OSError: the profiler is gone"
    ]


class Ending(BaseException):
    """What an embedding program may raise to end its interpreter; no Exception, as SystemExit is none."""


@pytest.mark.parametrize("error", [SystemExit(9), Ending("the end")])
@pytest.mark.parametrize("where", ["begin", "end"])
def test_a_profiler_that_ends_the_program_ends_the_marks_only(
    error: BaseException, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*given: object) -> None:
        raise error

    profiler = types.SimpleNamespace(begin=lambda mark, where: None, end=lambda token: None)
    marks.state.backend = profiler
    setattr(profiler, where, fail)
    with ti.step(1), ti.forward():
        pass
    assert [r.getMessage() for r in caplog.records] == [
        f"trace_export: the marks are off from here on: {type(error).__name__}: {error}"
    ]


def test_ctrl_c_and_a_signal_handler_that_exits_reach_the_program_through_a_mark() -> None:
    """The signal arrives while the profiler takes a mark: the handler is the training script's, and so is what it
    raises."""
    code = """
        import os, signal, sys
        import trace_export.instrument as ti

        class Slow:
            def begin(self, mark, where): os.kill(os.getpid(), getattr(signal, sys.argv[1]))
            def end(self, token): pass

        def leave(number, frame): sys.exit(7)

        signal.signal(signal.SIGTERM, leave)
        ti.auto(Slow())
        try:
            with ti.forward(): pass
        except KeyboardInterrupt:
            sys.exit(8)
    """
    for name, expected in (("SIGTERM", 7), ("SIGINT", 8)):
        done = python(code, name, PYTHONPATH=str(ROOT))
        assert (done.returncode, done.stderr) == (expected, "")


def test_without_a_profiler_there_is_one_sentence(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torch", "torch_npu", "mindspore", "paddle"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "nvtx", None)
    for _ in range(2):
        with ti.forward():
            pass
    assert len(caplog.records) == 1
    assert "no blocks are marked" in caplog.text


def test_an_unknown_kind_of_marks_is_a_sentence(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACE_EXPORT_MARKS", "nvxt")
    with ti.forward():
        pass
    assert '"nvxt" is not a kind of marks, choose from nvtx, torch, mstx, paddle, off' in caplog.text


def test_an_unknown_version_is_a_sentence(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = types.ModuleType("fake")
    fake.__version__ = "0.1"
    monkeypatch.setitem(sys.modules, "fake", fake)
    fake.forward_step = lambda data: data

    patching.guarded("fake", lambda m: patching.replace(m, "forward_step", patching.block(lambda: None), ("mb",)))(fake)
    patching.guarded("fake", lambda m: patching.replace(m, "gone", patching.block(lambda: None)))(fake)
    assert fake.forward_step("x") == "x"
    first, second = (r.getMessage() for r in caplog.records)
    assert first.startswith("trace_export: fake 0.1 is not one it knows (fake: forward_step has no parameter mb), so")
    assert "gone is missing" in second


def test_a_description_that_fails_leaves_the_work_alone(caplog: pytest.LogCaptureFixture, recorder: Recorder) -> None:
    owner = types.SimpleNamespace(run=lambda x: x + 1)
    patching.replace(owner, "run", patching.block(lambda x: Mark("F", x.missing)))
    assert [owner.run(1), owner.run(2)] == [2, 3]
    assert len(caplog.records) == 1
    assert recorder.marks == []


def test_the_step_of_each_optimizer_of_megatron_is_marked(recorder: Recorder) -> None:
    content = {"__module__": "optimizers", "step": lambda self: "stepped"}
    module: Any = types.ModuleType("optimizers")
    module.Adam, module.Chained = type("Adam", (), content), type("Chained", (), content)
    megatron.patch_optimizer(module)
    assert (module.Adam().step(), module.Chained().step()) == ("stepped", "stepped")
    assert said(recorder) == ["Optimizer"] * 2
    with pytest.raises(patching.UnknownVersion, match="no optimizer has a step"):
        megatron.patch_optimizer(types.ModuleType("empty"))


# --- the device libraries, as stubs that record the calls


def stub(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> Any:
    module = types.ModuleType(name)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_nvtx_through_torch_and_left_to_emit_nvtx(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    kind = ["NONE"]

    class Range:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            calls.append(f"enter {self.name}")

        def __exit__(self, *error: object) -> None:
            calls.append(f"exit {self.name}")

    push = types.SimpleNamespace(range_push=lambda n: calls.append(f"push {n}"), range_pop=lambda: calls.append("pop"))
    autograd = types.SimpleNamespace(
        _profiler_type=lambda: kind[0], ActiveProfilerType=types.SimpleNamespace(NVTX="NVTX")
    )
    stub(
        monkeypatch, "torch", cuda=types.SimpleNamespace(is_available=lambda: True, nvtx=push),
        version=types.SimpleNamespace(cuda="13.0", hip=None), _C=types.SimpleNamespace(_autograd=autograd),
    )  # fmt: skip
    stub(monkeypatch, "torch._C._profiler", _RecordFunctionFast=Range)
    stub(monkeypatch, "torch.autograd.profiler", record_function=Range)
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    with ti.forward(microbatch=0):
        pass
    kind[0] = "NVTX"
    with ti.forward(microbatch=1):
        pass
    assert calls == ["push te:F0", "enter te:F0", "exit te:F0", "pop", "enter te:F1", "exit te:F1"]


def test_nvtx_package_without_a_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    stub(monkeypatch, "nvtx", push_range=calls.append, pop_range=lambda: calls.append("pop"))
    for name in ("torch", "torch_npu", "mindspore", "paddle"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with ti.weight(microbatch=1):
        pass
    assert calls == ["te:W1", "pop"]


@pytest.mark.parametrize("framework", ["torch_npu", "mindspore"])
def test_mstx_on_the_current_stream(monkeypatch: pytest.MonkeyPatch, framework: str) -> None:
    calls: list[Any] = []
    handle = iter([11, 0, 13])
    api = types.SimpleNamespace(
        range_start=lambda message, stream: (calls.append((message, stream)), next(handle))[1], range_end=calls.append
    )
    for name in ("torch", "torch_npu", "mindspore"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    if framework == "torch_npu":
        stub(monkeypatch, "torch_npu", npu=types.SimpleNamespace(mstx=api, current_stream=lambda: "stream"))
    else:
        stub(monkeypatch, "mindspore", runtime=types.SimpleNamespace(current_stream=lambda: "stream"))
        stub(monkeypatch, "mindspore.profiler", mstx=api)
    with ti.step(4), ti.forward(microbatch=0), ti.backward():
        pass
    with ti.backward(microbatch=1):
        pass
    assert calls == [
        ("{'name': 'step 4', 'step': 4}", None),
        ("{'name': 'forward_step', 'current_microbatch': 0, 'step': 4}", "stream"),
        11,
        ("{'name': 'backward_step', 'current_microbatch': 1}", "stream"),
        13,
    ]


def test_paddle_record_events(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class RecordEvent:
        def __init__(self, name: str) -> None:
            self.name = name

        def begin(self) -> None:
            calls.append(f"begin {self.name}")

        def end(self) -> None:
            calls.append(f"end {self.name}")

    stub(monkeypatch, "paddle", device=types.SimpleNamespace(is_compiled_with_cuda=lambda: True))
    stub(monkeypatch, "paddle.profiler", RecordEvent=RecordEvent)
    core = {
        "nvprof_nvtx_push": lambda n: calls.append(f"push {n}"),
        "nvprof_nvtx_pop": lambda: calls.append("pop"),
    }
    stub(monkeypatch, "paddle.base.core", **core)
    backend = choose("paddle")
    assert backend is not None
    marks.state.backend = backend
    with ti.forward(microbatch=0):
        pass
    assert calls == ["push te:F0", "begin te:F0", "end te:F0", "pop"]


def test_marks_can_be_off_without_a_word(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("TRACE_EXPORT_MARKS", "off")
    with ti.forward():
        pass
    assert caplog.records == []


def test_a_backend_that_is_not_there_is_an_import_error() -> None:
    with pytest.raises(ImportError):
        choose("mstx")


# --- imports


def test_modules_are_patched_when_they_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "late_package").mkdir()
    (tmp_path / "late_package" / "__init__.py").write_text("from late_package.inner import answer\n")
    (tmp_path / "late_package" / "inner.py").write_text("def answer():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[str] = []

    def patch(module: types.ModuleType) -> None:
        seen.append(module.__name__)
        module.answer = lambda: 2  # type: ignore[attr-defined]

    when_imported("late_package.inner", patch)
    when_imported("never_there", patch)
    package = importlib.import_module("late_package")
    assert (seen, package.answer()) == (["late_package.inner"], 2)
    when_imported("late_package.inner", patch)
    assert seen == ["late_package.inner"] * 2
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("never_there")


class SealedLoader:
    """As a compiled loader may be: it takes no attributes, and it loads several modules."""

    __slots__ = ()

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module)["loaded_by"] = module.__loader__


class Finder:
    """Finds the modules whose names begin with its loader's."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self.loader) if name.startswith(type(self.loader).__name__) else None


def test_a_loader_that_takes_no_attributes_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The awaited module is patched, and not the other of the same loader; both see their loader as it is."""
    loader = SealedLoader()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder(loader)])
    seen: list[str] = []
    when_imported("SealedLoader_awaited", lambda module: seen.append(module.__name__))
    for name in ("SealedLoader_awaited", "SealedLoader_other"):
        module = importlib.import_module(name)
        monkeypatch.delitem(sys.modules, name)
        assert module.loaded_by is module.__loader__ is module.__spec__.loader is loader  # type: ignore[union-attr]
    assert seen == ["SealedLoader_awaited"]


def test_a_finder_that_fails_fails_as_it_would_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            if name == "found_by_nobody":
                raise LookupError("the index is damaged")

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Failing()])
    when_imported("found_by_nobody", lambda module: None)
    with pytest.raises(LookupError, match="the index is damaged"):
        importlib.import_module("found_by_nobody")


@pytest.mark.parametrize("error", [SystemExit(3), Ending("the end")])
def test_a_framework_that_ends_the_program_when_hooked_is_left_unmarked(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(module: types.ModuleType) -> None:
        raise error

    (tmp_path / "hookless.py").write_text("answer = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    when_imported("hookless", patching.guarded("hookless", refuse))
    assert importlib.import_module("hookless").answer == 1
    monkeypatch.delitem(sys.modules, "hookless")
    assert caplog.messages[0].startswith("trace_export: hookless of an unknown version is not one it knows")


LOADED = "import json, sys; before = set(sys.modules); {}; print(json.dumps(sorted(set(sys.modules) - before)))"


def python(
    code: str, *arguments: str, executable: str = sys.executable, **environment: str
) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV", "TRACE_EXPORT"))}
    command = [executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(
        command, env=clean | environment, capture_output=True, text=True, timeout=HANGS_S, check=False
    )


def test_importing_costs_nothing_but_the_standard_library() -> None:
    done = python(LOADED.format("import trace_export.instrument as ti; ti.auto()"), PYTHONPATH=str(ROOT))
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)} - {"trace_export"}
    assert (done.stderr, loaded - set(sys.stdlib_module_names)) == ("", set())


# --- trace-export run


def test_startup_marks_without_a_line_in_the_script_and_chains(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.hidden_one_ran = __file__\n")
    path = os.pathsep.join([str(STARTUP), str(tmp_path)])
    code = """
        import sys, sitecustomize
        from trace_export.instrument.imports import _finder
        print(hidden_one_ran == sitecustomize.__file__, "torch.optim.optimizer" in _finder.awaited, len(sys.path))
    """
    done = python(code, PYTHONPATH=path)
    plain = python("import sys; print(len(sys.path))", PYTHONPATH=path)
    assert done.stderr == ""
    assert done.stdout.split() == ["True", "True", plain.stdout.strip()]


def test_startup_lets_the_program_run_where_it_cannot_mark(tmp_path: Path) -> None:
    broken = tmp_path / "trace_export" / "instrument" / "startup"
    broken.mkdir(parents=True)
    (broken / "sitecustomize.py").write_bytes((STARTUP / "sitecustomize.py").read_bytes())
    (tmp_path / "trace_export" / "__init__.py").write_text("raise ImportError('half a copy')\n")
    done = python("print('trained')", PYTHONPATH=str(broken))
    assert done.stdout == "trained\n"
    assert done.stderr == "trace_export: no blocks are marked: ImportError: half a copy\n"


def test_startup_in_older_pythons() -> None:
    """By the grammar of 3.9, and in those of 3.9 and 3.10 that are installed beside this one."""
    for path in STARTUP.parent.rglob("*.py"):
        ast.parse(path.read_text(), str(path), feature_version=(3, 9))
    code = """
        import trace_export.instrument as ti
        from trace_export.instrument.backends.recorder import Recorder
        recorder = Recorder(); ti.auto(recorder)
        with ti.step(2), ti.forward(microbatch=1): pass
        print(recorder.marks[0].mark, recorder.marks[0].where.text)
    """
    for version in ("3.9", "3.10"):
        for executable in sorted(Path(sys.base_prefix).parent.glob(f"{version}.*/bin/python"))[-1:]:
            done = python(code, executable=str(executable), PYTHONPATH=str(STARTUP))
            assert done.stderr == ""
            assert done.stdout.startswith("Mark(kind='F', microbatch=1, chunk=None")
            assert done.stdout.endswith(" step=2\n")


def test_run_passes_everything_on(run_cli: Cli) -> None:
    code = "import os, sys; print('trace_export.instrument' in sys.modules, sys.argv[1:], "
    code += "os.getenv('TRACE_EXPORT_MARKS')); sys.exit(7)"
    for dashes in ([], ["--"]):
        done = run_cli("run", "--marks", "torch", *dashes, sys.executable, "-c", code, "--some_flag", "--", "-x")
        assert done.returncode == 7
        assert done.stdout == "True ['--some_flag', '--', '-x'] torch\n"
        assert done.stderr == ""


def test_run_says_what_is_wrong(run_cli: Cli) -> None:
    done = run_cli("run", "--", "no-such-program-here")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "trace-export: no-such-program-here: No such file or directory; give the command as you would type it\n"
    )
    done = run_cli("run", "--marks", "nvxt", "--", "true")
    assert done.returncode == 2
    assert 'trace-export: --marks: "nvxt" is unknown; choose from auto, nvtx, torch, mstx, paddle, off' in done.stderr
