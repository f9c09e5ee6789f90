"""Forged user tokens for tests and attacks: each must be rejected. Also the keys that sign valid ones."""

from __future__ import annotations

import base64
import hmac
import json
import time
from hashlib import sha256
from typing import Any

import jwt
from api_clients import ISSUER, SECRET, make_claims, make_token
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
PUBLIC_PEM = RSA.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)


def jwk(key: Any, kid: str, **more: str) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPrivateKey):
        created = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        created = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        created = jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**created, "kid": kid, **more}


def encode_base64url(value: object) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def encode_unchecked(header: dict[str, Any], payload: object, secret: bytes = SECRET.encode()) -> str:
    """Encode a token that JWT libraries refuse to create."""
    signed = f"{encode_base64url(header)}.{encode_base64url(payload)}"
    return f"{signed}.{encode_base64url(hmac.digest(secret, signed.encode(), sha256))}"


def make_hs256_token(**changes: Any) -> str:
    """Return a correctly signed token with changed claims. None removes a claim."""
    body = {name: value for name, value in make_claims(**changes).items() if value is not None}
    return encode_unchecked({"alg": "HS256", "typ": "JWT"}, body)


def make_forged_tokens() -> dict[str, str]:
    good = make_token()
    head, body, signature = good.split(".")
    now = int(time.time())
    rs = {"alg": "RS256", "typ": "JWT", "kid": "rsa"}
    tokens = {
        f"alg {name}": f"{encode_base64url({'alg': name, 'typ': 'JWT'})}.{encode_base64url(make_claims())}."
        for name in ("none", "None", "NONE", "nOnE", "", "HS256", "RS256")
    }
    tokens |= {
        f"{name} is not pinned": jwt.encode(make_claims(), SECRET, name) for name in ("HS384", "HS512")
    }
    tokens |= {
        "no alg": encode_unchecked({"typ": "JWT"}, make_claims()),
        "alg is a list": encode_unchecked({"alg": ["HS256"]}, make_claims()),
        "alg is null": encode_unchecked({"alg": None}, make_claims()),
        "key confusion: PEM": encode_unchecked({"alg": "HS256", "kid": "rsa"}, make_claims(), PUBLIC_PEM),
        "key confusion: PEM stripped": encode_unchecked({"alg": "HS256"}, make_claims(), PUBLIC_PEM.strip()),
        "key confusion: jwk": encode_unchecked(
            {"alg": "HS256"}, make_claims(), encode_base64url(jwk(RSA, "rsa")).encode()
        ),
        "key confusion: alg RS256 over HMAC": encode_unchecked(rs, make_claims(), PUBLIC_PEM),
        "another secret": encode_unchecked(
            {"alg": "HS256"}, make_claims(), b"another secret of the same length....."
        ),
        "an empty secret": encode_unchecked({"alg": "HS256"}, make_claims(), b""),
        "the issuer as secret": encode_unchecked({"alg": "HS256"}, make_claims(), ISSUER.encode()),
        "another RSA key": jwt.encode(make_claims(), OTHER_RSA, "RS256", headers={"kid": "rsa"}),
        "another RSA key, unknown kid": jwt.encode(make_claims(), OTHER_RSA, "RS256", headers={"kid": "new"}),
        "another RSA key, no kid": jwt.encode(make_claims(), OTHER_RSA, "RS256"),
        "right key, no kid among many": jwt.encode(make_claims(), RSA, "RS256"),
        "another algorithm of the same key": jwt.encode(make_claims(), RSA, "PS256", headers={"kid": "rsa"}),
        "RS512 of the same key": jwt.encode(make_claims(), RSA, "RS512", headers={"kid": "rsa"}),
        "kid of a key of another kind": jwt.encode(make_claims(), RSA, "RS256", headers={"kid": "ec"}),
        "kid of the shared secret in the set": jwt.encode(
            make_claims(), "x" * 32, "HS256", headers={"kid": "shared"}
        ),
        "key for encryption": jwt.encode(make_claims(), OTHER_RSA, "RS256", headers={"kid": "enc"}),
        "jwk in the header": jwt.encode(
            make_claims(), OTHER_RSA, "RS256", headers={"kid": "mine", "jwk": jwk(OTHER_RSA, "mine")}
        ),
        "jwk in the header, known kid": jwt.encode(
            make_claims(), OTHER_RSA, "RS256", headers={"kid": "rsa", "jwk": jwk(OTHER_RSA, "rsa")}
        ),
        "jku": jwt.encode(
            make_claims(), OTHER_RSA, "RS256", headers={"kid": "m", "jku": "http://127.0.0.1:1/keys"}
        ),
        "x5u": jwt.encode(
            make_claims(), OTHER_RSA, "RS256", headers={"kid": "m", "x5u": "http://127.0.0.1:1/keys"}
        ),
        "x5c": jwt.encode(make_claims(), OTHER_RSA, "RS256", headers={"kid": "m", "x5c": ["MIIB"]}),
        "kid is a path": encode_unchecked({"alg": "HS256", "kid": "../../../dev/null"}, make_claims(), b""),
        "kid is SQL": jwt.encode(make_claims(), OTHER_RSA, "RS256", headers={"kid": "' or 1=1 --"}),
        "kid is a number": encode_unchecked({"alg": "HS256", "kid": 7}, make_claims()),
        "crit": encode_unchecked({"alg": "HS256", "crit": ["exp"]}, make_claims()),
        "b64 false": encode_unchecked({"alg": "HS256", "b64": False, "crit": ["b64"]}, make_claims()),
        "a changed payload": f"{head}.{encode_base64url(make_claims('bob'))}.{signature}",
        "a changed header": f"{encode_base64url({'alg': 'HS256', 'x': 1})}.{body}.{signature}",
        "a changed signature": f"{head}.{body}.{'A' if signature[0] != 'A' else 'B'}{signature[1:]}",
        "a cut signature": good[:-4],
        "no signature": f"{head}.{body}.",
        "two parts": f"{head}.{body}",
        "four parts": f"{good}.x",
        "five parts": f"{head}..{body}.{signature}.x",
        "only dots": "..",
        "no JSON": f"{encode_base64url(b'{')}.{encode_base64url(b'x')}.{signature}",
        "payload is a list": encode_unchecked({"alg": "HS256"}, [make_claims()]),
        "payload is a string": encode_unchecked({"alg": "HS256"}, "sub"),
        "header is a list": f"{encode_base64url([])}.{body}.{signature}",
        "not base64": f"{head}.{body}.%%%",
        "too long": make_hs256_token(filler="x" * 20_000),
        "deeply nested": f"{encode_base64url({'alg': 'HS256'})}.{encode_base64url(b'[' * 5000)}.{signature}",
        "expired": make_hs256_token(exp=now - 60),
        "expired long ago": make_hs256_token(exp=1),
        "exp missing": make_hs256_token(exp=None),
        "exp is text": make_hs256_token(exp="never"),
        "exp is a list": make_hs256_token(exp=[now + 600]),
        "exp is true": make_hs256_token(exp=True),
        "exp is infinite": encode_unchecked({"alg": "HS256"}, {**make_claims(), "exp": float("inf")}),
        "exp is huge": make_hs256_token(exp=10**400),
        "not yet": make_hs256_token(nbf=now + 600),
        "issued in the future": make_hs256_token(iat=now + 600),
        "aud missing": make_hs256_token(aud=None),
        "aud of another": make_hs256_token(aud="anon"),
        "aud among others": make_hs256_token(aud=["a", "b"]),
        "aud is a prefix": make_hs256_token(aud="authenticate"),
        "aud is an object": make_hs256_token(aud={"authenticated": 1}),
        "iss missing": make_hs256_token(iss=None),
        "iss of another": make_hs256_token(iss="https://evil.test"),
        "iss with a slash": make_hs256_token(iss=ISSUER + "/"),
        "iss is a list": make_hs256_token(iss=[ISSUER]),
        "sub missing": make_hs256_token(sub=None),
        "sub empty": make_hs256_token(sub=""),
        "sub blank": make_hs256_token(sub="  "),
        "sub is a number": make_hs256_token(sub=7),
        "sub is a list": make_hs256_token(sub=["ann"]),
        "sub with NUL": make_hs256_token(sub="ann\0bob"),
        "sub with a line": make_hs256_token(sub="ann\nbob"),
        "sub too long": make_hs256_token(sub="x" * 500),
        "role of a service": make_hs256_token(role="service_role"),
        "role anon": make_hs256_token(role="anon"),
        "role of the owner": make_hs256_token(role="postgres"),
        "role is a list": make_hs256_token(role=["authenticated"]),
    }  # fmt: skip
    return tokens
