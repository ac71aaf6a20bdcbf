"""What toc asks a provider of OpenID Connect: where to send a browser, and whose code this is.

Each answer is bounded in time and size, no redirect is followed, and a token counts only if its signature,
issuer, audience, times and nonce are right.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import httpx
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

from toc.dashboard.sign_in_attempt import SignInAttempt
from toc.runtime.clock import Clock
from toc.runtime.sign_in_settings import OidcSettings

ANSWER_S_MAX = 5.0
ANSWER_BYTES_MAX = 262_144
ID_TOKEN_CHARS_MAX = 32_768
KEYS_MAX = 100
FACTS_S_MAX = 3600.0  # the provider's addresses and keys are read again after this time
KEYS_S_MIN = 30.0  # keys are read again for an unknown key id, but not more often than this
CLOCK_LEEWAY_S = 60
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
"""Signatures by a key of the provider alone: neither `none`, nor one by a secret that toc has too."""


class ProviderUnavailable(Exception):
    """The provider does not answer, or not as OpenID Connect says. The text is for the log."""


class SignInRefused(Exception):
    """The code or token is not one of this sign-in. The text is for the log."""


class _Endpoints(NamedTuple):
    authorization: str
    token: str
    keys: str
    takes_basic: bool
    names_issuer: bool  # in the browser's way back: RFC 9207


class OidcProvider:
    """The provider of the settings, for one event loop. Keeps its addresses and keys for a while."""

    def __init__(self, settings: OidcSettings, clock: Clock) -> None:
        self._issuer, self._client_id = settings.issuer or "", settings.client_id or ""
        self._secret, self._scopes = settings.client_secret, settings.scopes
        self._clock = clock
        self._lock = asyncio.Lock()
        self._endpoints: _Endpoints | None = None
        self._keys: KeySet | None = None
        self._endpoints_s = self._keys_s = float("-inf")
        self._tls = ssl.create_default_context()  # the authorities of the system, or SSL_CERT_FILE

    async def authorization_url(self, attempt: SignInAttempt, redirect_uri: str) -> str:
        """Where the browser is sent. Raises ProviderUnavailable."""
        endpoints = await self._find_endpoints()
        digest = hashlib.sha256(attempt.verifier.encode()).digest()
        fields = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(self._scopes),
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        joint = "&" if "?" in endpoints.authorization else "?"
        return f"{endpoints.authorization}{joint}{urlencode(fields)}"

    async def redeem_code(
        self, code: str, issuer: str | None, attempt: SignInAttempt, redirect_uri: str
    ) -> Mapping[str, Any]:
        """The claims about the person. issuer: the parameter `iss` of the browser's way back.

        Raises SignInRefused, ProviderUnavailable.
        """
        endpoints = await self._find_endpoints()
        if issuer != self._issuer and (issuer is not None or endpoints.names_issuer):
            raise SignInRefused("the answer comes from another issuer")
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": attempt.verifier,
        }
        secret = None if self._secret is None else self._secret.get_secret_value()
        credentials = None
        if secret is not None and endpoints.takes_basic:
            credentials = httpx.BasicAuth(quote(self._client_id, safe=""), quote(secret, safe=""))
        else:
            form["client_id"] = self._client_id
            if secret is not None:
                form["client_secret"] = secret
        status, answer = await self._ask("POST", endpoints.token, form, credentials)
        if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED):
            raise SignInRefused(f"the provider refused the code: {answer.get('error')!r:.80}")
        id_token = answer.get("id_token")
        if status != HTTPStatus.OK or not isinstance(id_token, str):
            raise ProviderUnavailable(f"{endpoints.token}: status {status}, or no id_token")
        return await self._verify(id_token, attempt.nonce)

    # ---- the token

    async def _verify(self, id_token: str, nonce: str) -> Mapping[str, Any]:
        if len(id_token) > ID_TOKEN_CHARS_MAX:
            raise SignInRefused("the id_token is too long")
        try:
            try:
                claims = self._decode(id_token, await self._find_keys(FACTS_S_MAX))
            except InvalidKeyIdError:  # the provider may have a new key
                claims = self._decode(id_token, await self._find_keys(KEYS_S_MIN))
            now_s = self._clock.wall_ms() // 1000
            jwt.JWTClaimsRegistry(
                now=now_s,
                leeway=CLOCK_LEEWAY_S,
                iss={"essential": True, "value": self._issuer},
                sub={"essential": True},
                aud={"essential": True, "value": self._client_id},
                exp={"essential": True},
                iat={"essential": True},
                nonce={"essential": True, "value": nonce},
            ).validate(claims)
        except (JoseError, ValueError) as error:
            raise SignInRefused(f"the id_token is not valid: {error}") from None
        has_other_audience = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", None if has_other_audience else self._client_id) != self._client_id:
            raise SignInRefused("the id_token was made for another client (azp)")
        return claims

    def _decode(self, id_token: str, keys: KeySet) -> dict[str, Any]:
        registry = JWSRegistry(algorithms=list(ALGORITHMS))
        return jwt.decode(id_token, keys, registry=registry).claims

    # ---- what the provider says of itself

    async def _find_endpoints(self) -> _Endpoints:
        async with self._lock:
            now_s = self._clock.monotonic_s()
            if self._endpoints is None or now_s - self._endpoints_s > FACTS_S_MAX:
                self._endpoints = await self._read_endpoints()
                self._endpoints_s = now_s
            return self._endpoints

    async def _read_endpoints(self) -> _Endpoints:
        address = self._issuer.rstrip("/") + "/.well-known/openid-configuration"
        status, facts = await self._ask("GET", address)
        if status != HTTPStatus.OK or facts.get("issuer") != self._issuer:
            raise ProviderUnavailable(
                f"{address}: status {status}, issuer {facts.get('issuer')!r:.200} instead of {self._issuer!r}"
            )
        names = ("authorization_endpoint", "token_endpoint", "jwks_uri")
        found = [self._check_address(name, facts.get(name)) for name in names]
        methods = facts.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        return _Endpoints(
            found[0], found[1], found[2],
            "client_secret_basic" in methods if isinstance(methods, list) else True,
            facts.get("authorization_response_iss_parameter_supported") is True,
        )  # fmt: skip

    def _check_address(self, name: str, value: object) -> str:
        """An address of the provider: as safe as its issuer."""
        schemes = {"https", urlsplit(self._issuer).scheme}
        if not isinstance(value, str) or urlsplit(value).scheme not in schemes:
            raise ProviderUnavailable(f"{self._issuer}: {name} is {value!r:.200}")
        return value

    async def _find_keys(self, age_s_max: float) -> KeySet:
        endpoints = await self._find_endpoints()
        async with self._lock:
            now_s = self._clock.monotonic_s()
            if self._keys is None or now_s - self._keys_s > age_s_max:
                status, found = await self._ask("GET", endpoints.keys)
                self._keys = self._read_keys(status, found)
                self._keys_s = now_s
            return self._keys

    def _read_keys(self, status: int, found: Mapping[str, Any]) -> KeySet:
        listed = found.get("keys")
        if status != HTTPStatus.OK or not isinstance(listed, list) or len(listed) > KEYS_MAX:
            raise ProviderUnavailable(f"{self._issuer}: its keys cannot be read: status {status}")
        usable: Any = [
            key
            for key in listed
            if isinstance(key, dict) and key.get("kty") in ("RSA", "EC") and key.get("use") != "enc"
        ]
        try:
            return KeySet.import_key_set({"keys": usable})
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise ProviderUnavailable(f"{self._issuer}: its keys cannot be used: {error}") from None

    # ---- one request

    async def _ask(
        self,
        method: str,
        address: str,
        form: Mapping[str, str] | None = None,
        credentials: httpx.Auth | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """The status and the JSON object of an answer. Raises ProviderUnavailable."""
        # Not compressed: the bound on the size then holds for what is read.
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        body = bytearray()
        try:
            async with (
                asyncio.timeout(ANSWER_S_MAX),
                httpx.AsyncClient(verify=self._tls, timeout=ANSWER_S_MAX) as client,
                client.stream(
                    method, address, data=form, auth=credentials, headers=headers
                ) as response,
            ):
                async for part in response.aiter_raw():
                    body += part
                    if len(body) > ANSWER_BYTES_MAX:
                        raise ProviderUnavailable(f"{address}: the answer is too large")
            found = json.loads(bytes(body))
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, RecursionError) as error:
            text = f"{address}: {type(error).__name__}: {error}"
            raise ProviderUnavailable(text) from None
        if not isinstance(found, dict):
            raise ProviderUnavailable(f"{address}: the answer is no JSON object")
        return response.status_code, found
