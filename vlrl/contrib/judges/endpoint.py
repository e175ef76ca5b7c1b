"""A judge behind HTTP: any server that speaks OpenAI's chat completions (vLLM, SGLang, LMDeploy, a provider's)."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import io
import json
import re
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field

from vlrl import config
from vlrl.config import Count, Rate
from vlrl.contrib.judges import base
from vlrl.contrib.judges.base import CLAIMS, JudgeQuestion, Verdict, framed, reply_read
from vlrl.contrib.judges.tournament import RequestPacer, concurrently
from vlrl.decoders import parse_json
from vlrl.types import Decision, Episode, Observation, Sample, UserError

if TYPE_CHECKING:
    from PIL.Image import Image


# A judge in this process: a vision-language model that vlrl can load.


class LocalJudge:
    """Asks a model of Hugging Face's, or a folder's, on the machine that trains, beside what is trained.

    Args:
        model: as `policy.model`.
        temperature: 0 writes the likeliest reply; above it, for several votes (`grm`), replies are sampled, the same
            for the same questions asked together.
        max_tokens: of a reply. batch: questions at a time.
        dtype, max_pixels: as in `policy`.
        most: characters of an answer that are shown. frames: pictures of a video.

    Raises:
        UserError: there is no such model, or it is no vision-language model.
    """

    def __init__(
        self, seed: int, *, model: str, temperature: Annotated[float, Field(ge=0)] = 0.0, max_tokens: Count = 512,
        batch: Count = 16, dtype: Literal["auto", "float32", "bfloat16"] = "auto", max_pixels: Count | None = None,
        most: Count = 16_000, frames: Count = 8,
    ):  # fmt: skip
        from vlrl.config import PolicySection
        from vlrl.engines import load_policy

        section = PolicySection(
            model=model, max_tokens=max_tokens, temperature=temperature or 1.0, dtype=dtype, max_pixels=max_pixels
        )
        self._policy: Any = load_policy(section, seed=seed)
        if not self._policy.writes_text:
            raise UserError(f"judge.model: {model} is no vision-language model")
        self._seed, self._greedy, self._batch = seed, temperature == 0, batch
        self._most, self._frames = most, frames

    def ask(self, questions: Sequence[JudgeQuestion]) -> list[Verdict]:
        return [
            verdict
            for start in range(0, len(questions), self._batch)
            for verdict in self._ask(questions[start : start + self._batch])
        ]

    def _ask(self, questions: Sequence[JudgeQuestion]) -> list[Verdict]:
        content = []
        for question in questions:
            rules, parts = framed(question, self._most, self._frames)
            content.append(Observation((rules, *parts)))
        try:
            decisions = self.reply(content, "".join(question.key for question in questions))
        except UserError as error:  # a question that is longer than the model takes
            return [Verdict(fault=str(error))] * len(questions)
        return [_verdict(str(d.action), d.truncated, len(q.answers)) for d, q in zip(decisions, questions, strict=True)]

    def write(self, content: Sequence[Observation], keys: Sequence[str]) -> list[str]:
        """What the model writes to each, `batch` at a time; empty where these are longer than it takes."""
        texts: list[str] = []
        for start in range(0, len(content), self._batch):
            part = slice(start, start + self._batch)
            try:
                texts += [str(each.action).strip() for each in self.reply(content[part], "".join(keys[part]))]
            except UserError:
                texts += [""] * len(content[part])
        return texts

    def reply(self, content: Sequence[Observation], key: str) -> list[Decision]:
        """What the model writes to each; it hangs on the key and the seed, not on what was asked before."""
        self._policy.generator.manual_seed(int(hashlib.sha256(f"{self._seed}/{key}".encode()).hexdigest()[:15], 16))
        episodes = [Episode(Sample(f"judged/{i}", each), i) for i, each in enumerate(content)]
        return self._policy.act(episodes, content, greedy=self._greedy)


def _verdict(text: str, cut: bool, count: int) -> Verdict:
    if cut:
        return Verdict(fault="a reply that was cut off")
    try:
        return Verdict(*reply_read(text, count))
    except ValueError as error:
        return Verdict(fault=str(error))


# A model that learned to compare, as the task `judge_training` teaches it: no critique, one number.

CLAIM = "{question} {one} (1) right {kind} (2) wrong {kind} Which is it?"  # as its template `claim`
COMPARE = "{question} (1) {one} (2) {two} Which is better?"  # as `judge_training`'s template `short`
Game = tuple[int, int, int]  # question, first answer, second answer
ANSWER, BETTER = re.compile(r"\s*<answer>([^<>]+)</answer>\s*"), ("<answer>1</answer>", "<answer>2</answer>")


class PairJudge:
    """Answers play each other, as a model that was trained on the task `judge_training` decides; each pair twice.

    An answer's score is the share of its comparisons that it won, of two replies for each pair, one in each order; one
    that is no verdict counts for neither. One answer alone is compared with the question's reference. Answers without
    tags lose unseen: the model has never met any.

    Args:
        model: as `policy.model`.
        asks: the question, in the words that the model was trained with.
        temperature: above 0, for several votes (`grm`), replies are sampled.
        batch: comparisons at a time.

    Raises:
        UserError: there is no such model, or it is no vision-language model.
    """

    def __init__(
        self, seed: int, *, model: str, asks: str, temperature: Annotated[float, Field(ge=0)] = 0.0,
        batch: Count = 256,
    ):  # fmt: skip
        self._model = LocalJudge(seed, model=model, temperature=temperature, max_tokens=12, batch=batch)
        self._asks = asks

    def ask(self, questions: Sequence[JudgeQuestion]) -> list[Verdict]:
        players = [self._players(question) for question in questions]
        games = [(n, one, two) for n, texts in enumerate(players) for one, two in permutations(range(len(texts)), 2)]
        duels = [game for game in games if all(players[game[0]][i] for i in game[1:])]
        shares = dict(zip(duels, self._play(questions, players, duels), strict=True))
        wins = [[0.0] * len(texts) for texts in players]
        for n, one, two in games:
            share = shares.get((n, one, two), 0.5 + (bool(players[n][one]) - bool(players[n][two])) / 2)
            wins[n][one] += share
            wins[n][two] += 1 - share
        return [
            Verdict(tuple(each / (2 * (len(own) - 1)) for each in own[: len(question.answers)]), "by comparisons")
            if len(own) > 1 else Verdict(fault="nothing to compare with: use grm, arena or polar")
            for own, question in zip(wins, questions, strict=True)
        ]  # fmt: skip

    def _players(self, question: JudgeQuestion) -> list[str]:
        """What is inside the tags of each; empty: they are not there."""
        texts = [*question.answers]
        if len(texts) == 1 and question.reference is not None:
            texts.append(question.reference)
        return [match[1].strip() if (match := ANSWER.fullmatch(text)) else "" for text in texts]

    def _play(
        self, questions: Sequence[JudgeQuestion], players: Sequence[Sequence[str]], games: Sequence[Game]
    ) -> list[float]:
        """The first player's share of each game: 1, 0, or 1/2 where the reply is no verdict."""
        ids = [question.key for question in questions]  # each reads its images' bytes

        def duel(game: Game) -> tuple[int, int, str, str]:
            """Alike for the same texts to one task: `arena` asks in both orders, of which each plays both."""
            n, one, two = game
            return id(questions[n].content), questions[n].vote, players[n][one], players[n][two]

        distinct = {duel(game): game for game in games}
        content = [
            _with_images(questions[n], COMPARE.format(question=self._asks, one=players[n][one], two=players[n][two]))
            for n, one, two in distinct.values()
        ]
        replies = self._model.write(content, [f"{ids[n]}/{one}/{two}" for n, one, two in distinct.values()])
        verdicts = dict(zip(distinct, replies, strict=True))
        return [1.0 - BETTER.index(reply) if (reply := verdicts[duel(game)]) in BETTER else 0.5 for game in games]


