"""Agent programs as models of runs, over the Agent Client Protocol on stdin and stdout."""

from typing import TYPE_CHECKING

from retinue.core.lazy_names import lazy_names
from retinue.providers.acp.program import TOOLS, AgentProgram, AgentPrograms, SessionRecord
from retinue.providers.wire import Wire

if TYPE_CHECKING:
    from retinue.providers.acp.provider import AcpProvider as AcpProvider

__all__ = ["TOOLS", "WIRE", "AcpProvider", "AgentProgram", "AgentPrograms", "SessionRecord"]

__getattr__ = lazy_names(__name__, {"AcpProvider": f"{__name__}.provider:AcpProvider"})

DEFAULT_MODEL = "default"
"""The model that stands for the agent's own choice."""

WIRE = Wire(
    provider="retinue.providers.acp.provider:AcpProvider",
    kind="program",
    default_model=DEFAULT_MODEL,
    found_by_key=False,
)
