"""Tools of a conversation: declarations, made-up tools, requests with the calls they ask for, and results with their answers."""

from __future__ import annotations

import json
import random
import re
from typing import Any

from demo.library import LIBRARY, SCHEMAS, STRING, Tool
from demo.values import Values, joined, spoken

_VERBS = (  # noqa: SIM905 - easier to read than quoted words
    "add apply build check close copy count create delete export fetch find import list load lock move open pack print query "
    "remove rename reset resize save scan send sort start stop store sync update"
).split()
_NOUNS = (  # noqa: SIM905
    "account album archive asset backup badge basket batch bucket camera channel client cluster contract device invoice item "
    "job label ledger license member parcel payment photo printer project queue record report robot route sensor server shelf "
    "station task team ticket token vehicle video wallet booking customer lesson recipe shipment"
).split()
_PARAMETERS = {
    "id": "code", "name": "phrase", "city": "city", "owner": "person", "email": "email", "date": "date", "time": "hour",
    "path": "path", "color": "color", "mode": "word", "note": "sentence", "kind": "thing", "code": "code", "serial": "code",
    "topic": "topic", "count": "int", "size": "int", "page": "small", "limit": "int", "price": "float", "weight": "float",
    "ratio": "float", "force": "bool", "public": "bool", "active": "bool", "tags": "words", "people": "people", "numbers": "ints",
    "options": "object", "settings": "object", "country": "country", "language": "language", "user_id": "code", "hour": "small",
    "model": "word",
}  # fmt: skip
_FIELDS = {
    "id": "code", "count": "int", "status": "status", "name": "phrase", "owner": "person", "city": "city", "price": "float",
    "date": "date", "total": "int", "color": "color", "message": "sentence",
}  # fmt: skip
_PAIRS = [
    ("origin", "destination", "city"), ("source", "target", "path"), ("sender", "receiver", "person"), ("first", "second", "int"),
]  # fmt: skip
_ONE_OF_MANY = ("city", "path", "symbol", "code", "person", "topic", "country")
_FAILURES = ["not found", "timeout", "permission denied", "service unavailable"]

Call = tuple[str, dict[str, Any]]
"""Name of the tool and its arguments, in the order in which a declaration shows them: sorted by key."""


