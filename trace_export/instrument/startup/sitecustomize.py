"""Python runs this at its start when `trace-export run` has put this folder on PYTHONPATH: it turns the marks on.

Then it runs the sitecustomize that it hides, if there is one. It must not fail, whatever Python it meets.
"""

import importlib.machinery
import importlib.util
import pathlib
import sys


def _mark() -> None:
    root = str(pathlib.Path(__file__).resolve().parents[3])
    # trace_export may live in another environment than the training run: it is found once, and nothing else from there.
    sys.path.insert(0, root)
    try:
        from trace_export.instrument import auto
        from trace_export.instrument.frameworks import patch_all  # noqa: F401
    finally:
        sys.path.remove(root)
    auto()


def _run_hidden() -> None:
    here = pathlib.Path(__file__).resolve().parent
    path = [p for p in sys.path if pathlib.Path(p or ".").resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    _mark()
except KeyboardInterrupt:
    raise
except BaseException as error:
    print(f"trace_export: no blocks are marked: {type(error).__name__}: {error}", file=sys.stderr)
_run_hidden()
