"""Environments of OpenEnv, served from an address or started here, as conversations.

Needs `openenv-core` (`pip install 'vlrl[openenv]'`); `vlrl serve-task` serves our own tasks that way.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import numpy as np

from rewards import parse
from rewards.parse import Parsed
from robot.sim.gym import numbers_of, picture
from tasks.base import check
from tasks.context import FULL, ContextStrategy
from tasks.gym import MAX_TEXT, TEST_SEEDS, WEIGHTS, SeededTask
from vlrl.decoders import parse_json
from vlrl.media import load_rgb, read_data_url
from vlrl.plugins import check_extra
from vlrl.system.children import end_child, start_child
from vlrl.types import Episode, Message, Observation, ToolCall, UserError, first_line, suggest

if TYPE_CHECKING:
    from PIL.Image import Image

PATIENCE = 180.0  # seconds for a server to start
TRIES, AGAIN_S = 3, 0.5  # to connect to one, and seconds between them
CONVERSATION = "messages"  # the field that holds one, as chat messages


class OpenEnv(SeededTask):
    """Samples: seeds of an environment, `pool` for training and `held_out` others for testing.

    Each turn the policy is shown the fields of the observation and answers with one action. Rewards are the
    environment's; `done` ends the episode. An action that the environment refuses does nothing and is answered with
    `Error: ...`; a server that fails or is lost makes the episode void.

    Args:
        url: of the server
        app: instead, `my_env.server.app:app`, which is served on this machine while the task is open
        options: of its `reset`
        test_options: those that are others for testing
        shows: fields of the observation; none: all
        sends: the answer in tags, or the whole completion
        instruction: what the policy is told first
        success: the field that says so, or the least return of a success
        turns: of an episode at most
        sessions: that the server keeps at a time
        seconds: for an answer of the server's
        context: what of the conversation is shown: full, last_images or summary (tasks/context.py)
        template: `guided` says how to answer, `short` (for tiny models) does not

    Raises UserError for options out of range, no server, an observation without such fields.
    """

    kind = "openenv"

    def __init__(
        self,
        *,
        url: str = "",
        app: str = "",
        options: Mapping[str, Any] | None = None,
        test_options: Mapping[str, Any] | None = None,
        shows: Sequence[str] | None = None,
        sends: Literal["answer", "completion"] = "answer",
        instruction: str = "",
        success: str | float = 1.0,
        turns: int = 20,
        sessions: int = 1,
        seconds: float = 60.0,
        context: ContextStrategy = FULL,
        template: Literal["short", "guided"] = "guided",
        pool: int = 100_000,
        held_out: int = 500,
        thinking: bool = False,
        weights: Mapping[str, float] = WEIGHTS,
        seed: int = 0,
    ):
        check(bool(url) != bool(app), "url, app", (url, app), "one of the two")
        check(not url or urlsplit(url).scheme in ("http", "https"), "url", url, "http://HOST:PORT")
        check(sessions > 0 and seconds > 0, "sessions, seconds", (sessions, seconds), "above 0")
        check(sends in ("answer", "completion"), "sends", sends, "answer or completion")
        super().__init__(
            id=app or url, instruction=instruction, success=success, turns=turns, context=context,
            template="short" if sends == "completion" else template,  # no tags are asked for where none are read
            pool=pool, held_out=held_out, thinking=thinking, weights=weights, seed=seed,
        )  # fmt: skip
        check_extra("task.name: openenv", "openenv", "openenv.core.generic_client")
        self.max_parallel_envs, self._seconds, self._shows = sessions, seconds, shows
        self._options = {"train": dict(options or {}), "test": {**(options or {}), **(test_options or {})}}
        if app and (options or test_options):
            check_options(app, self._options["test"])
        self._server = LocalServer(app) if app else None
        self._url = url.rstrip("/")
        try:
            self.form = ActionFields(read_fields(self._find_url()), sends == "completion")
            self._check_first(seed)
        except BaseException:
            self.close()
            raise

    def _find_url(self) -> str:
        return self._server.find_url() if self._server else self._url

    def _check_first(self, seed: int) -> None:
        """UserError where an episode cannot begin, or shows no such fields."""
        env = self.make_env(seed)
        try:
            observation, _ = env.reset(seed=seed)
            for name in self._shows or ():
                if name not in observation:
                    raise UserError(f"task.shows: no {name!r}{suggest(name, list(observation))}")
        except UserError:
            raise
        except Exception as error:  # of the server, the line to it, or the client
            raise UserError(f"task.{self._address}: no episode begins: {first_line(error)}") from error
        finally:
            env.close()

    @property
    def _address(self) -> str:
        return f"app: {self.id}" if self._server else f"url: {self.id}"

    def make_env(self, seed: int) -> OpenEnvSession:
        options = self._options["test" if seed >= TEST_SEEDS else "train"]
        return OpenEnvSession(self._find_url, options, self._seconds)

    def read(self, completion: str) -> Parsed:
        return Parsed({self.form.only: completion}) if self.form.is_whole else super().read(completion)

    def show(self, env: Any, observation: Mapping[str, Any]) -> Observation:
        """The conversation that the field `messages` holds; else a user's message of images, then a line a field."""
        fields = {name: observation[name] for name in (self._shows or observation) if name in observation}
        if is_conversation(fields.get(CONVERSATION)):
            messages = [read_message(each) for each in fields[CONVERSATION]]
            tools, restart = observation.get("tools") or (), observation.get("restart") is True
            return Observation.from_messages(messages, tools, restart)
        images = {name: image for name, value in fields.items() if (image := find_picture(value)) is not None}
        texts = {
            name: value for name, value in fields.items() if name not in images and value not in (None, "", [], {})
        }
        lines = [
            f"{f'{name}: ' if len(texts) > 1 else ''}{value if isinstance(value, str) else json.dumps(value)}"[
                :MAX_TEXT
            ]
            for name, value in texts.items()
        ]
        return Observation.from_messages([Message("user", (*images.values(), *(["\n".join(lines)] if lines else [])))])

    def facts(self, episodes: Sequence[Episode]) -> dict[str, str]:
        """The environment, and the client's version."""
        return {"environment": self.id, "openenv-core": metadata.version("openenv-core")}

    def close(self) -> None:
        """Ends the server that was started here."""
        if self._server:
            self._server.quit()


