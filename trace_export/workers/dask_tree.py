"""Map a function over items on a Dask cluster and merge the results there, as a tree: only the merged one travels.

Every `AT_ONCE` neighbours are merged as soon as all of them are there, so that few results are held anywhere. What is
lost with a worker Dask computes again from what it was made of. A task that fails nevertheless is given to the workers
again, alone where they died of it or of another, and then counts as failed; a scheduler that is started again is given
everything again.
"""

from __future__ import annotations

import functools
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import count
from typing import Any, Final, Generic

from trace_export.errors import SourceError, TraceExportError
from trace_export.workers.attempt import Item, Result, attempt
from trace_export.workers.cluster import Cluster
from trace_export.workers.dask import ATTEMPTS, CHECK_S, GONE_S, MORE_MEMORY, NO_WORKER
from trace_export.workers.dask_client import (
    POLL_S,
    SAME_CODE,
    ask,
    gone,
    same_workers,
    through_restarts,
    usable_workers,
)
from trace_export.workers.fold import Merge
from trace_export.workers.identity import Identity, identity

AT_ONCE: Final = 8
"""So many are merged at a time. A tree of four levels, 4,096 items, then has at most 7 finished results on each, and
all of them together stay below `fold.MOST`, even on a single worker."""
AHEAD: Final = 2
"""So many items are given to each thread of the workers at a time: one to work on, and the next."""

Failed = Callable[[TraceExportError, Item], Result]


def reduce(
    cluster: Cluster,
    function: Callable[[Item], Result],
    items: Sequence[Item],
    merge: Merge[Result],
    failed: Failed[Item, Result],
    done: Callable[[int], None] = lambda index: None,
) -> Result:
    """The results of all items merged in their order, as `local.reduce`. Raises TraceExportError when no worker is
    left, the scheduler does not answer, goes and does not come back, or a worker cannot run this program."""
    if not items:
        return merge([])
    reported: set[int] = set()

    def report(index: int) -> None:
        if index not in reported:
            reported.add(index)
            done(index)

    def whole(client: Any) -> Result:
        same_workers(client, cluster.address)
        return _Tree(client, cluster.address, function, items, merge, failed, report).result()

    return through_restarts(cluster.address, whole)


class OtherCodeError(Exception):
    """The worker runs other code than the command."""


def _checked(ours: Identity, function: Callable[..., bytes], *arguments: Any) -> bytes:
    """`function` of the arguments, on a worker that runs the same code."""
    if difference := ours.differences(identity()):
        raise OtherCodeError(difference)
    return function(*arguments)


def _leaf(function: Callable[[Item], Result], failed: Failed[Item, Result], item: Item) -> bytes:
    result = attempt(function, item)
    return _packed(failed(result, item) if isinstance(result, TraceExportError) else result)


def _branch(merge: Merge[Result], parts: Sequence[bytes]) -> bytes:
    return _packed(merge([pickle.loads(part) for part in parts]))


def _packed(result: object) -> bytes:
    """As bytes, so that no result can upset the client of Dask."""
    return pickle.dumps(result, protocol=5)


@dataclass(eq=False)
class _Node:
    """A result of the tree: of item `index` on level 0, of up to `AT_ONCE` nodes of the level below on others.
    `result`: its future once it is submitted, or the bytes of a failure. `alone`: nothing else runs with it."""

    level: int
    index: int
    needs: list[_Node] = field(default_factory=list)
    result: Any = None
    attempts: int = 0
    alone: bool = False