class ClaimJudge:
    """Is what an answer claims right, claims of one kind alone? By a model that learned `judge_training` with `claims`.

    The score is 1 for right and 0 for wrong. For `fine_grained`, whose criteria name the kind.

    Args:
        model: as `policy.model`.
        asks: the question, in the words that the model was trained with.
        batch: claims at a time.

    Raises:
        UserError: there is no such model, or it is no vision-language model.
    """

    def __init__(self, seed: int, *, model: str, asks: str, batch: Count = 256):
        self._model = LocalJudge(seed, model=model, max_tokens=12, batch=batch)
        self._asks = asks

    def ask(self, questions: Sequence[JudgeQuestion]) -> list[Verdict]:
        claims = {i: (kind, question) for i, question in enumerate(questions) if (kind := _kind(question))}
        content = [
            _with_images(question, CLAIM.format(question=self._asks, one=question.answers[0], kind=kind))
            for kind, question in claims.values()
        ]
        replies = self._model.write(content, [question.key for _, question in claims.values()])
        by_question = dict(zip(claims, replies, strict=True))
        return [_right(by_question.get(i)) for i in range(len(questions))]


def _kind(question: JudgeQuestion) -> str | None:
    """The kind of claim that its criteria name, None for several answers."""
    kinds = (kind for kind, words in CLAIMS.items() if words in question.criteria)
    return next(kinds, None) if len(question.answers) == 1 else None


