"""The receiver of docs/how-to/webhooks.md, as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx

from tests.servers.process import free_port
from tests.worker.waiting import wait_until
from toc.webhooks.signing import new_secret, secret_bytes_of, signature_headers

PAGE = Path(__file__).parents[2] / "docs/how-to/webhooks.md"
BODY = b'{"type":"order.close","data":{"job_id":"5","biz_id":"42"}}'


def test_the_receiver_of_the_page_takes_genuine_requests_and_no_others(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    program, port, secret = tmp_path / "receiver.py", free_port(), new_secret()
    program.write_text(code)
    keys, now_s = [secret_bytes_of(secret)], int(time.time())
    headers = dict(signature_headers("5", now_s, BODY, keys))
    url = f"http://127.0.0.1:{port}/"
    process = subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=os.environ | {"WEBHOOK_SECRET": secret, "PORT": str(port)}, text=True,
    )  # fmt: skip
    with process, httpx.Client(trust_env=False, timeout=60) as client:
        try:

            def answers(*, content: bytes = BODY, **changes: str) -> int:
                given = {name.decode(): value.decode() for name, value in headers.items()}
                given |= {name.replace("_", "-"): value for name, value in changes.items()}
                return client.post(url, content=content, headers=given).status_code

            def is_up() -> bool:
                try:
                    client.get(url)
                except httpx.TransportError:
                    return False
                return True

            wait_until(is_up, "the receiver", 60)
            for _ in range(2):
                assert answers() == 204
            rotated = dict(signature_headers("5", now_s, BODY, [bytes(32), *keys]))
            assert answers(webhook_signature=rotated[b"webhook-signature"].decode()) == 204
            assert answers(content=BODY + b" ") == 401
            assert answers(webhook_id="6") == 401
            assert answers(webhook_signature="v1,") == 401
            assert answers(webhook_timestamp="now") == 401
            old = signature_headers("5", now_s - 3600, BODY, keys)
            old_texts = {name.decode().replace("-", "_"): value.decode() for name, value in old}
            assert answers(**old_texts) == 401
        finally:
            process.kill()
        assert process.stdout is not None
        assert process.stdout.read() == "closing 42\n"  # once
