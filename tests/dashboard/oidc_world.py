"""A provider of OpenID Connect on loopback, with real keys, which can be told to answer wrongly."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode

import uvicorn
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT_ID, SECRET = "toc-web", "a secret: with %/ signs"


class Provider:
    """Signs in one person. `claims`: replaces claims of the next tokens; None leaves one out."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.issuer = f"http://127.0.0.1:{self._socket.getsockname()[1]}/realm"
        self.key = RSAKey.generate_key(2048, {"kid": "first"}, auto_kid=False)
        self.claims: dict[str, Any] = {}
        self.facts: dict[str, Any] = {}
        self.is_down = False
        self.unsigned = False
        self.signing_key = self.key
        self._codes: dict[str, dict[str, str]] = {}
        routes = [
            Route("/realm/.well-known/openid-configuration", self._tell_facts),
            Route("/realm/authorize", self._authorize),
            Route("/realm/token", self._exchange, methods=["POST"]),
            Route("/realm/keys", self._tell_keys),
        ]
        config = uvicorn.Config(
            Starlette(routes=routes), log_config=None, lifespan="off", ws="none"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()

    # ---- what it answers

    async def _tell_facts(self, request: Request) -> Response:
        if self.is_down:
            return Response("<h1>Bad gateway</h1>", 502)
        facts = {
            "issuer": self.issuer, "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token", "jwks_uri": f"{self.issuer}/keys",
            "authorization_response_iss_parameter_supported": True,
        }  # fmt: skip
        return JSONResponse(facts | self.facts)

    async def _tell_keys(self, request: Request) -> Response:
        return JSONResponse(KeySet([self.key]).as_dict())

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        code = secrets.token_urlsafe(12)
        self._codes[code] = asked
        back = {"code": code, "state": asked["state"], "iss": self.issuer}
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode(back)}", 303)

    async def _exchange(self, request: Request) -> Response:
        if self.is_down:
            return Response("<h1>Bad gateway</h1>", 502)
        form = {name: found[0] for name, found in parse_qs((await request.body()).decode()).items()}
        kind, _, credentials = request.headers["authorization"].partition(" ")
        client, _, secret = base64.b64decode(credentials).decode().partition(":")
        asked = self._codes.pop(form["code"], None)
        challenge = hashlib.sha256(form["code_verifier"].encode()).digest()
        is_right = (
            kind == "Basic"
            and (unquote(client), unquote(secret)) == (CLIENT_ID, SECRET)
            and asked is not None
            and asked["redirect_uri"] == form["redirect_uri"]
            and asked["code_challenge_method"] == "S256"
            and base64.urlsafe_b64encode(challenge).decode().rstrip("=") == asked["code_challenge"]
        )
        if not is_right or asked is None:
            return JSONResponse({"error": "invalid_grant"}, 400)
        now_s = int(time.time())
        claims: dict[str, Any] = {
            "iss": self.issuer, "sub": "u-17", "aud": CLIENT_ID, "iat": now_s, "exp": now_s + 300,
            "nonce": asked["nonce"], "email": "alice@example.com", "email_verified": True,
            "groups": ["operators"],
        }  # fmt: skip
        claims = {name: it for name, it in (claims | self.claims).items() if it is not None}
        return JSONResponse(
            {"access_token": "x", "token_type": "Bearer", "id_token": self._sign(claims)}
        )

    def _sign(self, claims: dict[str, Any]) -> str:
        if self.unsigned:
            parts = [
                base64.urlsafe_b64encode(json.dumps(it).encode())
                for it in ({"alg": "none"}, claims)
            ]
            return ".".join(part.decode().rstrip("=") for part in parts) + "."
        return jwt.encode({"alg": "RS256", "kid": self.signing_key.kid}, claims, self.signing_key)


@contextmanager
def open_provider() -> Iterator[Provider]:
    provider = Provider()
    provider.start()
    try:
        yield provider
    finally:
        provider.stop()


def sign_in_settings(provider: Provider, **more: Any) -> dict[str, Any]:
    """Settings of `web`: operators may act on mail, viewers see the shop."""
    oidc = {"issuer": provider.issuer, "client_id": CLIENT_ID, "client_secret": SECRET}
    roles = [
        {"groups": ["admins"], "role": "admin"},
        {"groups": ["operators"], "role": "operator", "types": ["mail"]},
        {"groups": ["viewers"], "role": "viewer", "types": ["shop.*"]},
    ]
    return {"sign_in": {"oidc": oidc, "roles": roles, **more}}
