"""Questions to be answered in JSON, with and without a schema."""

from __future__ import annotations

import json
from typing import Any

from demo.library import BOOLEAN, INTEGER, NUMBER, SCHEMAS, STRING
from demo.values import CAPITALS, Values, joined, spoken

_KEYS = {
    "title": "phrase", "year": "int", "rated": "bool", "serial": "code", "count": "int", "labels": "words", "color": "color",
    "price": "float", "owner": "person", "city": "city", "active": "bool", "code": "code", "date": "date", "numbers": "ints",
    "email": "email", "size": "small", "room": "room", "language": "language", "status": "status", "path": "path",
}  # fmt: skip
_LIKED = ["I love this phone.", "What a great film!", "The food was excellent.", "Best hotel ever!", "I am very happy with it."]
_DISLIKED = ["I hate this phone.", "What a terrible film!", "The food was awful.", "Worst hotel ever!", "I want my money back."]

JsonTask = tuple[str, dict[str, Any], dict[str, Any]]
"""Question, answer, and the JSON schema of each key."""


def _person(values: Values) -> JsonTask:
    name, age, city = values["person"], values.rng.randint(5, 90), values["city"]
    asks = [
        f"{name} is {age} years old and lives in {city}. Extract name, age and city.",
        f"Give me JSON for {name}, {age} years old, from {city}. Keys: name, age, city.",
        f"Extract the name, the age and the city as JSON: {name}, {age}, {city}.",
    ]
    return values.rng.choice(asks), {"name": name, "age": age, "city": city}, {"name": STRING, "age": INTEGER, "city": STRING}


def _product(values: Values) -> JsonTask:
    thing, price, there = values["thing"], values["float"], values["bool"]
    state = "in stock" if there else "sold out"
    ask = f"The product {thing} costs {price} and is {state}. Return product, price, in_stock as JSON."
    types = {"product": STRING, "price": NUMBER, "in_stock": BOOLEAN}
    return ask, {"product": thing, "price": price, "in_stock": there}, types


def _capital(values: Values) -> JsonTask:
    country, city = values.rng.choice(list(CAPITALS.items()))
    if values.rng.random() < 0.5:
        ask = f"What is the capital of {country}? Answer in JSON with the keys country and capital."
        return ask, {"country": country, "capital": city}, {"country": STRING, "capital": STRING}
    return f"What is the capital of {country}? Answer in JSON with the key capital.", {"capital": city}, {"capital": STRING}


def _yes_or_no(values: Values) -> JsonTask:
    country, city = values.rng.choice(list(CAPITALS.items()))
    right = values["bool"]
    asked = city if right else values.rng.choice([other for other in CAPITALS.values() if other != city])
    ask = f"Is {asked} the capital of {country}? Answer in JSON with the key correct."
    return ask, {"correct": right}, {"correct": BOOLEAN}


def _feeling(values: Values) -> JsonTask:
    good = values["bool"]
    text = values.rng.choice(_LIKED if good else _DISLIKED)
    ask = f'Classify the text as positive or negative. Answer in JSON with the key sentiment. Text: "{text}"'
    types = {"sentiment": {"type": "string", "enum": ["positive", "negative"]}}
    return ask, {"sentiment": "positive" if good else "negative"}, types


def _object(values: Values) -> JsonTask:
    keys = values.rng.sample(list(_KEYS), values.rng.choice([1, 2, 2, 3, 3]))
    answer = {key: values[_KEYS[key]] for key in keys}
    listed = [f"{key} {spoken(value, values.rng)}" for key, value in answer.items()]
    asks = [
        f"Return a JSON object with {' and '.join(listed)}.", f"JSON please: {', '.join(listed)}",
        f"Give me JSON with {joined(listed)}.", f"Make a JSON object: {', '.join(listed)}.",
    ]  # fmt: skip
    return values.rng.choice(asks), answer, {key: SCHEMAS.get(_KEYS[key], STRING) for key in keys}


def json_task(values: Values) -> tuple[str, str, dict[str, Any]]:
    """Question, compact JSON answer and `response_format`. With a schema the keys come sorted, as it is shown."""
    rng = values.rng
    task = rng.choice([_person, _product, _capital, _yes_or_no, _feeling, _object, _object, _object])
    question, answer, types = task(values)
    response_format: dict[str, Any] = {"type": "json_object"}
    if rng.random() < 0.65:
        answer = dict(sorted(answer.items()))
        schema: dict[str, Any] = {"type": "object", "properties": types, "required": list(types)}
        if rng.random() < 0.6:
            schema["additionalProperties"] = False
        response_format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return question, json.dumps(answer, ensure_ascii=False, separators=(",", ":")), response_format
