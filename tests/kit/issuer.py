"""An issuer of tokens for tests: keys of its own, signed tokens, a key set as JSON."""

from __future__ import annotations

import json
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, OKPKey, RSAKey

NOW_S = 1_800_000_000


class Issuer:
    """Signs tokens for `alice` that are valid for an hour."""

    def __init__(self, kid: str = "one", algorithm: str = "ES256") -> None:
        self.algorithm = algorithm
        self.key: Any
        if algorithm.startswith(("RS", "PS")):
            self.key = RSAKey.generate_key(2048, {"kid": kid})
        elif algorithm == "Ed25519":
            self.key = OKPKey.generate_key("Ed25519", {"kid": kid})
        else:
            curve = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}[algorithm]
            self.key = ECKey.generate_key(curve, {"kid": kid})
        self.kid = kid

    def key_set(self) -> bytes:
        """The public key as a key set."""
        return json.dumps({"keys": [self.key.as_dict(private=False)]}).encode()

    def token(
        self, now_s: float = NOW_S, header: dict[str, Any] | None = None, **claims: Any
    ) -> str:
        """A signed token; a claim that is None is left out."""
        made = {
            "sub": "alice", "iss": "https://issuer", "aud": "kafka", "iat": int(now_s),
            "exp": int(now_s) + 3600, **claims,
        }  # fmt: skip
        found = {name: value for name, value in made.items() if value is not None}
        head = {"alg": self.algorithm, "kid": self.kid, **(header or {})}
        return jwt.encode(head, found, self.key, algorithms=[self.algorithm])
