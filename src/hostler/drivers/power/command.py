"""A power switch that is an operator's program: it is run for one node, and its exit status says what it did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.drivers.power.program import describe_end, run_program
from hostler.errors import Unavailable, Uncertain
from hostler.settings.value import NODE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CERTAINLY_OFF = 0
OUT_OF_REACH = 3


class CommandPower:
    """`ports.power.Power` by a command. Arguments are passed to the program unchanged, without a shell.

    Only status 0 confirms that the node is off. A program that hangs is killed, with all processes that it started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        setting: str = "power_command",
        timeout: float = 60.0,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._command, self._setting, self._timeout, self._tell = tuple(command), setting, timeout, tell

    async def switch_off(self, node: str) -> bool:
        """Run the program. Unavailable: it cannot be started. Uncertain: it did not confirm that the node is off."""
        if node.startswith("-"):
            self._tell(f"power of node {node}: the command would take this name for an option; it was not run")
            return False
        words = [node if word == NODE else word for word in self._command]
        try:
            ended = await run_program(words, timeout=self._timeout)
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            what = f"power of node {node}: {words[0]} cannot be started: {why}; correct {self._setting}"
            self._tell(what)
            raise Unavailable(what) from None
        said = f": {ended.last_line}" if ended.lines else ", without output"
        if ended.status == CERTAINLY_OFF:
            self._tell(f"power of node {node}: off{said}")
            return True
        if ended.status == OUT_OF_REACH:
            self._tell(f"power of node {node}: the command does not reach it{said}")
            return False
        end = describe_end(ended.status, self._timeout)
        what = f"power of node {node}: the command {end}{said}; the node may be on or off"
        self._tell(what)
        raise Uncertain(what)
