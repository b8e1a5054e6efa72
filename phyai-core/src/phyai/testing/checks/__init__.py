"""What is checked of a kernel, one call at a time.

A check is ``run(subject, case)``: it returns when the kernel does what it should, raises
:class:`~phyai.testing.subject.Finding` when it does not, and :class:`~phyai.testing.subject.NotApplicable` when the
call says nothing. ``unavailable(subject)`` says why a check cannot be made at all, or None.
"""

from phyai.testing.checks.check import Check
from phyai.testing.checks.registry import CHECKS, VALUES_CHECK

__all__ = ["CHECKS", "VALUES_CHECK", "Check"]
