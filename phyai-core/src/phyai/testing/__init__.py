"""The conformance kit: whether a kernel does what it declares.

Calls are drawn from inside a kernel's capability, corners first, and compared with the reference in float64; see
:mod:`phyai.testing.checks` for what is checked. torch and hypothesis are imported when a check runs
(the extra ``testing``).
"""

from phyai.testing.report import CheckReport, Outcome, Report, SubjectReport

__all__ = ["CheckReport", "Outcome", "Report", "SubjectReport"]
