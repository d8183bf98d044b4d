"""Formats of strings that have a grammar, by the names of JSON Schema.

Invariant: a text that an automaton here accepts is one that validators take. Not all that they take is accepted (leap seconds,
years before 1000, quoted mail addresses, other alphabets than ASCII in host names).
"""

from __future__ import annotations

from typing import Final

_DATE: Final = (
    r"(?:[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    r"|(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)-02-29)"
)
_TIME: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9]|-[A-Za-z0-9])*"
_HOST: Final = rf"{_LABEL}(?:\.{_LABEL})*"
_BYTE: Final = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4: Final = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_GROUP: Final = "[0-9A-Fa-f]{1,4}"
_IPV6: Final = "|".join(
    (
        rf"(?:{_GROUP}:){{7}}{_GROUP}",
        rf"(?:{_GROUP}:){{1,7}}:",
        *(rf"(?:{_GROUP}:){{1,{7 - after}}}(?::{_GROUP}){{1,{after}}}" for after in range(1, 7)),
        rf":(?::{_GROUP}){{1,7}}",
        "::",
    )
)
_URI_TEXT: Final = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})"
_PATH_TEXT: Final = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"

PATTERNS: Final = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}[Tt]{_TIME}$",
    "uuid": "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$",
    "email": rf"^[A-Za-z0-9_+-]+(?:\.[A-Za-z0-9_+-]+)*@{_LABEL}(?:\.{_LABEL})+$",
    "hostname": f"^{_HOST}$",
    "ipv4": f"^{_IPV4}$",
    "ipv6": f"^(?:{_IPV6})$",
    "uri": rf"^(?:https?|ftp|wss?|file)://{_HOST}(?::[1-9][0-9]{{0,3}})?(?:/{_PATH_TEXT}*)*(?:\?{_URI_TEXT}*)?(?:#{_URI_TEXT}*)?$",
    "uri-reference": rf"^(?:(?:https?|ftp|wss?|file)://{_HOST}(?::[1-9][0-9]{{0,3}})?)?(?:/{_PATH_TEXT}+)*/?(?:\?{_URI_TEXT}*)?(?:#{_URI_TEXT}*)?$",
    "duration": (
        r"^P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
        r"(?:T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))?"
        r"|T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))$"
    ),
    "json-pointer": "^(?:/(?:[^~/]|~[01])*)*$",
}
"""Format -> a pattern for the whole text."""
