"""Kimi K3's prompt format.

Role: one implementation of `base.PromptFormat`. In the prompt come, in this order: tools, effort, the conversation, tool choice,
response format, and the beginning of the assistant message that the model is to finish.
Source: Moonshot's published encoder for Kimi K3; its token counts are in the tests.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from server.errors import InvalidRequestError
from server.images import Image, ImageRule, PlacedImage
from server.pauses import Pauses, go_on
from server.prompts.base import Conversation, Prompt
from server.prompts.content import NUM_LONG_AT_ONCE, check_room, is_long, parts_of
from server.prompts.known_texts import GroupTexts, KnownTexts
from server.prompts.notes import CONSTANT_TEXTS, write_effort, write_response_format, write_tool_choice, write_tools
from server.prompts.segments import Piece, Segment, SegmentEncoder
from server.prompts.tool_calls import PlacedMessage, place, write_calls
from server.prompts.xtml import CONTROL, MEDIA_CONTROL, RUNS, STRUCTURAL_TEXTS, Writer
from server.quoting import shown
from server.vocabulary.base import Vocabulary

_ROLES: Final = ("system", "user", "assistant", "tool")


class KimiK3Format:
    """Renders conversations for Kimi K3, over any vocabulary with its control tokens.

    The stub that hosted K3 does not count is the opened channel, `<|open|>think<|sep|>`: three tokens of K3's own vocabulary. A
    continued message (`partial`) has no stub: the prompt ends in what the client wrote, so every token counts.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        context_length: int = sys.maxsize,
        image_rule: ImageRule | None = None,
        *,
        known_texts_bytes: int = 0,
    ) -> None:
        """Raises `ValueError` where `vocabulary` lacks K3's control tokens. Without `image_rule`, images are refused.

        `known_texts_bytes`: what the token ids of earlier texts may take that are kept for later prompts.
        """
        control = CONTROL if image_rule is None else (*CONTROL, *MEDIA_CONTROL)
        self._image_rule = image_rule
        self._control = vocabulary.control
        self._longest_piece = vocabulary.longest_piece
        self._context_length = context_length
        # Not the loop's pool of threads: a client that leaves can't stop a thread, and all the same no more than these render.
        self._threads = ThreadPoolExecutor(NUM_LONG_AT_ONCE, thread_name_prefix="render")
        self._encoder = SegmentEncoder(vocabulary, control, (*STRUCTURAL_TEXTS, *CONSTANT_TEXTS), RUNS)
        self._known = KnownTexts(known_texts_bytes)
        self._num_stub_tokens = {thinking: len(self._encoder.encode(_stub(thinking))) for thinking in (False, True)}

    async def render(self, conversation: Conversation, group: str = "") -> Prompt:
        known = self._known.of(group)
        if is_long(conversation):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._render_long, conversation, known, Pauses(loop))
        return self._render(conversation, known)

    def _render_long(self, conversation: Conversation, known: GroupTexts | None, pause: Callable[[], None]) -> Prompt:
        check_room(conversation.messages, self._longest_piece, self._context_length)
        return self._render(conversation, known, self._context_length, pause)

    def _render(
        self,
        conversation: Conversation,
        known: GroupTexts | None,
        context_length: int = sys.maxsize,
        pause: Callable[[], None] = go_on,
    ) -> Prompt:
        """Raises `ContextLengthError` early where a `context_length` is given."""
        writer = written(conversation, self._image_rule, pause)
        token_ids = self._encoder.encode(writer.pieces, context_length, known, pause)
        images = self._placed(token_ids, writer.images) if writer.images else ()
        if _continues(conversation):
            return Prompt(token_ids, is_continued=True, images=images)
        num_stub_tokens = self._num_stub_tokens[conversation.thinking]
        return Prompt(token_ids, num_stub_tokens, in_reasoning=conversation.thinking, images=images)

    def _placed(self, token_ids: list[int], images: list[tuple[Image, int]]) -> tuple[PlacedImage, ...]:
        """Where the images are: nothing but an image has the tokens that begin and end one."""
        begin, end = self._control[MEDIA_CONTROL[0]], self._control[MEDIA_CONTROL[-1]]
        placed: list[PlacedImage] = []
        at = 0
        for image, num_pads in images:
            start = token_ids.index(begin, at)
            at = token_ids.index(end, start + num_pads) + 1
            placed.append(PlacedImage(image, start, at - start))
        return tuple(placed)