class OpenEnvSession:
    """One session with a server, as a Gymnasium environment."""

    def __init__(self, find_url: Callable[[], str], options: Mapping[str, Any], seconds: float):
        self._find_url, self._options, self._seconds = find_url, options, seconds
        self._client: Any = None

    def reset(self, *, seed: int) -> tuple[dict[str, Any], dict[str, float]]:
        self._connect()
        return self._client.reset(seed=seed, **self._options).observation, {}

    def _connect(self) -> None:
        """A server that is just ending, as one does whose last episode killed it, is not there on another try.

        Raises:
            ConnectionError: TRIES times.
        """
        from openenv.core.generic_client import GenericEnvClient

        for left in reversed(range(TRIES)):
            self._client = GenericEnvClient(self._find_url(), message_timeout_s=self._seconds).sync()
            try:
                self._client.connect()
                return
            except ConnectionError:
                self._client.close()
                if not left:
                    raise
                time.sleep(AGAIN_S)

    def step(self, action: dict[str, Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, float]]:
        try:
            result = self._client.step(action)
        except RuntimeError as error:
            if "VALIDATION_ERROR" not in str(error):
                raise
            return {"error": f"Error: the action is refused: {first_line(error)}"}, 0.0, False, False, {}
        numbers = numbers_of(result.observation, None)
        return result.observation, float(result.reward or 0.0), bool(result.done), False, numbers

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


class LocalServer:
    """An app that is served on this machine; started when it is needed, and again where it has died."""

    def __init__(self, app: str):
        self._app, self._lock = app, Lock()
        self._process: subprocess.Popen[Any] | None = None
        self._url = ""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # a pipe that nobody reads would stop the server

    def find_url(self) -> str:
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            return self._url

    def _start(self) -> None:
        self.close()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "uvicorn", self._app, "--port", str(port), "--log-level", "error"]
        self._process = start_child(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._log)
        deadline = time.monotonic() + PATIENCE
        while not is_healthy(self._url):
            if self._process.poll() is not None:
                self._log.seek(0)
                lines = self._log.read().decode(errors="replace").strip().splitlines()
                raise UserError(f"task.app: {self._app}: does not start: {lines[-1] if lines else 'it ended'}")
            if time.monotonic() > deadline:
                self.close()
                raise UserError(f"task.app: {self._app}: does not answer within {PATIENCE:g} s")
            time.sleep(0.1)

    def close(self) -> None:
        if self._process is not None:
            end_child(self._process)
            self._process = None

    def quit(self) -> None:
        """For good."""
        self.close()
        self._log.close()


