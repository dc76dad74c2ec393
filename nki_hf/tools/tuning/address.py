"""Addresses of databases as they may be shown: a password in one is no part of a message or a record."""

from __future__ import annotations

import re
from urllib.parse import unquote, unquote_plus

__all__ = ["masked"]

_USER = re.compile(r"(://[^\s:/@]*):([^\s]*)@")
_QUERY = re.compile(r"([?&;][^=&;\s]*(?:passw|pwd|secret|token|key)[^=&;\s]*=)([^&;\s'\")]+)", re.IGNORECASE)
_STARS = "***"
_LEAST = 3


def masked(text: str, address: str = "") -> str:
    """The text with stars for the password of every address in it, and for that of `address` where it stands by itself.

    One of fewer than `_LEAST` letters is a part of ordinary words, and is masked in addresses and quotes alone.
    """
    secrets = [match[2] for pattern in (_USER, _QUERY) for match in pattern.finditer(address)]
    if address:
        text = text.replace(address, masked(address))
    text = _QUERY.sub(rf"\1{_STARS}", _USER.sub(rf"\1:{_STARS}@", text))
    forms = {form for found in secrets for form in (found, unquote(found), unquote_plus(found)) if form}
    for secret in sorted(forms, key=len, reverse=True):
        word = re.escape(secret)
        text = re.sub(word if len(secret) >= _LEAST else rf"(?<=['\"]){word}(?=['\"])", _STARS, text)
    return text
