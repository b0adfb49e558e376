"""Coverage guidance: whether an input reached a line of the package that no input before it has reached."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import retinue

PACKAGE = str(retinue.__file__).removesuffix("__init__.py")


class Guidance:
    """Counts the lines of the package that have run. The count grows with an input that reached something new.

    Python 3.12 reports each line once and then no more, at almost no cost. Before, tracing costs a good part of the
    time, so only one input in eight is traced.
    """

    def __init__(self) -> None:
        self.lines = 0
        self._seen: set[tuple[CodeType, int]] = set()
        self._inputs = 0

    @contextmanager
    def watch(self) -> Generator[None]:
        """Count the lines that run in the block."""
        self._inputs += 1
        if sys.version_info >= (3, 12):
            with self._monitored():
                yield
        elif self._inputs % 8 == 1:
            before = sys.gettrace()
            sys.settrace(self._trace)
            try:
                yield
            finally:
                sys.settrace(before)
        else:
            yield

    def _line(self, code: CodeType, line: int) -> None:
        if code.co_filename.startswith(PACKAGE) and (code, line) not in self._seen:
            self._seen.add((code, line))
            self.lines += 1

    def _trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            self._line(frame.f_code, frame.f_lineno)
        return self._trace

    if sys.version_info >= (3, 12):

        @contextmanager
        def _monitored(self) -> Generator[None]:
            monitoring = sys.monitoring
            tool = monitoring.COVERAGE_ID

            def line(code: CodeType, number: int) -> object:
                self._line(code, number)
                return monitoring.DISABLE

            monitoring.use_tool_id(tool, "retinue-fuzz")
            try:
                monitoring.register_callback(tool, monitoring.events.LINE, line)
                monitoring.set_events(tool, monitoring.events.LINE)
                yield
            finally:
                monitoring.set_events(tool, 0)
                monitoring.free_tool_id(tool)
