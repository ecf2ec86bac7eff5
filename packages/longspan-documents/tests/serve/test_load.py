"""A whole server under load: many at once, more than the queue holds, limits, tokens, and one that is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.slow  # a server of its own

LONG = " ".join(f"Marmot number {number} whistles at eagle {number + 1} above the snow." for number in range(40_000))


WORDS = ["weight", "sleep", "colour", "food", "voice", "enemies"]  # the encoder reads no numbers


def text(number: int) -> str:
    return f"{WORDS[number % len(WORDS)]} of marmots"


def embed_at_once(server: Any, count: int) -> list[Any]:
    def one(number: int) -> Any:
        return server.request("POST", "/v1/embeddings", {"input": text(number)})

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_two_hundred_at_once_are_all_answered(served: Any) -> None:
    with served("--queue", "250") as server:
        answers = embed_at_once(server, 200)
        assert Counter(answer.status for answer in answers) == {200: 200}
        alone = server.request("POST", "/v1/embeddings", {"input": text(7)}).json["data"][0]["embedding"]
        assert answers[7].json["data"][0]["embedding"] == pytest.approx(alone, abs=1e-6)
        assert alone != pytest.approx(answers[8].json["data"][0]["embedding"], abs=1e-6)


def test_limits_hold_and_the_server_goes_on(served: Any) -> None:
    with served("--queue", "4", "--seconds", "6", "--megabytes", "4", "--memory", "512") as server:
        answers = embed_at_once(server, 200)
        statuses = Counter(answer.status for answer in answers)
        assert set(statuses) == {200, 429}
        for answer in answers:
            if answer.status == 429:
                assert 1 <= int(answer.headers["retry-after"]) <= 60
                assert answer.json["error"]["message"].startswith("too many requests are waiting; come again in ")

        slow = server.request("POST", "/summarize", {"text": LONG})
        assert (slow.status, slow.json["detail"].startswith("this took longer than 6 seconds")) == (504, True)
        large = server.upload("large.txt", b"x" * (5 << 20))
        assert large.status == 413
        assert "at most 4 MiB" in large.json["detail"]

        begun = server.request("POST", "/summarize?background=true", {"text": LONG[:500_000]}).json
        ended = server.request("DELETE", f"/jobs/{begun['job']}").json
        assert ended["state"] == "cancelled"
        assert (
            server.request("POST", "/summarize", {"text": "Bees dance. They tell where.", "sentences": 1}).status == 200
        )
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            assert server.request("GET", "/jobs/x", headers=headers).status == 403


def test_what_needs_too_much_memory_is_refused_and_the_next_is_answered(served: Any) -> None:
    with served("--memory", "64") as server:
        refused = server.request("POST", "/summarize", {"text": LONG})
        assert refused.status in (413, 500)
        assert "memory" in refused.json["detail"]
        assert server.request("POST", "/embed", {"texts": ["bees"]}).status == 200


def test_a_question_does_not_wait_for_a_book(served: Any) -> None:
    with served() as server:
        book = server.request("POST", "/summarize?background=true", {"text": LONG * 2}).json["job"]
        while server.request("GET", f"/jobs/{book}").json["state"] == "waiting":
            pass
        question = {"text": "Bees dance. They tell where.", "question": "who dances?"}
        for path, body in (("/answer", question), ("/summarize", {"text": "Bees dance. They tell where."})):
            assert server.request("POST", path, body).status == 200
            assert server.request("GET", f"/jobs/{book}").json["state"] == "running"
        server.request("DELETE", f"/jobs/{book}")


def test_workers_that_are_killed_are_replaced(served: Any) -> None:
    if not Path("/proc/self/task").exists():
        pytest.skip("this system does not list the children of a process in /proc")
    with served() as server:
        assert server.request("POST", "/embed", {"texts": ["bees"]}).status == 200
        for _ in range(2):
            threads = Path(f"/proc/{server.process.pid}/task").iterdir()
            workers = [int(one) for thread in threads for one in (thread / "children").read_text().split()]
            assert len(workers) >= 2
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
            assert server.request("POST", "/embed", {"texts": ["bees"]}).status == 200
            assert server.request("POST", "/v1/embeddings", {"input": "bees"}).status == 200


def test_a_full_disk_is_one_sentence(served: Any, capfd: pytest.CaptureFixture[str]) -> None:
    resource = pytest.importorskip("resource", reason="this system bounds no files")
    if not hasattr(resource, "prlimit"):
        pytest.skip("this system does not bound the files of other processes")
    with served() as server:
        # No file may be larger than this, as where the disk is full: the form is kept in one while it comes.
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        for size in (200_000, 2_000_000):
            full = server.upload("a.txt", b"words " * (size // 6))
            assert (full.status, full.json["detail"].startswith("this server cannot keep what was sent: ")) == (
                507,
                True,
            )
        assert server.upload("a.txt", b"Bees dance.").status == 201
    assert "Traceback" not in capfd.readouterr().err


def test_chunks_that_are_none_leave_no_traceback(served: Any, capfd: pytest.CaptureFixture[str]) -> None:
    head = b"Host: 127.0.0.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    ends = [[b"zz\r\n"], [b'5\r\n{"tex\r\n', b"zz\r\n"], [b"5\r\n{}{}{\r\n0\r\n\r\n", b"zz\r\n\r\n"]]
    with served() as server:
        for path in (b"/summarize", b"/v1/embeddings", b"/documents"):
            for chunks in ends:
                with socket.create_connection(("127.0.0.1", server.port)) as connection:
                    connection.sendall(b"POST %s HTTP/1.1\r\n%s" % (path, head))
                    for chunk in chunks:
                        connection.sendall(chunk)
                        server.request("GET", "/health")  # by then the chunk was read
                    assert connection.recv(9) == b"HTTP/1.1 "
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no terminals that hang up")
def test_a_terminal_that_is_closed_leaves_no_uploads(
    served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    handler = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under `nohup` it is ignored, and the server would stay
    try:
        with served() as server:
            assert server.upload("notes.md", b"# Bees\n\nThey dance.\n").status == 201
            server.process.send_signal(signal.SIGHUP)
            server.process.wait()
    finally:
        signal.signal(signal.SIGHUP, handler)
    assert not list(tmp_path.glob("longspan-serve-*"))


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="this system has no groups of processes")
def test_control_c_at_a_terminal_prints_no_traceback_of_a_worker(served: Any) -> None:
    with served(stderr=subprocess.PIPE, start_new_session=True) as server:
        assert server.request("POST", "/summarize", {"text": "Bees dance. They tell of food."}).status == 200
        os.killpg(server.process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
        assert server.process.wait() == 0
        assert server.process.stderr.read() == ""


def test_the_address_that_is_printed_lets_its_owner_in(served: Any) -> None:
    with served("--token", "a+b & c#d%20") as server:
        address = urlsplit(server.address)
        known = server.request("GET", f"{address.path}?{address.query}")
        assert known.status == 303
        cookie = known.headers["set-cookie"].partition(";")[0]
        assert server.request("GET", "/", headers={"Cookie": cookie}).status == 200


def test_other_machines_need_the_token(served: Any) -> None:
    with served("--host", "0.0.0.0", "--token", "much-longer-secret") as server:
        assert server.request("GET", "/v1/models").status == 401
        assert server.request("GET", "/v1/models", headers={"Authorization": "Bearer wrong"}).status == 401
        assert server.request("GET", "/v1/models", headers={"Authorization": "Bearer much-longer-secret"}).status == 200
        assert server.request("GET", "/v1/models", headers={"Host": "evil.example"}).status == 403


def test_the_next_server_deletes_what_a_killed_one_left(
    served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with served() as killed:
        assert killed.upload("notes.md", b"# Bees\n\nThey dance.\n").status == 201
        os.kill(killed.process.pid, signal.SIGKILL)
        killed.process.wait()
    (folder,) = tmp_path.glob("longspan-serve-*")
    assert len(list(folder.iterdir())) == 3  # the lock, the upload and the folder of results
    with served() as server:
        assert not folder.exists()
        (own,) = tmp_path.glob(f"longspan-serve-{server.process.pid}-*")
        assert own.is_dir()
    assert not list(tmp_path.glob("longspan-serve-*"))