def declaration(tool: Tool, rng: random.Random) -> dict[str, Any]:
    """The tool object that a client sends, in one of the forms that clients use."""
    properties: dict[str, Any] = {}
    for key, kind in tool.parameters.items():
        properties[key] = dict(SCHEMAS.get(kind, STRING))
        if rng.random() < 0.3:
            properties[key]["description"] = f"The {key.replace('_', ' ')}"
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if tool.required:
        parameters["required"] = list(tool.required)
    if rng.random() < 0.15:
        parameters["additionalProperties"] = False
    return {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": parameters}}


def invented_tool(rng: random.Random) -> Tool:
    """A tool that exists nowhere, so that names and keys have to be read in the declaration."""
    verb, noun = rng.choice(_VERBS), rng.choice(_NOUNS)
    name = rng.choice([f"{verb}_{noun}", f"{verb}_{noun}", f"{noun}_{verb}", f"{verb}{noun.capitalize()}", f"{noun}.{verb}"])
    requests: list[str] = []
    if rng.random() < 0.2:
        low, high, kind = rng.choice(_PAIRS)
        parameters = {low: kind, high: kind}
        required = [low, high]
        requests = [
            f"{verb.capitalize()} the {noun} from <{low}> to <{high}>.",
            f"{verb.capitalize()} a {noun} from <{low}> to <{high}>",
        ]
        asked = [required]
    else:
        keys = rng.sample(list(_PARAMETERS), rng.choice([1, 1, 2, 2, 3, 4]))
        parameters = {key: _PARAMETERS[key] for key in keys}
        required = keys[: rng.randint(1, len(keys))]
        optional = keys[len(required) :]
        asked = [required, required, [*required, *rng.sample(optional, rng.randint(0, len(optional)))]]
    for keys in asked:
        requests += _requests(name, verb, noun, keys)
    fields = {key: _FIELDS[key] for key in rng.sample(list(_FIELDS), rng.choice([0, 1, 1, 2, 2]))}
    shown = joined([f"the {key} is <{key}>" for key in fields]) if fields else f"the {noun} request went through"
    answers = [f"Done, {shown}.", shown[0].upper() + shown[1:] + "."]
    if rng.random() < 0.15:
        required = []
    return Tool(name, f"{verb.capitalize()} a {noun}.", parameters, requests, fields, answers, required)


def _requests(name: str, verb: str, noun: str, keys: list[str]) -> list[str]:
    detail = ", ".join(f"{key} <{key}>" for key in keys)
    both = joined([f"{key} <{key}>" for key in keys])
    asks = [
        f"{verb.capitalize()} the {noun} with {both}.", f"{verb.capitalize()} a {noun}: {detail}.", f"Use {name} with {both}.",
        f"Please {verb} the {noun}, {detail}.", f"Call {name} with {', '.join(f'{key}=<{key}>' for key in keys)}",
        f"I need to {verb} a {noun} with {both}.",
    ]  # fmt: skip
    if len(keys) == 1:
        asks += [
            f"{verb.capitalize()} the {noun} <{keys[0]}>.",
            f"{verb} {noun} <{keys[0]}>",
            f"Can you {verb} the {noun} <{keys[0]}>?",
        ]
    return asks


def some_tools(rng: random.Random, count: int) -> list[Tool]:
    """`count` tools of different names."""
    found: dict[str, Tool] = {}
    while len(found) < count:
        tool = rng.choice(LIBRARY) if rng.random() < 0.55 else invented_tool(rng)
        found[tool.name] = tool
    return list(found.values())


def filled(template: str, values: dict[str, Any], rng: random.Random | None = None) -> str:
    """`template` with its `<key>` and `<key?yes:no>` replaced."""

    def put(match: re.Match[str]) -> str:
        value = values[match.group(1)]
        return spoken(value, rng) if match.group(2) is None else match.group(2) if value else match.group(3)

    return re.sub(r"<(\w+)(?:\?([^:>]*):([^>]*))?>", put, template)


def mentioned(template: str) -> set[str]:
    """The keys that `template` has a place for."""
    return set(re.findall(r"<(\w+)[?>]", template))


def request(tool: Tool, values: Values) -> tuple[str, Call]:
    """What a user says, and the call that it asks for: the arguments that are mentioned, no others."""
    template = values.rng.choice(tool.requests)
    arguments = {key: values[tool.parameters[key]] for key in sorted(mentioned(template))}
    return filled(template, arguments, values.rng), (tool.name, arguments)


def request_of_several(tool: Tool, values: Values, count: int) -> tuple[str, list[Call]] | None:
    """One sentence that asks for `count` calls which differ in one argument, as in `Weather in Rome and Oslo?`; None if it
    can't."""
    plain = [key for key, kind in tool.parameters.items() if kind in _ONE_OF_MANY]
    templates = [(ask, key) for ask in tool.requests for key in plain if f"<{key}>" in ask]
    if not templates:
        return None
    template, key = values.rng.choice(templates)
    wanted = list(dict.fromkeys(values[tool.parameters[key]] for _ in range(count)))
    if len(wanted) < 2:
        return None
    others = {other: values[tool.parameters[other]] for other in sorted(mentioned(template) - {key})}
    text = filled(template, {**others, key: joined(wanted)}, values.rng)
    return text, [(tool.name, dict(sorted({**others, key: value}.items()))) for value in wanted]


def outcome(tool: Tool, arguments: dict[str, Any], values: Values) -> tuple[str, str] | None:
    """What the tool returns for a call, and what to tell the user; None if nothing fits the call's arguments."""
    rng = values.rng
    if rng.random() < 0.06:
        failure = rng.choice(_FAILURES)
        return rng.choice([f"Error: {failure}", json.dumps({"error": failure})]), f"Sorry, that did not work: {failure}."
    answers = [answer for answer in tool.answers if mentioned(answer) <= {*arguments, *tool.fields}]
    if not answers:
        return None
    result = {name: values[kind] for name, kind in tool.fields.items()}
    answer = filled(rng.choice(answers), {**arguments, **result})
    echoed = {key: value for key, value in arguments.items() if key not in result and rng.random() < 0.3}
    shown = {**echoed, **result}
    if not shown:
        return rng.choice(["ok", "done", '{"status":"ok"}', '{"success": true}']), answer
    if rng.random() < 0.25:
        return rng.choice(["\n", ", "]).join(f"{key}: {spoken(value)}" for key, value in shown.items()), answer
    separators = rng.choice([(",", ":"), (", ", ": ")])
    return json.dumps(shown, ensure_ascii=False, separators=separators), answer


def optional_left_out(tool: Tool, arguments: dict[str, Any]) -> list[str]:
    """Keys that the tool takes and the call does not have."""
    return sorted(set(tool.parameters) - set(arguments))
