"""Random hostile requests, as bytes for a connection: the same ones for the same seed."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toc.http.routes import ROUTES

PUBLIC = ("/v1/health", "/v1/openapi.json")
_WORDS = ("", "0", "-1", "null", "true", "NaN", "1e999", "9" * 30, "%00", "../../etc/passwd", "%2e%2e%2f",
          "' OR 1=1 --", "${jndi:ldap://x}", "\u202e", "\ud83d\ude00", "a" * 3000, "red", "*", "__proto__",
          "{{7*7}}", "<script>")  # fmt: skip


@dataclass(frozen=True)
class Prey:
    """What attackers may know of the jobs of others: their ids, lease tokens, and a token that was revoked.

    `valid`: the victim's own token, which counts nowhere but in the header Authorization.
    """

    job_ids: Sequence[str]
    leases: Mapping[str, str]
    valid: str
    revoked: str


@dataclass(frozen=True)
class HostileRequest:
    """`data`: the bytes to send. `is_known`: its caller has a valid token, of another tenant.

    `has_answer`: False: the request is not complete, so the client hangs up without waiting.
    """

    data: bytes
    path: str
    is_known: bool
    has_answer: bool = True

    @property
    def is_refused(self) -> bool:
        """Whether any answer but a refusal would mean that a stranger got in."""
        return not self.is_known and self.path.partition("?")[0] not in PUBLIC


class HostileRequests:
    """Draws requests. `tokens`: valid ones of another tenant."""

    def __init__(self, seed: int, prey: Prey, tokens: Sequence[str], host: str) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - attacks that can be repeated, no secret
        self._prey, self._tokens, self._host = prey, tokens, host

    def draw(self) -> HostileRequest:
        """The next request."""
        rng = self._rng
        method, path = self._draw_target()
        body = self._draw_body(path)
        is_known = rng.random() < 0.4
        headers = [f"Host: {self._draw_host()}"]
        headers += (
            [f"Authorization: Bearer {rng.choice(self._tokens)}"]
            if is_known
            else self._draw_login()
        )
        if not is_known and rng.random() < 0.2:
            path += f"{'&' if '?' in path else '?'}token={self._prey.valid}&access_token={self._prey.valid}"
        headers.append(
            f"Content-Type: {'application/json' if rng.random() < 0.9 else self._draw_word()}"
        )
        headers += [self._draw_header() for _ in range(rng.randrange(3))]
        has_answer = True
        kind = rng.random()
        if kind < 0.9:
            headers.append(f"Content-Length: {len(body)}")
        elif kind < 0.94:
            headers.append(f"Content-Length: {len(body) + 1 + rng.randrange(1000)}")
            has_answer = False
        else:
            has_answer = kind < 0.97
            headers.append("Transfer-Encoding: chunked")
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if has_answer else b"zz\r\n" + body
        head = "\r\n".join([f"{method} {path} HTTP/1.1", *headers, "", ""])
        return HostileRequest(head.encode(errors="replace") + body, path, is_known, has_answer)

    # ---- parts

    def _draw_target(self) -> tuple[str, str]:
        rng = self._rng
        if rng.random() < 0.05:
            return rng.choice(("GET", "POST", "PUT", "DELETE")), "/" + self._quoted_word()
        route = rng.choice(ROUTES)
        path = route.path.replace("{job_id}", self._draw_job_id())
        path = path.replace(
            "{biz_type}", rng.choice(("red.close", "blue.close", self._quoted_word()))
        )
        if route.query and rng.random() < 0.9:
            path += f"?biz_id={rng.randrange(20)}"
        if rng.random() < 0.1:
            path += "?" + self._quoted_word()
        method = (
            route.method if rng.random() < 0.95 else rng.choice(("GET", "POST", "PATCH", "TRACE"))
        )
        return method, path

    def _draw_job_id(self) -> str:
        rng = self._rng
        kind = rng.random()
        if kind < 0.7:
            return rng.choice(self._prey.job_ids)
        return str(rng.randrange(2**63)) if kind < 0.9 else self._quoted_word()

    def _draw_word(self) -> str:
        return re.sub(r"[\r\n\x00]", "", self._rng.choice(_WORDS))

    def _quoted_word(self) -> str:
        text = self._rng.choice(_WORDS)
        return re.sub(r"[^\x21-\x7e]|[?#]", "%25", text)

    def _draw_host(self) -> str:
        return self._host if self._rng.random() < 0.95 else "evil.example"

    def _draw_login(self) -> list[str]:
        """Headers of a stranger: none of them is a valid login."""
        rng, valid, revoked = self._rng, self._prey.valid, self._prey.revoked
        at = rng.randrange(len(valid))
        changed = valid[:at] + ("a" if valid[at] != "a" else "b") + valid[at + 1 :]
        of_id = valid.rpartition("_")[0] + "_" + revoked.rpartition("_")[2]
        return rng.choice((
            [], ["Authorization:"], ["Authorization: Bearer"], [f"Authorization: Bearer {changed}"],
            [f"Authorization: Bearer {of_id}"], [f"Authorization: Bearer {revoked}"],
            [f"Authorization: Bearer {valid[:-1]}"], [f"Authorization: Bearer {valid}0"],
            [f"Authorization: Bearer {valid},{valid}"], [f"Authorization: Basic {valid}"],
            [f"Authorization: Bearer {valid.upper()}"], [f"Proxy-Authorization: Bearer {valid}"],
            [f"X-Authorization: Bearer {valid}"], [f"Cookie: token={valid}; authorization={valid}"],
            [f"Authorization: Bearer {self._draw_word()}"],
        ))  # fmt: skip

    def _draw_header(self) -> str:
        rng, word = self._rng, self._draw_word()
        name = rng.choice((
            "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Forwarded", "X-Request-ID",
            "Idempotency-Key", "If-None-Match", "Content-Encoding", "Origin",
            "X-HTTP-Method-Override", "X-Tenant", "Cookie",
            "Expect" if rng.random() < 0.1 else "Accept", "Upgrade" if rng.random() < 0.1 else "Range",
        ))  # fmt: skip
        return f"{name}: {rng.choice((word, '127.0.0.1', 'red', 'DELETE'))}"

    # ---- bodies

    def _draw_body(self, path: str) -> bytes:
        rng = self._rng
        kind = rng.random()
        if kind < 0.1:
            return rng.randbytes(rng.randrange(1, 20_000))
        if kind < 0.15:
            return b'{"payload":' + b'{"a":' * 5000 + b"1" + b"}" * 5001
        document = self._draw_document(path)
        for _ in range(rng.choice((0, 0, 1, 3))):
            self._spoil(document)
        body = json.dumps(document).encode()
        if kind < 0.25 and body:
            spoilt = bytearray(body)
            for _ in range(rng.randrange(1, 5)):
                spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
            body = bytes(spoilt)
        elif kind < 0.45:  # if the server kept bodies, its memory would grow by these
            body += b" " * rng.randrange(270_000)
        return body

    def _draw_document(self, path: str) -> dict[str, Any]:
        """A document that the path accepts, about the jobs of the victim."""
        rng, biz_id = self._rng, self._rng.randrange(20)
        if "/leases" in path:
            if ":" not in path:
                return {
                    "types": [rng.choice(("red.close", "blue.close"))],
                    "max": rng.randrange(1, 100),
                }
            job_id = rng.choice(self._prey.job_ids)
            token = self._prey.leases.get(job_id, "1")
            return {"items": [{"job_id": job_id, "token": token}] * rng.randrange(1, 20)}
        biz_type = rng.choice(("red.close", "blue.close"))
        job: dict[str, Any] = {
            "biz_id": biz_id,
            "biz_type": biz_type,
            "delay": rng.choice((0, 3600)),
        }
        if "/types/" in path:
            return {"biz_id": biz_id} | ({"delay": 1} if path.endswith("reschedule") else {})
        if path.startswith("/v1/jobs/"):
            return {"delay": 1} if path.endswith("reschedule") else {}
        if rng.random() < 0.3:
            job |= {
                "key": "k",
                "on_duplicate": rng.choice(("keep", "replace", "earliest", "latest")),
            }
        return job if rng.random() < 0.7 else {"jobs": [job] * rng.randrange(1, 30)}

    def _spoil(self, document: dict[str, Any]) -> None:
        rng = self._rng
        make: Callable[[], Any] = rng.choice((
            lambda: self._rng.choice(_WORDS), lambda: self._rng.randrange(-(2**70), 2**70), lambda: None,
            lambda: [[]] * 50, lambda: {"$ne": 1}, lambda: 1e308, lambda: True,
        ))  # fmt: skip
        names = [*document, "tenant", "biz_type", "owner", "scopes", "token", self._draw_word()]
        document[rng.choice(names)] = make()
