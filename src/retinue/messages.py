"""Vendor-neutral messages, tool calls, model replies, and the deltas of replies that stream.

A provider reads messages in a `retinue.ports.Request`, publishes deltas and returns a `Reply`. `RunHandle.events`
yields the same deltas between the events of a run. An attempt that breaks off is made again: `DiscardDelta` takes back
everything since the last `StartDelta`.

>>> from retinue.messages import AssistantMessage, Reply, ToolCall
>>> reply = Reply(AssistantMessage(text="Let me look.", calls=(ToolCall("search", '{"query": "pool"}'),)))
>>> reply.message.calls[0].name, reply.stop
('search', 'end')
"""

from retinue.core.attachments import Attachment
from retinue.core.messages import (
    AssistantMessage,
    CallDelta,
    Citation,
    Delta,
    DiscardDelta,
    Message,
    Origin,
    Reply,
    StartDelta,
    Stop,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolCall,
    ToolMessage,
    UserMessage,
)

__all__ = [
    "AssistantMessage",
    "Attachment",
    "CallDelta",
    "Citation",
    "Delta",
    "DiscardDelta",
    "Message",
    "Origin",
    "Reply",
    "StartDelta",
    "Stop",
    "TextDelta",
    "Thinking",
    "ThinkingDelta",
    "ToolCall",
    "ToolMessage",
    "UserMessage",
]
