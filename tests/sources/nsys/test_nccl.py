"""NCCL's calls in an export: their names with and without the prefix, their payloads, and exchanges inside blocks."""

from pathlib import Path

import pytest

from samples.generators.nsys_export import DOMAIN_CREATED, Export
from tests.support.one_source import read
from trace_export import api
from trace_export.model import Declared, Profile
from trace_export.pipeline.interpret import interpret
from trace_export.pipeline.transfers import name_peers
from trace_export.sources.source import ReadOptions, Source

A, B, C = 700, 710, 720
NCCL = 3


def load(export: Export, folder: Path) -> Profile:
    return read(Source("nsys", export.write(folder / "x.sqlite"), "folder"), ReadOptions()).validate()


def block(export: Export, process: int, at: int, text: str, length: int = 90) -> None:
    export.range(process, at, at + length, text)
    export.kernel(process, at + 100, at + 150, export.call(process, at + 1))


def call(export: Export, process: int, at: int, text: str, payload: bytes | None = None) -> None:
    export.range(process, at, at + 5, text, registered=True, domain=NCCL, payload=payload)


@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("prefix", ["nccl", ""])
def test_names_without_their_prefix_are_known_by_their_domain(tmp_path: Path, prefix: str, registered: bool) -> None:
    export = Export(epoch_ns=0)
    export.range(A, 1, None, "NCCL", registered=registered, kind=DOMAIN_CREATED, domain=NCCL)
    export.range(A, 1, None, "MyLibrary", kind=DOMAIN_CREATED, domain=4)
    block(export, A, 1_000, "F0.0.0")
    for at, name in ((1_300, "GroupLaunch"), (1_301, "AllReduce"), (1_320, "KernelLaunch"), (1_400, "Send")):
        call(export, A, at, f"{prefix}{name}")
    export.kernel(A, 1_500, 1_600, export.call(A, 1_303), name="ncclDevKernel_AllReduce_Sum")
    export.range(A, 1_700, 1_800, "AllReduce", domain=4)
    profile = load(export, tmp_path)
    assert profile.collectives.select("op", "sequence", "start_ns", "end_ns").rows() == [
        ("ncclAllReduce", 0, 1_500, 1_600)
    ]
    assert profile.p2p.select("op", "role", "direction").rows() == [("ncclSend", "send", "F")]


def test_payloads_tell_communicator_rank_and_peer(tmp_path: Path) -> None:
    """Three ranks in one communicator, two of them in another: ranks by the larger, collectives by their group."""
    world, pair = 0xF00000000000ABCD, 0x12
    export = Export(epoch_ns=0)
    for rank, process in ((2, A), (0, B), (1, C)):
        opened = export.payload(NCCL, 1_000, communicator=world, ranks=3, rank=rank)
        call(export, process, 10, "ncclCommInitRankConfig", opened)
        block(export, process, 1_000, "forward_step")
        reduced = export.payload(NCCL, 1_001, communicator=world, bytes=4_096)
        call(export, process, 2_000, "ncclAllReduce", reduced)
        if rank:
            small = export.payload(NCCL, 1_000, communicator=pair, ranks=2, rank=rank - 1)
            call(export, process, 20, "ncclCommInitRank", small)
            call(export, process, 1_900, "ncclAllReduce", export.payload(NCCL, 1_001, communicator=pair, bytes=8))
        peer = {2: 1, 0: 1, 1: 0}[rank]
        call(export, process, 3_000, "ncclSend", export.payload(NCCL, 1_002, communicator=world, bytes=77, peer=peer))
    profile = load(export, tmp_path)
    assert profile.declared.world == 3
    assert profile.ranks.select("rank", "process", "rank_origin").rows() == [
        (0, (1 << 24) + B, "assumed"),
        (1, (1 << 24) + C, "assumed"),
        (2, (1 << 24) + A, "assumed"),
    ]
    assert sorted(profile.collectives.select("rank", "group", "sequence", "bytes").rows()) == [
        (0, "f00000000000abcd", 0, 4_096),
        (1, "0000000000000012", 0, 8),
        (1, "f00000000000abcd", 0, 4_096),
        (2, "0000000000000012", 0, 8),
        (2, "f00000000000abcd", 0, 4_096),
    ]
    assert sorted(name_peers(profile).p2p.select("rank", "peer", "group", "bytes").rows()) == [
        (rank, peer, "f00000000000abcd", 77) for rank, peer in ((0, 1), (1, 0), (2, 1))
    ]


def test_peers_are_found_in_other_files(tmp_path: Path) -> None:
    """A file a rank; the communicator counts the ranks in another order than the job does."""
    for rank, member, peer in ((0, 1, 0), (1, 0, 1)):
        export = Export(epoch_ns=0)
        opened = export.payload(NCCL, 1_000, communicator=9, ranks=2, rank=member)
        call(export, A, 10, "ncclCommInitRank", opened)
        export.range(A, 900, 2_500, f"iter_{rank}_0")
        block(export, A, 1_000, "F0.0.0")
        moved = export.payload(NCCL, 1_002, communicator=9, bytes=77, peer=peer)
        call(export, A, 2_000, ("ncclSend", "ncclRecv")[rank], moved)
        export.write(tmp_path / f"rank{rank}.sqlite")
    result = api.load(tmp_path).profile
    assert result.declared.world is None  # it may be that of a part of the job
    assert result.p2p.select("rank", "role", "peer", "member").rows() == [(0, "send", 1, 0), (1, "recv", 0, 1)]
    assert result.messages.select("src_rank", "dst_rank", "bytes").rows() == [(0, 1, 77)]


@pytest.mark.parametrize("damage", [b"", b"\0" * 8, b"\xff" * 31, b"\xff" * 200])
def test_payloads_that_are_none_are_ignored(tmp_path: Path, damage: bytes) -> None:
    export = Export(epoch_ns=0)
    export.payload(NCCL, 1_001, communicator=1, bytes=2, peer=3)
    block(export, A, 1_000, "F0.0.0")
    call(export, A, 1_300, "ncclSend", damage)
    profile = load(export, tmp_path)
    assert profile.p2p.select("group", "peer", "bytes", "direction").rows() == [(None, None, None, "F")]


def test_an_exchange_of_experts_is_no_message(tmp_path: Path) -> None:
    """In a block a stage receives, exchanges with all ranks twice, and sends: only its ends are messages."""
    export = Export(epoch_ns=0)
    for process in (A, B):
        export.range(process, 1_000, 1_900, "Forward 0")
        call(export, process, 1_010, "ncclRecv")
        for at in (1_100, 1_500):
            for n in range(3):
                call(export, process, at + 20 * n, "ncclSend")
                call(export, process, at + 20 * n + 10, "ncclRecv")
        call(export, process, 1_800, "ncclSend")
        export.kernel(process, 1_600, 1_700, export.call(process, 1_050))
    profile = load(export, tmp_path)
    of_a = profile.p2p.filter(profile.p2p["rank"] == 0)
    assert of_a.select("role", "start_ns").rows() == [("recv", 1_010), ("send", 1_800)]
    (note,) = [n for n in profile.notes if n.code == "transfers-inside-blocks"]
    assert note.count == 24
    assert interpret(profile, Declared()).messages.height <= 2
