"""Pseudonyms: names that a report can show where people must not be named.

A pseudonym is a number in the order of a keyed hash of the name, so that neither the order of the file nor that of the
alphabet tells who is who. The key is the fingerprint of the data: the same data give the same pseudonyms in every
output. Whoever has the data, or a list of the names and that fingerprint, can undo it; see docs/responsible-use.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def pseudonyms(names: Sequence[str], *, key: str) -> dict[str, str]:
    """A pseudonym for each name, `person 01` and on, in an order that depends on `key` and tells nothing of names."""

    def digest(name: str) -> bytes:
        return hashlib.blake2b(name.encode(errors="surrogatepass"), key=key.encode()[:64]).digest()

    digits = len(str(len(names)))
    numbered = enumerate(sorted(names, key=digest), start=1)
    return {name: f"person {number:0{digits}}" for number, name in numbered}
