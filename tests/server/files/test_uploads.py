"""Uploads pass through: little of them is held, whatever becomes of their clients."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import httpx
import psutil

from tests.machine_speed import slowness
from tests.server.batches.batch_calls import message_requests, post_file
from tests.server.running import running_process, running_server, wait_until
from tests.server.scripted import ScriptedEngine

HEAD = b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
TAIL = b'\r\n--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x--\r\n'
FORM = {"content-type": "multipart/form-data; boundary=x"}


def form(num_bytes: int) -> Iterator[bytes]:
    yield HEAD
    for _ in range(num_bytes // 2**16):
        yield b"x" * 2**16
    yield TAIL


def test_large_files_take_little_memory(tmp_path: Path) -> None:
    """Eight of 32 MiB at once, to a store on disk: together they are never held."""
    options = {
        "port": 0,
        "files_store": str(tmp_path / "files"),
        "files_store_size": 2**29,
        "max_file_size": 2**26,
    }
    with running_process("-m", "tests.server.serve_scripted", json.dumps(options)) as server:
        url, process = server.url(), psutil.Process(server.process.pid)
        assert post_file(url, b"{}\n" * 1000).status_code == 200
        before = process.memory_info().rss
        peak = before
        ended = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not ended.is_set():
                peak = max(peak, process.memory_info().rss)
                time.sleep(0.01)

        watcher = threading.Thread(target=watch)
        watcher.start()

        def send(_: int) -> tuple[int, int]:
            with httpx.Client(timeout=120) as client:
                path = f"{url}/v1/files"
                sent = client.post(path, content=form(2**25), headers=FORM)
                with client.stream("GET", f"{path}/{sent.json()['id']}/content") as response:
                    return sent.status_code, sum(map(len, response.iter_bytes()))

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(send, range(8))) == {(200, 2**25)}
        ended.set()
        watcher.join()
    assert peak - before < 48 * 2**20, f"{(peak - before) / 2**20:.0f} MiB"


def test_other_calls_go_on_beside_uploads() -> None:
    """Of a file, and of a batch's body, which is parsed as it comes."""
    body = {"prompt": "x", "max_tokens": 1}
    requests = message_requests(20_000, system="be brief " * 30)
    with (
        running_server(ScriptedEngine(), max_file_size=2**26) as url,
        httpx.Client(timeout=60) as http,
    ):

        def seconds() -> float:
            began = time.monotonic()
            assert http.post(f"{url}/v1/completions", json=body).status_code == 200
            return time.monotonic() - began

        def upload() -> None:
            for _ in range(2):
                post_file(url, b"x" * 2**25)
            httpx.post(f"{url}/v1/messages/batches", json={"requests": requests}, timeout=60)

        seconds()
        thread = threading.Thread(target=upload)
        thread.start()
        beside = []
        while thread.is_alive():
            beside.append(seconds())
        thread.join()
    assert len(beside) > 10 and median(beside) < 0.1 * slowness(), beside


def test_who_leaves_leaves_nothing() -> None:
    with running_server(ScriptedEngine(), files_store_size=2**20) as url:
        host, port = url.removeprefix("http://").split(":")
        for _ in range(5):  # together more than there is room for
            with socket.create_connection((host, int(port))) as connection:
                length = f"content-length: {2**19}\r\n"
                kind = f"content-type: {FORM['content-type']}\r\n"
                head = f"POST /v1/files HTTP/1.1\r\nhost: x\r\n{length}{kind}\r\n"
                connection.sendall(head.encode() + HEAD + b"x" * 300_000)
                time.sleep(0.05)
        wait_until(lambda: post_file(url, b"x" * 900_000).status_code == 200)


def test_a_slow_upload_is_ended() -> None:
    """By the time that any body may take."""
    with running_server(ScriptedEngine(), client_timeout=0.5, min_client_rate=10**6) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
        connection.putrequest("POST", "/v1/files")
        connection.putheader("content-type", FORM["content-type"])
        connection.putheader("content-length", str(2**20))
        connection.endheaders()
        connection.send(HEAD + b"x" * 1000)
        response = connection.getresponse()
        assert response.status == 408
        connection.close()
        assert not httpx.get(f"{url}/v1/files").json()["data"]