# Prints what the `reset` of an app's environment takes beside a seed, as JSON; null where it takes anything, or where
# the app's module holds none or several.
RESET_OPTIONS = """
import importlib, inspect, json, sys
from openenv.core.env_server.interfaces import Environment
sys.path.insert(0, "")
module = importlib.import_module(sys.argv[1].partition(":")[0])
kinds = [each for each in vars(module).values() if inspect.isclass(each) and issubclass(each, Environment)]
kinds = [each for each in kinds if not any(issubclass(other, each) and other is not each for other in kinds)]
names = None
if len(kinds) == 1 and kinds[0].reset_async is Environment.reset_async:
    parameters = inspect.signature(kinds[0].reset).parameters.values()
    if all(each.kind is not each.VAR_KEYWORD for each in parameters):
        names = [each.name for each in parameters if each.name not in ("self", "seed", "episode_id")]
print(json.dumps(names))
"""


def check_options(app: str, options: Mapping[str, Any]) -> None:
    """UserError for an option that the reset of an app's environment does not take: OpenEnv would drop it silently.

    Nothing is refused where the environment takes any, or its module cannot say: a server tells what is wrong there.
    """
    command = [sys.executable, "-c", RESET_OPTIONS, app]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    lines = result.stdout.splitlines()
    known: list[str] | None = parse_json(lines[-1]) if not result.returncode and lines else None
    for name in options:
        if known is not None and name not in known:
            raise UserError(f"task.options.{name}: the reset of {app} takes no such option{suggest(name, known)}")


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


def read_fields(url: str) -> dict[str, Any]:
    """The fields of a server's actions: their names and JSON schemas.

    Raises:
        UserError: nobody answers there, or not as OpenEnv does.
    """
    try:
        with urllib.request.urlopen(f"{url}/schema", timeout=30) as reply:
            schema = parse_json(reply.read(2**20).decode())["action"]
        return {name: field for name, field in schema["properties"].items() if name != "metadata"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"task.url: {url}: no server of OpenEnv's answers: {first_line(error)}") from None


class ActionFields:
    """How actions of these fields are written: of a text field its text, else JSON; several as one JSON object."""

    def __init__(self, fields: Mapping[str, Any], is_whole: bool):
        self._fields, self.is_whole = fields, is_whole
        needed = [name for name, field in fields.items() if "default" not in field]
        self.only = needed[0] if len(needed) == 1 else next(iter(fields)) if len(fields) == 1 else ""
        self._is_text = bool(self.only) and fields[self.only].get("type") == "string"
        check(not is_whole or self._is_text, "sends", "completion", f"answer: actions hold {', '.join(fields)}")

    @property
    def description(self) -> str:
        if self.only:
            about = self._fields[self.only]
            return "its text" if self._is_text else str(about.get("description") or about.get("type") or self.only)
        return f"a JSON object with {', '.join(self._fields)}"

    def read(self, text: str) -> Parsed:
        """Reasons: unknown_action, and those of `rewards.parse.literal`."""
        if self._is_text:
            return Parsed({self.only: text.strip()})
        parsed = parse.literal(text)
        if parsed.reason or self.only:
            return parsed if parsed.reason else Parsed({self.only: parsed.value})
        is_known = isinstance(parsed.value, dict) and parsed.value.keys() <= self._fields.keys()
        return parsed if is_known else Parsed(reason="unknown_action")

    def write(self, action: Mapping[str, Any]) -> str:
        """An action as `read` reads it."""
        value = action.get(self.only) if self.only else action
        return value if isinstance(value, str) else json.dumps(value)


# What observations hold: conversations, pictures.


def is_conversation(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) and "role" in each for each in value)


def read_message(message: Mapping[str, Any]) -> Message:
    """A chat message with its images, as data URLs, and calls of tools. ValueError where it is none."""
    role, content = message["role"], message.get("content") or ()
    if role not in ("system", "user", "assistant", "tool"):
        raise ValueError(f"a message of {str(role)[:20]!r}")
    parts = (content,) if isinstance(content, str) else tuple(map(read_part, content))
    calls = [each["function"] for each in message.get("tool_calls") or ()]
    return Message(role, parts, tuple(ToolCall(call["name"], parse_json(call["arguments"])) for call in calls))


def read_part(part: Mapping[str, Any]) -> str | Image:
    if part["type"] == "text":
        return str(part["text"])
    return load_rgb(read_data_url(part["image_url"]["url"]), name="an image of the environment")


def find_picture(value: Any) -> Image | None:
    """The picture of a data URL, or of nested lists of pixels [H, W, 3]; None: it is something else."""
    if isinstance(value, str) and value.startswith("data:image/"):
        return load_rgb(read_data_url(value), name="an image of the environment")
    if not (
        isinstance(value, list) and value and isinstance(value[0], list) and value[0] and isinstance(value[0][0], list)
    ):
        return None
    pixels = np.asarray(value)
    return picture(pixels.astype(np.uint8)) if pixels.ndim == 3 and pixels.shape[-1] == 3 else None
