"""The reply where no rule matches, and prompts for formats that leave templates to the engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from server.engine.base import EngineRequest
from server.engine.scripted.markup import Markup
from server.engine.scripted.reply import Tokens
from server.engine.scripted.rules import Rule
from server.errors import InvalidRequestError
from server.vocabulary.base import Vocabulary

REASONING = "No rule of the script matches, so a fixed reply will do."
ANSWER = "Thank you for your message. This is the scripted engine's fixed reply."


def polite_rule(request: EngineRequest, vocabulary: Vocabulary) -> Rule:
    """A well-formed answer in the channel that the prompt has opened; plain text where it has opened none.

    Where the request demands calls or JSON, it is an answer that obeys.
    """
    if request.hints.example is not None:
        return Rule(reply=(Tokens(tuple(request.hints.example())),))
    markup = Markup(vocabulary)
    answer = vocabulary.encode(ANSWER)
    if markup.available:
        closing = markup.words("</response>", "</message>")
        if markup.opens(request.token_ids, "think"):
            reasoning = [*vocabulary.encode(REASONING), *markup.words("</think>", "<response>")]
            return Rule(reply=(Tokens((*reasoning, *answer, *closing)),))
        if markup.opens(request.token_ids, "response"):
            return Rule(reply=(Tokens((*answer, *closing)),))
    return Rule(reply=(Tokens(tuple(answer)),))


def chat_text(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
    """A conversation as lines `role: content`, tools before it as JSON, `assistant: ` behind it.

    Raises `InvalidRequestError` for content that is neither text nor a list of text parts.
    """
    lines = [f"tools: {json.dumps(list(tools), ensure_ascii=False)}"] if tools else []
    for index, message in enumerate(messages):
        lines.append(f"{message.get('role', 'user')}: {_content_text(message, f'messages[{index}]')}")
    return "\n".join([*lines, "assistant: "])


def _content_text(message: Mapping[str, Any], path: str) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None:
        calls = message.get("tool_calls")
        return json.dumps(calls, ensure_ascii=False) if calls else ""
    texts = []
    for index, part in enumerate(content if isinstance(content, list) else [content]):
        text = part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            raise InvalidRequestError(
                "only text can be rendered for this model: leave other parts out", param=f"{path}.content[{index}]"
            )
        texts.append(text)
    return "".join(texts)
