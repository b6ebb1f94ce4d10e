"""Chat templates: messages to prompt text, in a sandbox.

Enters: the source of a jinja2 template (data of a bundle, not to be trusted) and messages. Leaves: the text that
transformers renders, byte for byte, or one line that says what is wrong. A template reaches no file, no Python
internals and no more memory or time than the limits below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jinja2

from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.runtime.deadline import in_time
from spec_edge.runtime.sandbox import Refused, cap_size, environment

SOURCE_LIMIT = 256 << 10
"""Most characters of a template."""

SECONDS = 10.0
ROLES = ("system", "user", "assistant", "tool")
KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")

Message = Mapping[str, Any]


def check_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies of the messages with `content` as one text; BadUsage names the message that is wrong."""
    if not messages:
        raise BadUsage("there is no message; give at least one")
    return [_message(m, f"message {i}") for i, m in enumerate(messages, 1)]


def _message(message: Message, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise BadUsage(f"{where} is not an object with 'role' and 'content'")
    if unknown := [k for k in message if k not in KEYS]:
        raise BadUsage(f"{where} has an unknown key {unknown[0]!r}; known: {', '.join(KEYS)}")
    if message.get("role") not in ROLES:
        raise BadUsage(f"{where} has role {message.get('role')!r}; known: {', '.join(ROLES)}")
    return {**message, "content": _content(message.get("content"), where)}


def _content(content: object, where: str) -> str:
    """null is empty; text parts are joined."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise BadUsage(f"{where} has content that is neither text nor a list of text parts")
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise BadUsage(f"{where} has a part that is not text; this model reads text only")
    return "".join(part["text"] for part in content)


class Template:
    """A compiled template. `render` is safe to call from several threads."""

    def __init__(self, source: str) -> None:
        if len(source) > SOURCE_LIMIT:
            raise SpecError(f"the chat template has {len(source)} characters, more than {SOURCE_LIMIT}; {_FIX}")
        self.source = source
        try:
            self._template = environment().from_string(source)
        except (jinja2.TemplateError, RecursionError, SyntaxError, ValueError) as error:
            raise _failure(error) from None

    def render(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, tokens: Mapping[str, str] | None = None
    ) -> str:
        """The prompt. `messages` as `check_messages` gives them; `tokens`: texts of bos_token, eos_token ..."""
        variables = {
            **(tokens or {}),
            "messages": list(messages),
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return _in_time(lambda: _bounded(self._template.generate(variables)))


_FIX = "use --no-chat, or export a model with another template"


def _bounded(pieces: Iterator[str]) -> str:
    """The pieces joined, counted as they come."""
    out, size = [], 0
    for piece in pieces:
        size += len(piece)
        cap_size(size)
        out.append(piece)
    return "".join(out)


def _in_time(render: Callable[[], str]) -> str:
    try:
        return in_time(render, SECONDS)
    except KeyboardInterrupt:
        raise
    except TimeoutError:
        raise SpecError(f"the chat template ran for more than {SECONDS:g} s; {_FIX}") from None
    except BaseException as error:
        raise _failure(error) from None


def _failure(error: BaseException) -> SpecError:
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    if isinstance(error, Refused):
        return BadUsage(f"the chat template refuses these messages: {reason}")
    return SpecError(f"the chat template failed: {reason}; {_FIX}")