class _Tree(Generic[Item, Result]):
    """One reduction of `items`: the nodes that run, and on each level those that wait for their neighbours."""

    def __init__(
        self,
        client: Any,
        address: str,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        merge: Merge[Result],
        failed: Failed[Item, Result],
        done: Callable[[int], None],
    ) -> None:
        distributed: Any = import_module("distributed")
        self.client, self.address, self.items, self.done = client, address, items, done
        self.merge, self.failed = merge, failed
        self.leaf = partial(_checked, identity(), partial(_leaf, function, failed))
        self.branch = partial(_checked, identity(), partial(_branch, merge))
        self.ahead = AT_ONCE + AHEAD * sum(ask(client.nthreads, address).values())
        self.addresses: list[str] | None = None
        """The workers to prefer, once one was met that runs other code."""
        self.begun = 0
        self.running: dict[Any, _Node] = {}
        self.suspects: list[_Node] = []
        """Nodes whose workers died, of them or of what else they ran: submitted alone when all others have ended."""
        self.ready: dict[tuple[int, int], _Node] = {}
        self.merged: set[int] = set()
        """The nodes of level 1 that are there, or were."""
        self.alone_since: float | None = None
        self.completed = distributed.as_completed(loop=client.loop)

    def result(self) -> Result:
        checked = time.monotonic()
        self._begin()
        while self.running or self.suspects:
            if not self.running:
                self._submit(self.suspects.pop())
            if not self.completed.has_ready():
                time.sleep(POLL_S)
            for future in self.completed.next_batch(block=False):
                self._take(future)
            if time.monotonic() - checked > CHECK_S:
                self._check()
                checked = time.monotonic()
        (root,) = self.ready.values()
        result: Result = pickle.loads(self._fetched(root.result))
        return result

    def _begin(self) -> None:
        """Submits items, no more than `ahead` of the first that is not merged."""
        first = next(group for group in count() if group not in self.merged) * AT_ONCE
        while self.begun < min(len(self.items), first + self.ahead):
            self._submit(_Node(0, self.begun))
            self.begun += 1

    def _submit(self, node: _Node) -> None:
        node.attempts += 1
        work, of = (
            (self.branch, [each.result for each in node.needs]) if node.level else (self.leaf, self.items[node.index])
        )
        node.result = self.client.submit(
            work, of, pure=False, priority=node.level, workers=self.addresses, allow_other_workers=bool(self.addresses)
        )
        self.running[node.result] = node
        self.completed.add(node.result)

    def _take(self, future: Any) -> None:
        """Processes the end of one node: a result that stays where it is, an error, or a lost scheduler."""
        node = self.running.get(future)
        if node is None:  # given up meanwhile
            return
        if future.status == "finished":
            del self.running[future]
            self._settle(node)
        elif future.status == "error":
            del self.running[future]
            self._try_again(node, ask(future.exception, self.address))
        elif future.status == "cancelled":
            raise gone(self.address)
        else:  # lost again with its worker
            self.completed.add(future)

    def _settle(self, node: _Node) -> None:
        """The result of a node is there: what it was made of may go, and with its neighbours it may be merged."""
        node.needs = []
        self.ready[node.level, node.index] = node
        if node.level == 0:
            self.done(node.index)
        elif node.level == 1:
            self.merged.add(node.index)
        size = -(-len(self.items) // AT_ONCE**node.level)
        first = node.index - node.index % AT_ONCE
        group = [(node.level, index) for index in range(first, min(first + AT_ONCE, size))]
        if size > 1 and all(place in self.ready for place in group):
            needs = [self.ready.pop(place) for place in group]
            self._submit(_Node(node.level + 1, first // AT_ONCE, needs))
        self._begin()

    def _try_again(self, node: _Node, error: BaseException) -> None:
        """Submits a node again, or what was lost of it, or counts its items as failed."""
        if isinstance(error, OtherCodeError):
            self.addresses = [worker.address for worker in usable_workers(self.client, self.address)]
        lost = [each for each in node.needs if getattr(each.result, "status", "") in ("error", "cancelled")]
        if lost:  # the others wait for them again
            self.ready |= {(each.level, each.index): each for each in node.needs if each not in lost}
            for each in lost:
                self._suspect(each, error)
        elif type(error).__name__ == "KilledWorker":  # then Dask has tried it on several
            self._suspect(node, error)
        elif node.attempts < ATTEMPTS:
            self._submit(node)
        else:
            self._fail(node, error)

    def _suspect(self, node: _Node, error: BaseException) -> None:
        """Dask blames all tasks of a worker for its death, whichever it died of: each is tried once more alone."""
        if node.alone or (node.level and not node.needs):  # what it was made of is gone
            self._fail(node, error)
        else:
            node.alone = True
            self.suspects.append(node)

    def _fail(self, node: _Node, error: BaseException) -> None:
        node.result = self._failure(node, error)
        self._settle(node)

    def _failure(self, node: _Node, error: BaseException) -> bytes:
        """The result of a node whose items all failed."""
        how, remedy = f"the Dask workers that read it died or lost it ({type(error).__name__})", MORE_MEMORY
        if isinstance(error, OtherCodeError):
            how, remedy = f"the Dask worker that read it runs other code: {error}", SAME_CODE
        size = AT_ONCE**node.level
        items = self.items[node.index * size : (node.index + 1) * size]
        failures = (self.failed(SourceError(item.path, how, remedy), item) for item in items)
        return _packed(functools.reduce(lambda one, other: self.merge([one, other]), failures))

    def _check(self) -> None:
        """Raises TraceExportError when the scheduler is gone, or no worker is left for `GONE_S`."""
        for future in [f for f in self.running if f.status in ("error", "cancelled")]:
            self._take(future)  # lost after it had ended, of which `as_completed` says nothing
        if ask(self.client.nthreads, self.address):
            self.alone_since = None
            return
        self.alone_since = self.alone_since or time.monotonic()
        if time.monotonic() - self.alone_since > GONE_S:
            raise TraceExportError(f"{self.address}: {NO_WORKER[0]}", NO_WORKER[1])

    def _fetched(self, result: Any) -> bytes:
        """The bytes of the last result; computed again where its worker dies just now."""
        while not isinstance(result, bytes):
            try:
                return bytes(result.result(timeout=CHECK_S))
            except TimeoutError:
                self._check()
            except Exception as error:  # cancelled, or lost with too many workers
                raise gone(self.address) from error
        return result
