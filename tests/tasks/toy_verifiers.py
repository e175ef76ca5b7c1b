"""Small environments in verifiers' own classes, as other people write them: a picture, a game, tools, failures."""

import asyncio
import base64
import io
import random
import time

import verifiers.v1 as vf
from PIL import Image

COLORS = ("red", "green", "blue")


def picture(color: str) -> vf.UserMessage:
    file = io.BytesIO()
    Image.new("RGB", (32, 32), color).save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return vf.UserMessage(
        content=[
            vf.ImageUrlContentPart(image_url=vf.ImageUrlSource(url=url)),
            vf.TextContentPart(text="Which color?"),
        ]
    )


class ColorData(vf.TaskData):
    answer: str


class ColorTaskConfig(vf.TaskConfig):
    fails: str = ""


class ColorTask(vf.Task[ColorData, vf.State, ColorTaskConfig]):
    @vf.reward(weight=0.75)
    async def exact(self, trace: vf.Trace) -> float:
        if self.config.fails == "raises" and trace.last_reply == "raise":
            raise ValueError("the grader\nbroke")
        if self.config.fails == "hangs" and trace.last_reply == "hang":
            time.sleep(60)
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.25)
    async def mentions(self, trace: vf.Trace) -> float:
        return float(self.data.answer in trace.last_reply)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class ColorConfig(vf.TasksetConfig):
    count: int = 12
    split: str = "train"
    system: str = ""
    task: ColorTaskConfig = ColorTaskConfig()


class Colors(vf.Taskset[ColorTask, ColorConfig]):
    """One turn, an image."""

    def load(self):
        if self.config.split == "offline":
            raise ConnectionError("cannot reach the hub\nretry")
        first = len(COLORS) if self.config.split == "test" else 0
        for i in range(first, first + self.config.count):
            color = COLORS[i % len(COLORS)]
            data = ColorData(prompt=[picture(color)], answer=color, system_prompt=self.config.system or None)
            yield ColorTask(data, self.config.task)


class GuessData(vf.TaskData):
    secret: int


class GuessTask(vf.Task[GuessData]):
    @vf.reward
    async def found(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == str(self.data.secret))


class Secrets(vf.Taskset[GuessTask]):
    def load(self):
        for secret in range(1, 9):
            yield GuessTask(GuessData(prompt="Guess a number from 1 to 8.", secret=secret))


class GuessEnv(vf.Env[vf.SingleAgentEnvConfig]):
    """Several turns: higher or lower; the fewer, the better."""

    def __init__(self, config, fails=""):
        self.config, self.taskset, self.fails = config, Secrets(vf.TasksetConfig()), fails

    async def run(self, task, agents):
        async with agents.agent.interaction(task) as conversation:
            segment = await conversation.turn()
            while not segment.terminated and segment.last_reply != str(task.data.secret):
                if segment.last_reply == "crash":
                    raise OSError("the game\ncrashed")
                guess = int(segment.last_reply) if segment.last_reply.isdigit() else 0
                segment = await conversation.turn("Higher." if guess < task.data.secret else "Lower.")

    async def finalize(self, task, episode):
        (trace,) = episode.traces
        if self.fails == "finalize":
            raise ValueError("no judgement")
        trace.record_metric("guesses", trace.num_turns)
        trace.record_reward("quick", float(trace.num_turns <= 3), 0.5)


def guess(fails: str = ""):
    return GuessEnv(vf.SingleAgentEnvConfig(), fails)


class Notes(vf.State):
    looked: list[str] = []  # noqa: RUF012


class Store(vf.Toolset[vf.ToolsetConfig, Notes]):
    TOOL_PREFIX = "store"

    async def setup_task(self, task):
        self.prices = task.prices

    @vf.tool
    async def price(self, item: str) -> str:
        """The price of an item."""
        self.state.looked.append(item)
        return f"{self.prices[item]} euros"


class Shared(vf.Toolset[vf.ToolsetConfig, vf.State]):
    TOOL_PREFIX = None

    @vf.tool
    async def draw(self, color: str) -> list:
        """A picture of a color."""
        from mcp.server.mcpserver import Image as Picture

        file = io.BytesIO()
        Image.new("RGB", (8, 8), color).save(file, "PNG")
        return [Picture(data=file.getvalue(), format="png")]


class ShopData(vf.TaskData):
    prices: dict[str, int]


class ShopTask(vf.Task[ShopData, Notes]):
    @classmethod
    def toolsets(cls, config):
        return [Store(vf.ToolsetConfig())]

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == str(self.data.prices["tea"]) and trace.state.looked == ["tea"])


class Shop(vf.Taskset[ShopTask]):
    """Tools, one of them with the episode's state, one that returns a picture."""

    def load(self):
        for price in range(2, 6):
            yield ShopTask(ShopData(prompt="What does tea cost?", prices={"tea": price}))

    @classmethod
    def toolsets(cls, config):
        return [Shared(vf.ToolsetConfig())]


class BrokenStore(Store):
    async def setup(self):
        raise OSError("no\nindex")


class BrokenShop(Shop):
    @classmethod
    def toolsets(cls, config):
        return [BrokenStore(vf.ToolsetConfig())]


class RemoteShop(Shop):
    @classmethod
    def toolsets(cls, config):
        return [Store(vf.ToolsetConfig(url="http://127.0.0.1:9/mcp"))]


class ProgramTask(vf.Task):
    @vf.reward
    async def ran(self, trace: vf.Trace, runtime: vf.Runtime) -> float:
        result = await runtime.run(["sh", "-c", "echo $((1 + 1))"], {})
        return float(result.stdout.strip() == trace.last_reply)


class Programs(vf.Taskset[ProgramTask]):
    def load(self):
        yield from (ProgramTask(vf.TaskData(prompt=f"{i}: 1 + 1?")) for i in range(4))


class SlowTask(vf.Task):
    async def finalize(self, trace: vf.Trace) -> None:
        await asyncio.sleep(60)


class Slow(vf.Taskset[SlowTask]):
    def load(self):
        yield from (SlowTask(vf.TaskData(prompt="x")) for _ in range(4))


class Rolls(vf.Taskset):
    """Tasks in an order of the process' own generator."""

    def load(self):
        for i in random.sample(range(100), 8):
            yield vf.Task(vf.TaskData(prompt=f"Roll {i}."))


class RollEnv(vf.SingleAgentEnv):
    """Twice, at the same time, and with what the process' generator says."""

    def __init__(self, config):
        self.config, self.taskset = config, Rolls(vf.TasksetConfig())

    async def run(self, task, agents):
        async def ask(letter: str) -> None:
            async with agents.agent.interaction(task) as conversation:
                await conversation.turn()
                await conversation.turn([{"role": "user", "content": f"{letter}{random.random()}"}])

        await asyncio.gather(ask("a"), ask("b"))


def rolls():
    return RollEnv(vf.SingleAgentEnvConfig())


class BoxedTask(vf.Task):
    NEEDS_CONTAINER = True


class Boxed(vf.Taskset[BoxedTask]):
    def load(self):
        yield from (BoxedTask(vf.TaskData(prompt="x")) for _ in range(4))


__all__ = ["Colors"]
