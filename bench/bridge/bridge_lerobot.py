"""lerobot's side of `costs`: its asynchronous inference, server and client, unchanged but for stopwatches."""

from __future__ import annotations

import queue
import threading
import time
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import torch
from bridge_body import CHUNK, JOINTS
from bridge_lerobot_robot import Still, StillConfig
from bridge_policy import Kind, Watch
from lerobot.async_inference import robot_client
from lerobot.async_inference.configs import PolicyServerConfig, RobotClientConfig
from lerobot.async_inference.helpers import TimedObservation
from lerobot.async_inference.policy_server import PolicyServer
from lerobot.async_inference.robot_client import RobotClient
from lerobot.transport import services_pb2_grpc


class _Timed(PolicyServer):
    """Its server with stopwatches in it, and without the policy if so wanted."""

    def watched(self, watch: Watch) -> None:
        self._watch = watch
        predict = super()._predict_action_chunk if watch.kind != "none" else self._zeros
        self._predict_action_chunk = watch.around(predict)

    def SendPolicyInstructions(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = super().SendPolicyInstructions(request, context)
        self._watch.into(self.policy)
        return answer

    def _zeros(self, shown: TimedObservation) -> list:
        self.last_processed_obs = shown
        zeros = list(torch.zeros(CHUNK, len(JOINTS)))
        return self._time_action_chunk(shown.get_timestamp(), zeros, shown.get_timestep())


class Server:
    """What `lerobot.async_inference.policy_server.serve` sets up. `inference_latency` 0: no answer is held back."""

    def __init__(self) -> None:
        self._server: grpc.Server | None = None

    def serve(self, folder: str, kind: Kind, wait_s: float) -> int:
        """Its port. The policy is loaded when a client names it."""
        if self._server is not None:
            self._server.stop(None).wait()
        self._policy = _Timed(PolicyServerConfig(inference_latency=0.0))
        self._watch = Watch(kind, wait_s)
        self._policy.watched(self._watch)
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
        services_pb2_grpc.add_AsyncInferenceServicer_to_server(self._policy, self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        return port

    def taken(self) -> dict[str, list[float]]:
        return self._watch.taken()


robot_client.make_robot_from_config = Still  # lerobot finds robots only in packages of certain names


class _Asks(RobotClient):
    """Its client, that says when a chunk has come and does not carry it out."""

    def __init__(self, config: RobotClientConfig):
        super().__init__(config)
        self.came: queue.Queue[tuple[int, float]] = queue.Queue()

    def _aggregate_action_queues(self, incoming_actions: list, aggregate_fn: Any = None) -> None:
        self.came.put((incoming_actions[0].get_timestep(), time.perf_counter()))


class _Moves(RobotClient):
    """Its client, that notes when a tick begins and how old the action is that it carries out."""

    def __init__(self, config: RobotClientConfig):
        super().__init__(config)
        self.starts: list[float] = []
        self.ages: list[float | None] = []
        self._observation: dict[float, float] = {}  # time stamp of an action -> of the observation that it answers

    def actions_available(self) -> bool:
        self.starts.append(time.monotonic())
        there = super().actions_available()
        self.ages.append(None)
        return there

    def control_loop_action(self, verbose: bool = False) -> dict[str, Any]:
        with self.action_queue_lock:
            head = self.action_queue.queue[0]
        done = super().control_loop_action(verbose)
        self.ages[-1] = time.time() - self._observation[head.get_timestamp()]
        return done

    def _aggregate_action_queues(self, incoming_actions: list, aggregate_fn: Any = None) -> None:
        first = incoming_actions[0].get_timestamp()
        self._observation.update((action.get_timestamp(), first) for action in incoming_actions)
        super()._aggregate_action_queues(incoming_actions, aggregate_fn)


class Robot:
    """The robot's computer."""

    def meet(self, port: int, folder: str, height: int, width: int) -> None:
        self._client, self._count = self._started(_Asks, port, folder, height, width, 30, 0.5), 0
        self._client.start_barrier.wait()

    def part(self) -> None:
        self._client.stop()
        self._receiving.join(5)

    def trips(self, count: int) -> list[float]:
        """Seconds of round trips, one after the other: from an observation in memory to its actions in memory."""
        return [self._trip() for _ in range(count)]

    def _trip(self) -> float:
        self._count += 1
        shown = self._client.robot.get_observation() | {"task": ""}
        began = time.perf_counter()
        self._client.send_observation(TimedObservation(time.time(), self._count, shown, must_go=True))
        came, ended = self._client.came.get(timeout=60.0)
        if came != self._count:
            raise RuntimeError(f"an answer to {came}, not to {self._count}")
        return ended - began

    def loop(self, port: int, folder: str, height: int, width: int, hz: float, seconds: float, threshold: float
             ) -> dict[str, Any]:  # fmt: skip
        """Its control loop as it is."""
        self._client = client = self._started(_Moves, port, folder, height, width, hz, threshold)
        began = time.process_time()
        threading.Timer(seconds, client.shutdown_event.set).start()
        client.control_loop(task="")
        used = time.process_time() - began
        self.part()
        return {"starts": client.starts, "ages": client.ages, "cpu": used, "priority": "normal"}

    def _started(self, kind: type, port: int, folder: str, height: int, width: int, hz: float, threshold: float) -> Any:
        client = kind(
            RobotClientConfig(
                policy_type="act", pretrained_name_or_path=folder, actions_per_chunk=CHUNK, fps=int(hz),
                server_address=f"127.0.0.1:{port}", chunk_size_threshold=threshold,
                robot=StillConfig(id="still", calibration_dir=Path("calibration"), height=height, width=width),
            )
        )  # fmt: skip
        if not client.start():
            raise RuntimeError("lerobot's client does not start")
        self._receiving = threading.Thread(target=client.receive_actions, daemon=True)
        self._receiving.start()
        return client
