"""Addresses of databases as they may be shown: a password in one is no part of a message or a record."""

from __future__ import annotations

import re
from urllib.parse import unquote, unquote_plus

__all__ = ["masked"]

_USER = re.compile(r"(://[^\s:/@]*):([^\s]*)@")
_QUERY = re.compile(r"([?&;][^=&;\s]*(?:passw|pwd|secret|token|key)[^=&;\s]*=)([^&;\s'\")]+)", re.IGNORECASE)
_STARS = "***"


def masked(text: str, address: str = "") -> str:
    """The text with stars for the password of every address in it, and for that of `address` wherever it stands."""
    secrets = [match[2] for pattern in (_USER, _QUERY) for match in pattern.finditer(address)]
    text = _QUERY.sub(rf"\1{_STARS}", _USER.sub(rf"\1:{_STARS}@", text))
    forms = {form for found in secrets for form in (found, unquote(found), unquote_plus(found)) if form}
    for secret in sorted(forms, key=len, reverse=True):
        text = text.replace(secret, _STARS)
    return text