def _right(reply: str | None) -> Verdict:
    if reply is None:
        return Verdict(fault="no single answer and kind of claim: use fine_grained")
    if reply not in BETTER:
        return Verdict(fault="a reply that is no verdict")
    return Verdict((1.0 - BETTER.index(reply),), "by a trained judge")


def _with_images(question: JudgeQuestion, text: str) -> Observation:
    return Observation((*(part for part in question.content if not isinstance(part, str)), text))


# Verdicts that are known, in a file that grows as they come: nothing is asked twice, and a killed run goes on.


class VerdictCache:
    """Verdicts by key: JSON lines {key, scores, said} in a file, or without one for this process alone.

    Lines that cannot be read, as a killed run leaves, are passed over. Threads and processes may share the file.

    Raises:
        UserError: the file cannot be written to.
    """

    def __init__(self, path: str | None):
        self._path, self._lock = None if path is None else Path(path), threading.Lock()
        self._known: dict[str, Verdict] = {}
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab+") as file:
                file.seek(0)
                text = file.read()
                if text and not text.endswith(b"\n"):
                    file.write(b"\n")  # what a killed run left half written must not swallow the next line
        except OSError as error:
            raise UserError(f"judge: cache: cannot write to {path}: {error.strerror}") from None
        rows = filter(None, map(_row, text.decode("utf-8", "replace").splitlines()))
        self._known.update(rows)

    def of(self, key: str) -> Verdict | None:
        return self._known.get(key)

    def add(self, key: str, verdict: Verdict) -> None:
        with self._lock:
            self._known[key] = verdict
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": key, "scores": verdict.scores, "said": verdict.said}) + "\n")


def _row(line: str) -> tuple[str, Verdict] | None:
    try:
        row = parse_json(line)
        scores = tuple(float(score) for score in row["scores"])
        if not (isinstance(row["key"], str) and isinstance(row["said"], str) and all(0 <= s <= 1 for s in scores)):
            return None
        return row["key"], Verdict(scores, row["said"])
    except (ValueError, TypeError, KeyError):
        return None


# One HTTP request that ends in time, whatever the server does.

MOST = 4 * 2**20  # bytes of an answer


class UnansweredError(Exception):
    """No answer came, in a few words."""


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    wait: float  # seconds that the server asks to wait before the next request, 0 where it does not


