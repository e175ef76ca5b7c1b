"""Names of the hub: announced before they are fetched, given up once where there is no network. A real server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from vlrl.api import check_sources, load_config
from vlrl.system import hub
from vlrl.types import UserError

ROOT = Path(__file__).parents[2]
SIZES = {"model-1.safetensors": 4_000_000_000, "model-2.safetensors": 3_500_000_000, "pytorch_model.bin": 10**12}


class Hub(BaseHTTPRequestHandler):
    """What the hub says of one model, whose files it then does not have."""

    def do_GET(self) -> None:
        known = self.path.startswith("/api/models/owner/name")
        rows = [{"rfilename": name, "size": size} for name, size in SIZES.items()]
        body = json.dumps({"siblings": rows} if known else {}).encode()
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def closed() -> str:
    """An address that nobody listens at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def failing(request) -> Iterator[str]:
    """An address that takes connections, reads what is asked and answers `request.param`: nothing, or None for ever."""
    served: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            served.append(connection)
            if connection.recv(65536) and request.param is not None:
                connection.sendall(request.param)
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in served:
        connection.close()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_HUB_OFFLINE", "HF_HUB_CACHE", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    hub.reach_hub.cache_clear()
    return tmp_path / "hf"


def test_what_is_fetched_is_said_once_with_its_size(server, monkeypatch, capsys):
    """Seven gigabytes over a phone's network are no surprise that anybody likes."""
    monkeypatch.setenv("HF_ENDPOINT", server)
    for _ in range(2):
        hub.reach_model("owner/name")
    assert capsys.readouterr().err == f"vlrl: owner/name: fetching 7.5 GB from {server}\n"
    hub.reach_source("hf://owner/rows:test[:20]")
    assert capsys.readouterr().err == f"vlrl: owner/rows: fetching from {server}\n"


def test_what_is_no_name_of_the_hub_is_not_asked_for(closed, monkeypatch, tmp_path):
    """A folder, a bundled model and a mistyped run would wait for a network."""
    monkeypatch.setenv("HF_ENDPOINT", closed)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "mine").mkdir(parents=True)
    for name in ("embedded", "embedded_push", "runs/demo", "./a/b", "models/mine", "models/mistyped", str(tmp_path)):
        hub.reach_model(name)
    hub.reach_source("rows.jsonl")
    hub.reach_source("hf://./folder")


def test_a_cached_model_is_used_without_a_network(closed, home, monkeypatch, capsys):
    """On a train the copy on the disk is all that there is; libraries would still try for a minute to renew it."""
    monkeypatch.setenv("HF_ENDPOINT", closed)
    with pytest.raises(UserError, match=f"owner/name: {closed} cannot be reached, and there is no copy in the cache"):
        hub.reach_hub("owner/name")
    snapshot = home / "hub" / "models--owner--name" / "snapshots" / "0"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    hub.reach_hub("owner/name")
    assert capsys.readouterr().err.endswith("cannot be reached: the cached copy is used\n")
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set, and there is no copy"):
        hub.reach_hub("owner/other")


def test_servers_that_a_config_names_are_announced_once(closed, capsys):
    """Screens and answers would go to a judge's machine, and nobody had said so."""
    judge = {"name": "endpoint", "url": "https://judge.example:8443/v1", "model": "j"}
    config = load_config(
        "open_answer",
        {"policy.model": "embedded", "policy.engine": {"name": "server", "urls": ["http://a:8000", closed]}},
        {"process_rewards": [{"name": "judged_answer", "judge": judge}]},
    )
    for _ in range(2):
        check_sources(config)
    assert capsys.readouterr().err.splitlines() == [
        "vlrl: policy.engine.urls.0: http://a:8000 is asked",
        f"vlrl: policy.engine.urls.1: {closed} is asked",
        "vlrl: process_rewards.0.judge.url: https://judge.example:8443/v1 is asked",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["train", "gui_grounding", "policy.model=nobody/nothing", "out=run"],
        ["eval", "gui_grounding", "--model", "nobody/nothing"],
        ["eval", "gui_grounding", "data.test=hf://nobody/nothing"],
        ["select", "gui_grounding", "--model", "nobody/nothing", "--out", "x.jsonl"],
        ["serve-model", "nobody/nothing"],
        ["serve", "--policy", "nobody/nothing"],
        ["doctor", "--model", "nobody/nothing"],
        ["train", "hf://nobody/nothing"],
        ["train", "rows.jsonl", "policy.model=nobody/nothing"],
        ["accept", "nobody/nothing", "--data", "rows.jsonl"],
        ["warmstart", "embedded", "start=nobody/nothing", "out=run"],
        ["clone", "embedded_push", "start=nobody/nothing", "out=run"],
        ["learn", "learn_so101", "start=nobody/nothing", "out=run"],
        ["simulate", "manipulation", "--policy", "nobody/nothing"],
        ["simulate", "manipulation", "--against", "expert", "nobody/nothing"],
    ],
)
def test_without_a_network_a_name_fails_once_before_torch_is_loaded(words, closed, tmp_path):
    """Ten lines of retries over a minute, and then another ten."""
    code = "import sys; from vlrl.cli import main; code = main(sys.argv[1:]); assert 'torch' not in sys.modules, 'slow'"
    code += "; sys.exit(code)"
    environment = os.environ | {"HF_ENDPOINT": closed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and line.startswith("vlrl: nobody/nothing: ") and "cannot be reached" in line


@pytest.mark.parametrize(
    ("failing", "problem"),
    [(b"", "does not answer"), (None, "does not answer"), (b"HTTP/1.1 503 Busy\r\n\r\n", "answers 503")],
    indirect=["failing"],
)
def test_a_host_that_takes_connections_and_fails_is_given_up_once(failing, problem, home, monkeypatch, capsys):
    """A hotel's gateway: libraries try each of a model's files five times, 17 seconds in all, or wait for ever."""
    monkeypatch.setenv("HF_ENDPOINT", failing)
    with pytest.raises(UserError, match=f"owner/name: {failing} {problem}, and there is no copy in the cache"):
        hub.reach_model("owner/name")
    snapshot = home / "hub" / "models--owner--name" / "snapshots" / "0"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    hub.reach_model("owner/name")
    assert capsys.readouterr().err == f"vlrl: owner/name: {failing} {problem}: the cached copy is used\n"
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_a_host_that_drops_packets_is_out_of_reach(monkeypatch):
    """A listener whose queue is full takes no further connection, as a firewall does that answers nothing."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for plug in (first, second):
            plug.setblocking(False)
            plug.connect_ex(listener.getsockname())
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        with pytest.raises(UserError, match=f"owner/name: {endpoint} cannot be reached"):
            hub.reach_model("owner/name")
