"""The lines of the README and of the how-to page work as they stand, and so does the consumer in Node."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.processes import running, wait_until
from tests.http.served_world import declare_type, make_settings, make_token, open_client, serve
from tests.servers.endpoint import Endpoint

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/how-to/http.md"]


@pytest.mark.parametrize("page", PAGES)
def test_the_lines_with_curl_work(page: str, tmp_path: Path) -> None:
    block = re.search(r"```sh\n(curl .*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert block is not None
    calls = re.sub(r"\\\n *", "", block.group(1)).strip().splitlines()
    assert len(calls) == 3
    with running(tmp_path, {"TOC_WEB__PORT": "0"}, "dev") as dev:
        dev.says("HTTP (only programs on this machine may call it)", 100)
        found = re.search(r"curl (http://127\.0\.0\.1:\d+)/", dev.out)
        assert found is not None
        answers = []
        for call in calls:
            line = call.replace("http://127.0.0.1:8440", found.group(1))
            assert line != call
            shell = subprocess.run(
                ["/bin/sh", "-c", f"{line} -sS"],
                capture_output=True,
                text=True,
                check=True,
                timeout=100,
            )
            answers.append(json.loads(shell.stdout))
    scheduled, listed, cancelled = answers
    assert scheduled["did"] == "inserted"
    assert [job["job_id"] for job in listed["jobs"]] == [scheduled["job_id"]]
    # The job is due after five seconds, and this machine may be slow.
    assert (cancelled["answer"], cancelled["job_id"]) in [
        (word, scheduled["job_id"]) for word in ("cancelled", "running", "done")
    ]


def test_the_consumer_in_node_runs_jobs(tmp_path: Path, redis_server: Endpoint) -> None:
    node = shutil.which("node")
    if node is None:
        assert not os.environ.get("CI"), "node is missing"
        pytest.skip("node is missing")
    source = (ROOT / "examples/consumer.mjs").read_text()
    assert len(source.splitlines()) <= 45
    settings = make_settings(tmp_path, redis_server.url)
    declare_type(settings, "order.close", mode="pull", retry=[0.1])
    token = make_token(settings)
    with serve(settings) as server, open_client(server.url, token) as client:
        server.backend.access.refresh_now()
        environment = os.environ | {"TOC_URL": server.url, "TOC_TOKEN": token}
        consumer = subprocess.Popen(
            [node, str(ROOT / "examples/consumer.mjs"), "order.close"], env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            jobs = [
                {"biz_id": f"A-{n}", "biz_type": "order.close", "delay": 0.1, "payload": {"n": n}}
                for n in range(25)
            ]
            results = client.post("/v1/jobs", json={"jobs": jobs}).json()["results"]
            ids = [result["job_id"] for result in results]

            def are_done() -> bool:
                assert consumer.poll() is None
                return all(client.get(f"/v1/jobs/{it}").json()["status"] == "done" for it in ids)

            wait_until(are_done, "all jobs are done", 100)
        finally:
            consumer.terminate()
            said, _ = consumer.communicate(timeout=100)
        assert len(re.findall(r"^closing A-\d+ .* attempt 1$", said, re.MULTILINE)) == 25
        assert token not in said