def post(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> Answer:
    """The answer to a POST; redirections are not followed. A server that answers drop by drop is cut off as well.

    Raises:
        UnansweredError: there is no server, it hung up, took longer than `seconds`, or sent no HTTP or too much.
    """
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection, late = kind(parts.hostname, parts.port, timeout=seconds), threading.Event()
    watch = None
    try:
        connection.connect()
        watch = threading.Timer(seconds, _cut, (connection.sock, late))  # a socket's own time-out starts anew at a byte
        watch.daemon = True
        watch.start()
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", target, body, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        text = response.read(MOST + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:
        slow = late.is_set() or isinstance(error, TimeoutError)
        raise UnansweredError("no answer in time" if slow else f"no connection ({_reason(error)})") from None
    finally:
        if watch:
            watch.cancel()
        connection.close()
    if late.is_set() or len(text) > MOST:
        raise UnansweredError("no answer in time" if late.is_set() else "an answer that is too long")
    return Answer(response.status, text, _seconds(response.getheader("Retry-After")))


def _cut(connection: socket.socket, late: threading.Event) -> None:
    late.set()
    with contextlib.suppress(OSError):  # it had ended
        connection.shutdown(socket.SHUT_RDWR)


def _seconds(text: str | None) -> float:
    """What Retry-After asks for in seconds; a date is not read."""
    return float(text) if text and text.strip().isdecimal() else 0.0


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__


AGAIN = (408, 409, 425, 429)  # and all from 500 on: another time it may work
OUT_OF_TIME = "no answer in time"


class JudgeEndpoint:
    """Asks a server, many questions at a time. What it answers is read by a strict schema (`vlrl.contrib.judges.base`).

    A request that fails is repeated; a question without an answer after that has a verdict with a fault. `ask` returns
    after `patience` seconds at the latest. With a `cache` no question is asked twice, and a run that was killed goes on
    with the verdicts that it had; without one a judge that samples may judge otherwise then.

    Args:
        url: up to and without `/chat/completions`: http://localhost:8000/v1
        model: as the server names it.
        key: the environment variable that holds the server's key (`vlrl.config.header`). The key itself never
            stands in a configuration.
        temperature: above 0 for several votes (`grm`).
        max_tokens: of a reply.
        structured: ask the server to hold the model to the reply's schema (`response_format`), where it can.
        timeout: seconds for one request. patience: for all that are asked at once, with repetitions.
        retries: repetitions of a request. backoff: seconds before the first, twice as many before each further one.
        concurrent: requests at a time. per_minute: requests at most; default: no bound.
        cache: a file of verdicts, made where there is none.
        most: characters of an answer that are shown. frames: pictures of a video.

    Raises:
        UserError: the URL is none; there is no such environment variable; the cache cannot be written to.
    """

    def __init__(
        self, seed: int, *, url: str, model: str, key: str | None = None,
        temperature: Annotated[float, Field(ge=0)] = 0.0, max_tokens: Count = 2048, structured: bool = False,
        timeout: Rate = 60.0, patience: Rate = 600.0, retries: Annotated[int, Field(ge=0)] = 3, backoff: Rate = 1.0,
        concurrent: Count = 16, per_minute: Count | None = None, cache: str | None = None, most: Count = 16_000,
        frames: Count = 8,
    ):  # fmt: skip
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"judge.url: {url!r}: write http://HOST:PORT/v1")
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._headers = config.header(key, "judge.key")
        self._model, self._seed, self._temperature, self._max_tokens = model, seed, temperature, max_tokens
        self._structured, self._timeout, self._patience, self._retries = structured, timeout, patience, retries
        self._backoff, self._concurrent, self._pace = backoff, concurrent, RequestPacer(per_minute)
        self._memory, self._most, self._frames = VerdictCache(cache), most, frames

    def ask(self, questions: Sequence[JudgeQuestion]) -> list[Verdict]:
        until = time.monotonic() + self._patience
        bodies = [self._body(question) for question in questions]
        keys = [hashlib.sha256(self._url.encode() + body).hexdigest()[:32] for body in bodies]
        requests = {k: (body, len(q.answers)) for k, body, q in zip(keys, bodies, questions, strict=True)}
        missing = [(key, *each) for key, each in requests.items() if self._memory.of(key) is None]
        verdicts = concurrently(lambda each: self._verdict(*each, until), missing, self._concurrent, until)
        new = {each[0]: verdict or Verdict(fault=OUT_OF_TIME) for each, verdict in zip(missing, verdicts, strict=True)}
        return [new.get(key) or self._memory.of(key) for key in keys]

    def _verdict(self, key: str, body: bytes, count: int, until: float) -> Verdict:
        """Of one question, after as many requests as it takes."""
        fault = OUT_OF_TIME
        for attempt in range(self._retries + 1):
            if not self._pace.wait(until):
                break
            try:
                answer = post(self._url, body, self._headers, min(self._timeout, max(0.01, until - time.monotonic())))
                if answer.status == 200:
                    scores, critique = base.reply_read(parse_completion(answer.body), count)
                    verdict = Verdict(scores, critique)
                    self._memory.add(key, verdict)
                    return verdict
                fault = f"HTTP {answer.status}"
                if answer.status not in AGAIN and answer.status < 500:
                    break
                self._pace.hold(answer.wait)
            except (UnansweredError, ValueError) as error:
                fault = str(error)
            if attempt < self._retries:
                time.sleep(max(0.0, min(self._backoff * 2**attempt, until - time.monotonic())))
        return Verdict(fault=fault)

    def _body(self, question: JudgeQuestion) -> bytes:
        """The request: equal for equal questions."""
        rules, parts = framed(question, self._most, self._frames)
        messages = [
            {"role": "system", "content": rules},
            {"role": "user", "content": [_part(part) for part in parts]},
        ]
        body: dict[str, Any] = {"model": self._model, "messages": messages, "temperature": self._temperature,
                                 "max_tokens": self._max_tokens}  # fmt: skip
        if self._temperature:
            body["seed"] = int(hashlib.sha256(f"{self._seed}/{question.key}".encode()).hexdigest()[:7], 16)
        if self._structured:
            shape = {"name": "verdict", "strict": True, "schema": base.schema(len(question.answers))}
            body["response_format"] = {"type": "json_schema", "json_schema": shape}
        return json.dumps(body, sort_keys=True).encode()


def parse_completion(body: bytes) -> str:
    """The text of a chat completion.

    Raises:
        ValueError: it is none, or was cut off.
    """
    try:
        choice = parse_json(body)["choices"][0]
        text = choice["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        raise ValueError("an answer that is no chat completion") from None
    if not isinstance(text, str) or choice.get("finish_reason") == "length":
        raise ValueError("a reply that was cut off" if isinstance(text, str) else "an answer without text")
    return text


def _part(part: str | Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    file = io.BytesIO()
    part.save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