def segments_of(conversation: Conversation) -> list[Segment]:
    """What a model without images is to see. Raises `InvalidRequestError` with the path of what can't be rendered."""
    return written(conversation).segments


def written(conversation: Conversation, image_rule: ImageRule | None = None, pause: Callable[[], None] = go_on) -> Writer:
    """What the model is to see. Raises `InvalidRequestError` with the path of what can't be rendered.

    `pause` is called between messages.
    """
    writer = Writer()
    content = _Content(writer, conversation.images, image_rule)
    if conversation.tools:
        write_tools(writer, conversation.tools, "tools")
    if conversation.thinking and conversation.effort:
        write_effort(writer, conversation.effort)
    unfinished: PlacedMessage | None = None
    num_whole = len(conversation.messages) - _continues(conversation)
    for number, item in enumerate(place(conversation.messages)):
        if number < num_whole:
            _write_message(content, item, conversation.thinking)
        else:
            unfinished = item
        pause()
    write_tool_choice(writer, conversation.tool_choice)
    write_response_format(writer, conversation.response_format)
    if unfinished:
        _write_unfinished(content, unfinished, conversation.thinking)
    else:
        writer.open("message", ("role", "assistant"))
        writer.pieces += _stub(conversation.thinking)
    return writer


@dataclass(slots=True, frozen=True)
class _Content:
    """Writes what messages say: a segment for each part, images wherever they stand, in every role."""

    writer: Writer
    images: Mapping[str, Image]
    image_rule: ImageRule | None

    def write(self, message: Mapping[str, Any], param: str) -> None:
        """Raises `InvalidRequestError` for a part that is neither text nor one of the images."""
        for path, part in parts_of(message, param):
            if part["type"] == "text":
                self.writer.text(part["text"])
            elif self.image_rule is None or (image := self.images.get(path)) is None:
                raise InvalidRequestError(
                    f"`{shown(part['type'])}` parts are not supported: this model takes text only", param=path
                )
            else:
                self.writer.image(image, self.image_rule.num_tokens(image.width, image.height))


def _stub(thinking: bool) -> list[Piece]:
    """The opening of the channel that the model writes in."""
    writer = Writer()
    writer.open("think" if thinking else "response")
    return writer.pieces


def _continues(conversation: Conversation) -> bool:
    """Whether the last message is an assistant's with `partial` true, to be continued. On other messages that means nothing."""
    last: Mapping[str, Any] = conversation.messages[-1] if conversation.messages else {}
    return last.get("role") == "assistant" and last.get("partial") is True


def _write_message(content: _Content, item: PlacedMessage, thinking: bool) -> None:
    writer, message, param = content.writer, item.message, item.param
    role = "system" if message["role"] == "developer" else message["role"]
    if role not in _ROLES:
        raise InvalidRequestError(f"`{role}` is no role: use one of {', '.join(_ROLES)}", param=f"{param}.role")
    if role == "system" and message.get("tools"):
        write_tools(writer, message["tools"], f"{param}.tools", later=True)
        return
    if role == "tool":
        writer.open("message", ("role", role), ("tool", item.tool), ("index", str(item.number)))
    else:
        _open_message(writer, role, message)
    if role == "assistant":
        _write_thinking(writer, message, thinking)
        writer.open("response")
        content.write(message, param)
        writer.close("response")
        write_calls(writer, message.get("tool_calls") or (), f"{param}.tool_calls")
    else:
        content.write(message, param)
    writer.close_message()


def _write_unfinished(content: _Content, item: PlacedMessage, thinking: bool) -> None:
    """The assistant message to be continued: its response channel stays open."""
    writer = content.writer
    if item.message.get("tool_calls"):
        raise InvalidRequestError(
            "a `partial` message is continued in its text: send it without `tool_calls`", param=f"{item.param}.tool_calls"
        )
    _open_message(writer, "assistant", item.message)
    _write_thinking(writer, item.message, thinking)
    writer.open("response")
    content.write(item.message, item.param)


def _open_message(writer: Writer, role: str, message: Mapping[str, Any]) -> None:
    name = message.get("name")
    writer.open("message", ("role", role), *([("name", str(name))] if name else []))


def _write_thinking(writer: Writer, message: Mapping[str, Any], thinking: bool) -> None:
    """The reasoning channel of an earlier answer: always there when thinking is on, even empty, and never when it is off."""
    if thinking:
        reasoning = str(message.get("reasoning_content") or message.get("reasoning") or "")
        writer.element("think", text=reasoning if reasoning.strip() else "")
