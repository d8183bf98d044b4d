"""Seeded random values that requests, tool results and JSON answers are filled with.

Role: the bottom of the training data. Invariant: the same seed gives the same values in the same order. Values that the
evaluation's calls use are kept out of the pools, so that it measures copying, not memory; but for Paris, London and Lyon.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from typing import Any

CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Japan": "Tokyo", "Spain": "Madrid", "Germany": "Berlin", "Egypt": "Cairo",
    "Peru": "Lima", "Norway": "Oslo", "Greece": "Athens", "Kenya": "Nairobi", "Cuba": "Havana", "China": "Beijing",
    "Austria": "Vienna", "Poland": "Warsaw", "Sweden": "Stockholm", "Ireland": "Dublin", "Russia": "Moscow", "Turkey": "Ankara",
    "Canada": "Ottawa", "Belgium": "Brussels", "Thailand": "Bangkok", "India": "New Delhi", "Hungary": "Budapest",
    "Argentina": "Buenos Aires", "Iran": "Tehran", "Iraq": "Baghdad", "Vietnam": "Hanoi", "England": "London", "Ukraine": "Kyiv",
    "Chile": "Santiago",
}  # fmt: skip
CITIES = [
    *CAPITALS.values(), "Milan", "Naples", "Lyon", "Nice", "Toulouse", "Hamburg", "Munich", "Cologne", "Seville", "Boston",
    "Chicago", "Dallas", "Denver", "Seattle", "Miami", "Toronto", "Montreal", "Sydney", "Perth", "Osaka", "Kyoto", "Shanghai",
    "Mumbai", "Lagos", "Tunis", "Geneva", "Basel", "Malmo", "Porto", "Krakow", "Prague", "Leeds", "Bristol", "Cork", "San Diego",
    "New York", "Los Angeles", "Hong Kong", "Rio de Janeiro", "São Paulo", "Zürich", "Antwerp", "Riga", "Tallinn", "Sofia",
    "Zagreb", "Manila", "Jakarta", "Cape Town", "Accra", "Austin", "Portland", "San Francisco", "Valencia", "Florence", "Venice",
    "Salzburg", "北京", "上海",
]  # fmt: skip
_LISTS = {
    "person": "Anna Ben Clara David Emma Frank Grace Hugo Iris Jack Karen Leo Maria Nina Oscar Paul Rosa Sam Tina Victor "
    "Wendy Yusuf Zoe Omar Priya Chen Ingrid Mateo Alice Bob Carol Daniel Eva Fatima George Helen",
    "thing": "apples books bread candles chairs coffee cups eggs flowers glass honey keys lamps maps milk paper pens rice "
    "shoes soap stones tea tents tomatoes wool bicycles batteries carpets cheese olives oranges shirts tables umbrellas",
    "word": "alpha amber basic blue bright calm cedar cold copper daily delta draft early east fast final fresh gold grand "
    "green heavy home iron large light local lunar main metal mint night north ocean old orange pilot plain prime private "
    "public quiet rapid red river round royal silver simple slow small smart south spring stone summer sunny urgent violet "
    "warm west white wild winter work",
    "language": "French Spanish German Italian Portuguese Dutch Polish Swedish Turkish Japanese Greek Finnish",
    "color": "red green blue yellow black white purple orange brown pink grey silver",
    "dir": "/tmp /home/user src docs tests /var/log /etc lib data /srv/app config",
    "file": "notes.txt report.md main.py config.yaml README.md data.csv index.html app.js list.txt Makefile users.json "
    "test.sh server.py",
    "condition": "sunny cloudy rainy windy foggy snowy stormy clear",
    "status": "ready delayed open closed sent paid pending active running shipped late lost",
}
_PHRASES = {
    "topic": "the sea|the sun|music|winter|tea|rivers|mountains|old books|a robot|the moon|bread|rain|football|the brain|"
    "glass|honey|deep learning|solar power|old maps|cheap flights|electric cars|Roman history|jazz piano|healthy food|"
    "black holes|whales|the best bread recipe|a good hotel in Rome|how to fix a bike|news about space|python lists|"
    "climate change|chess openings",
    "room": "kitchen|bedroom|bathroom|office|garage|living room|hall|attic|cellar|dining room",
    "sentence": "I will be late today.|See you at noon.|The order has arrived.|Please call me back.|Good morning!|"
    "I like this song.|The meeting is moved to Friday.|Can we talk tomorrow?|The train leaves at nine.|Happy birthday!|"
    "The door is open.|Do not wait for me.",
    "command": "ls -la|git status|pytest -q|make test|df -h|python main.py|git log --oneline|cat notes.txt|npm install|ps aux|"
    "whoami",
}
POOLS: dict[str, list[str]] = {name: words.split() for name, words in _LISTS.items()}
POOLS |= {name: words.split("|") for name, words in _PHRASES.items()}
POOLS |= {"city": CITIES, "country": list(CAPITALS)}

Value = str | int | float | bool | list[Any] | dict[str, Any]


class Values:
    """Draws values of a kind: `values["city"]`. Kinds are those of `POOLS` and of the methods below."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._made: dict[str, Callable[[], Value]] = {
            "path": self._path, "email": self._email, "code": self._code, "date": self._date, "hour": self._hour,
            "object": self._object,
            "symbol": lambda: self._letters(rng.randint(3, 4)),
            "small": lambda: rng.randint(1, 14),
            "int": lambda: rng.randint(1, rng.choice([20, 100, 999, 5000])),
            "float": lambda: round(rng.uniform(0.1, 99), 1),
            "temperature": lambda: rng.randint(-9, 39),
            "bool": lambda: rng.random() < 0.5,
            "phrase": lambda: f"{self['word']} {self['thing']}",
            "expression": lambda: f"{rng.randint(2, 99)} {rng.choice('+-*/')} {rng.randint(2, 99)}",
            "words": lambda: rng.sample(POOLS["word"], rng.randint(1, 3)),
            "people": lambda: rng.sample(POOLS["person"], rng.randint(2, 3)),
            "ints": lambda: [rng.randint(1, 99) for _ in range(rng.randint(2, 4))],
        }  # fmt: skip

    def __getitem__(self, kind: str) -> Any:
        return self.rng.choice(POOLS[kind]) if kind in POOLS else self._made[kind]()

    def _letters(self, length: int) -> str:
        return "".join(self.rng.choice(string.ascii_uppercase) for _ in range(length))

    def _digits(self, length: int) -> str:
        return "".join(self.rng.choice(string.digits) for _ in range(length))

    def _code(self) -> str:
        """An identifier of no meaning, in one of the shapes that people use: it can only be copied."""
        r = self.rng
        shapes = (
            lambda: f"{self._letters(2)}-{self._digits(r.randint(2, 4))}",
            lambda: f"{self._digits(2)}-{self._letters(2)}",
            lambda: f"{r.choice('abcuvxz')}_{self._digits(r.randint(3, 5))}",
            lambda: f"{self._letters(1)}{self._digits(r.randint(2, 6))}",
            lambda: "".join(r.choice(string.ascii_uppercase + string.digits) for _ in range(r.randint(5, 8))),
            lambda: "".join(r.choice("0123456789abcdef") for _ in range(r.randint(6, 8))),
            lambda: f"{self['word']}-{self._digits(2)}",
            lambda: self._digits(r.randint(4, 7)),
        )
        return r.choice(shapes)()

    def _path(self) -> str:
        return self["file"] if self.rng.random() < 0.35 else f"{self['dir']}/{self['file']}"

    def _email(self) -> str:
        return f"{self['person'].lower()}@{self['word']}.{self.rng.choice(['com', 'org', 'net'])}"

    def _date(self) -> str:
        return f"{self.rng.randint(2025, 2030)}-{self.rng.randint(1, 12):02d}-{self.rng.randint(1, 28):02d}"

    def _hour(self) -> str:
        return f"{self.rng.randint(0, 23):02d}:{self.rng.choice(['00', '15', '30', '45'])}"

    def _object(self) -> dict[str, Any]:
        members = [("theme", "word"), ("size", "small"), ("dark", "bool"), ("color", "color"), ("limit", "int"), ("city", "city")]
        return {key: self[kind] for key, kind in self.rng.sample(members, self.rng.randint(1, 3))}


def spoken(value: Value, rng: random.Random | None = None) -> str:
    """`value` as a person would write it; lists and objects now and then as JSON, if there is an `rng` to decide."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict) and rng is not None and rng.random() < 0.4:
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return joined([str(item) for item in value])
    if isinstance(value, dict):
        return joined([f"{key} {spoken(item)}" for key, item in value.items()])
    return str(value)


def joined(parts: list[str]) -> str:
    """`a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
