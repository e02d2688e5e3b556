"""The report of a profile that no file holds."""

from trace_export.analysis.bubbles import Bubbles
from trace_export.analysis.explanation import explain
from trace_export.analysis.report import Report, report
from trace_export.model import Profile


def report_of(profile: Profile) -> Report:
    """The analysis of all of a profile."""
    measured = Bubbles(profile)
    return report(measured, explain(measured.graph))
