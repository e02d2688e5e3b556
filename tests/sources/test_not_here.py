"""Profiles that lie there as nobody can read them: packed, in an archive, rotated, or left on a server by Git LFS."""

import bz2
import gzip
import io
import lzma
import shutil
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from samples.generators.paddle import Job, write_logs
from tests.conftest import Cli
from tests.sources.spans.test_other_tools import primus
from tests.support.rows import crossed

POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
CAPTURE = "node0_4000_20251127120000000_ascend_pt/ASCEND_PROFILER_OUTPUT"


@pytest.mark.parametrize(
    "name",
    [
        "workerlog.0", "profile_record_tmp_file_for_rank_0", "node0.sqlite", "700_results.db", "rank0.json",
        "node0_700.1760000000000000000.pt.trace.json.gz", "rank0.blocks", "a.spans.parquet", "trace-a.parquet",
        f"{CAPTURE}/ascend_pytorch_profiler_0.db", f"{CAPTURE}/trace_view.json", f"{CAPTURE}/kernel_details.csv",
    ],
)  # fmt: skip
def test_a_pointer_of_git_lfs_is_called_one(tmp_path: Path, run_cli: Cli, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(POINTER)
    for command in ((), ("inspect",)):
        ended = run_cli(*command, tmp_path)
        assert ended.returncode == 1
        assert f"{path} is a Git LFS pointer" in ended.stderr
        assert "git lfs pull" in ended.stderr


def test_a_table_that_is_a_pointer(tmp_path: Path, run_cli: Cli) -> None:
    (tmp_path / "run.spans.parquet").write_text(POINTER)
    assert "is a Git LFS pointer" in run_cli(tmp_path / "run.spans.parquet").stderr


def test_a_pointer_beside_profiles_is_a_warning(samples: Path, tmp_path: Path, run_cli: Cli) -> None:
    shutil.copytree(samples / "kineto" / "two_hosts", tmp_path / "logs")
    (tmp_path / "logs" / "rank4.json").write_text(POINTER)
    ended = run_cli(tmp_path / "logs", "--out", tmp_path / "out")
    assert ended.returncode == 0
    assert "[source-not-fetched]" in ended.stderr


@pytest.mark.parametrize(("ending", "command"), [(".gz", "gunzip"), (".zst", "zstd -d"), (".xz", "unxz")])
def test_a_packed_log_beside_others_is_a_warning(
    samples: Path, tmp_path: Path, run_cli: Cli, ending: str, command: str
) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(samples / "paddle" / "single", logs)
    (logs / "workerlog.3").rename(logs / f"workerlog.3{ending}")
    shutil.copy(logs / "workerlog.0", logs / f"workerlog.0{ending}")  # the plain one is read
    ended = run_cli(logs, "--out", tmp_path / "out")
    said = f"warning: packed: unpack it with {command} ({logs / 'workerlog.3'}{ending}) [source-packed]"
    assert said in ended.stderr
    assert ended.stderr.count("[source-packed]") == 1


PACKINGS = {
    ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zip": lambda data: zipped(data, "trace.json"),
}  # fmt: skip


def zipped(data: bytes, name: str) -> bytes:
    with zipfile.ZipFile(file := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return file.getvalue()


def table_of(folder: Path, run_cli: Cli) -> list[str]:
    ended = run_cli("export", folder, "--out", folder.parent / "out", "--format", "csv", "--force")
    assert ended.returncode == 0, ended.stderr
    return (folder.parent / "out" / "pipeline_profile.csv").read_text().splitlines()


TRACES = {"mindspore": "trace_view.json", "kineto/two_hosts": "*.json.gz"}


@pytest.fixture(scope="module")
def plain(samples: Path, tmp_path_factory: pytest.TempPathFactory, run_cli: Cli) -> Callable[[str], list[str]]:
    """The table of a sample."""

    @cache
    def plain(sample: str) -> list[str]:
        logs = tmp_path_factory.mktemp("plain") / "logs"
        shutil.copytree(samples / sample, logs)
        return table_of(logs, run_cli)

    return plain


@pytest.mark.parametrize(("sample", "ending", "share"), crossed(TRACES, PACKINGS, [1, 4]))
def test_a_packed_json_trace_is_read(
    samples: Path, tmp_path: Path, run_cli: Cli, plain: Callable[[str], list[str]], sample: str, ending: str, share: int
) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(samples / sample, logs)
    for path in sorted(logs.rglob(TRACES[sample]))[:share]:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        path.unlink()
        path.with_name(path.name.removesuffix(".gz") + ending).write_bytes(PACKINGS[ending](data))
    assert table_of(logs, run_cli) == plain(sample)


@pytest.mark.parametrize("ending", [".bz2", ".xz"])
@pytest.mark.parametrize("kept", [0.02, 0.9])
def test_a_packed_trace_that_is_cut(samples: Path, tmp_path: Path, run_cli: Cli, ending: str, kept: float) -> None:
    path = next((samples / "kineto" / "two_hosts").glob("*.json.gz"))
    data = PACKINGS[ending](gzip.decompress(path.read_bytes()))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / f"rank0.json{ending}").write_bytes(data[: round(len(data) * kept)])
    ended = run_cli("report", tmp_path / "logs")
    assert ended.returncode == 1 or "[trace-truncated]" in ended.stderr, ended.stderr


PROFILES = {
    "paddle/single": "workerlog.0", "nsys/two_hosts": "*.sqlite", "rocpd/two_hosts": "*_results.db",
    "kineto/two_hosts": "*.json.gz", "recorder/two_hosts": "*.blocks",
}  # fmt: skip


@pytest.mark.parametrize(
    ("sample", "ending"), crossed(PROFILES, [".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2", ".tar.zst"])
)
def test_an_archive_of_a_profile_beside_others_is_a_warning(
    samples: Path, tmp_path: Path, run_cli: Cli, sample: str, ending: str
) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(samples / sample, logs)
    path = min(logs.rglob(PROFILES[sample]))
    moved = path.rename(path.with_name(path.name.removesuffix(".gz") + ending))
    (logs / "weights.tar.gz").write_bytes(b"")
    ended = run_cli("inspect", logs)
    assert f"warning: an archive: unpack it with tar -xf ({moved}) [source-packed]" in ended.stderr
    assert "[log-rotated]" not in ended.stderr


@pytest.mark.parametrize("sample", PROFILES)
def test_what_macos_keeps_beside_each_file_is_no_profile(
    samples: Path, tmp_path: Path, run_cli: Cli, sample: str
) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(samples / sample, logs)
    for path in [path for path in logs.rglob("*") if path.is_file()]:
        path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X        ")
    assert run_cli("inspect", logs).returncode == 0


def test_an_archive_says_how_to_unpack_it(tmp_path: Path, run_cli: Cli) -> None:
    (tmp_path / "profiles.tar.gz").write_bytes(gzip.compress(b""))
    assert "profiles.tar.gz is an archive: unpack it with tar -xf" in run_cli(tmp_path).stderr


@pytest.mark.parametrize("name", ["rank{}.log", "workerlog_{}", "node0/{}.txt"])
def test_a_log_under_another_name_is_named(name: str, tmp_path: Path, run_cli: Cli) -> None:
    write_logs(tmp_path, Job(2, 2))
    for rank in range(2):
        path = tmp_path / name.format(rank)
        path.parent.mkdir(exist_ok=True)
        (tmp_path / f"workerlog.{rank}").rename(path)
    for given in (tmp_path, tmp_path / name.format(0)):
        ended = run_cli(given)
        assert ended.returncode == 1
        assert f"{name.format(0)} is a worker log of Paddle under another name: call it workerlog.N" in ended.stderr


def test_the_parts_of_a_rotated_log_are_named(tmp_path: Path, run_cli: Cli) -> None:
    write_logs(tmp_path / "logs", Job(2, 4, rotated=True))
    ended = run_cli(tmp_path / "logs", "--out", tmp_path / "out")
    assert "2 × copies or earlier parts of logs, left out" in ended.stderr
    for number in range(2):
        (tmp_path / "logs" / f"workerlog.{number}").unlink()
    ended = run_cli(tmp_path / "logs")
    assert ended.returncode == 1
    assert "workerlog.0.1 is a copy or an earlier part of a log" in ended.stderr


def test_timings_of_primus_without_what_they_need(tmp_path: Path, run_cli: Cli) -> None:
    primus(tmp_path)
    (tmp_path / "config.json").unlink()
    assert "pp_rank_0.json is a file of Primus without config.json beside it" in run_cli(tmp_path).stderr
    for path in tmp_path.glob("pp_rank_*.json"):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert "pp_rank_0.json.gz is packed: unpack it with gunzip" in run_cli(tmp_path).stderr


def test_a_trace_of_megascan_that_is_packed(tmp_path: Path, run_cli: Cli) -> None:
    event = b'[{"name": "forward", "ph": "B", "ts": 1, "args": {"pp_rank": 0, "model_chunk": 0}}]'
    (tmp_path / "a-iter1.json.gz").write_bytes(gzip.compress(event))
    assert "a-iter1.json.gz is packed: unpack it with gunzip" in run_cli(tmp_path).stderr


@pytest.mark.parametrize(
    ("name", "what"),
    [("908_kernel_trace.csv", "CSV"), ("marker_api_trace.csv", "CSV"), ("908_results.pftrace", "a Perfetto trace"),
     ("908_results.json", "JSON"), ("908_results.json.gz", "JSON")],
)  # fmt: skip
def test_what_else_rocprofv3_writes_is_named(tmp_path: Path, run_cli: Cli, name: str, what: str) -> None:
    """Unpacked it is not read either. Beside databases nothing is said of it."""
    content = b'{"rocprofiler-sdk-tool": [{"metadata": {"pid": 1}}]}'
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    ended = run_cli(tmp_path)
    assert f"{name} is {what} of rocprofv3, which is not read: record with rocprofv3 --output-format rocpd" in (
        ended.stderr
    )
    assert "gunzip" not in ended.stderr


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("pipeline_profile.csv", "a table that trace-export wrote: give the file itself"),
        ("pipeline_profile.messages.parquet", "a table that trace-export wrote: give the file itself"),
        ("blocks.xlsx", "a spreadsheet: save it as CSV"),
    ],
)
def test_a_table_in_a_folder_is_named(tmp_path: Path, run_cli: Cli, name: str, what: str) -> None:
    (tmp_path / name).write_bytes(b"PK")
    assert f"{name} is {what}" in run_cli("report", tmp_path).stderr


def test_a_csv_file_of_rocprofv3_alone(tmp_path: Path, run_cli: Cli) -> None:
    path = tmp_path / "908_kernel_trace.csv"
    path.write_text('"Kind","Kernel_Name","Start_Timestamp","End_Timestamp"\n"KERNEL_DISPATCH","k",10,20\n')
    assert "it is a table of a profiler's export: give the folder that the profiler wrote" in run_cli(path).stderr
