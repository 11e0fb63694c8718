"""Key pairs and signatures: Ed25519 (RFC 8032) and CURVE (Curve25519), of libsodium by PyNaCl.

A signature covers a context and the data, so that a signature for one purpose is invalid for any other. Libraries are imported at
their first use: PyNaCl takes 6 ms and 1.1 MB.
"""

from __future__ import annotations

import os
from typing import NamedTuple

KEY_BYTES = 32
SIGNATURE_BYTES = 64


class Pair(NamedTuple):
    """A key pair. The secret key of Ed25519 is libsodium's form, 64 bytes: seed and public key. All others have 32 bytes."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        return "Pair(…)"


def signing_pair(seed: bytes | None = None) -> Pair:
    """The Ed25519 pair of that seed, or a new one."""
    from nacl.bindings import crypto_sign_seed_keypair

    return Pair(*crypto_sign_seed_keypair(os.urandom(KEY_BYTES) if seed is None else seed))


def seal(secret: bytes, context: bytes, data: bytes) -> bytes:
    """A signature, 64 bytes, of `data` in that context. 25 µs."""
    from nacl.bindings import crypto_sign

    return crypto_sign(context + b"\0" + data, secret)[:SIGNATURE_BYTES]


def is_sealed(public: bytes, context: bytes, data: bytes, signature: bytes) -> bool:
    """Whether the holder of `public` made that signature. 60 µs."""
    if len(public) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    from nacl.bindings import crypto_sign_open
    from nacl.exceptions import CryptoError

    try:
        crypto_sign_open(signature + context + b"\0" + data, public)
    except CryptoError:
        return False
    return True


def curve_pair() -> Pair:
    """A new CURVE pair."""
    from nacl.bindings import crypto_box_keypair

    return Pair(*crypto_box_keypair())


def curve_public(secret: bytes) -> bytes:
    """The public key of a secret one."""
    from nacl.bindings import crypto_scalarmult_base

    return crypto_scalarmult_base(secret)
