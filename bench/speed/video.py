"""What a minute of video costs before the model sees it: seconds and memory of decoding and preprocessing.

Films are written here: moving noise under a moving square, so that no codec finds them trivial. Each row is measured in
a process of its own: seconds of the process (CPU, all threads) per minute of film, and the peak above what it held.

    python bench/speed.py video                 # a Markdown table
    python bench/speed.py video --json video.json
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("SVT_LOG", "1")  # SVT-AV1 tells errors alone

import av
import numpy as np

from tasks.data.video import Cache, FrameSampling, read_clip_frames
from vlrl.system.clock import forbid_realtime
from vlrl.types import Observation, Video

ENCODERS = {  # codec -> encoder: its fast options; the first that this PyAV has writes the film
    "h264": {"libx264": {"preset": "fast"}},
    "vp9": {"libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"}},
    "av1": {"libsvtav1": {"preset": "12"}, "libaom-av1": {"usage": "realtime", "cpu-used": "8"}},
}
ENDINGS = {"h264": "mp4", "vp9": "webm", "av1": "mp4"}
RATE = 25  # frames a second of the films
ASK = "When does the square leave the picture?"


def encoder(codec: str) -> str | None:
    """The encoder that writes films of a codec here."""
    return next((name for name in ENCODERS[codec] if name in av.codecs_available), None)


def film(file: Path, codec: str, seconds: int, size: tuple[int, int]) -> None:
    """Writes a film of a codec."""
    rng = np.random.default_rng(0)
    ground = rng.integers(40, 200, (size[1] // 8, 2 * size[0] // 8, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
    name = encoder(codec)
    with forbid_realtime(), av.open(str(file), "w") as container:
        stream = container.add_stream(name, rate=RATE, options=ENCODERS[codec][name])
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for i in range(seconds * RATE):
            picture = ground[:, 2 * i % size[0] :][:, : size[0]].copy()
            picture[40:120, 5 * i % (size[0] - 80) :][:, :80] = (220, 30, 30)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


def by_torchcodec(file: Path, sampling: FrameSampling) -> Video:
    """The same frames by torchcodec, which keeps them at full size."""
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(str(file), dimension_order="NHWC", num_ffmpeg_threads=0)
    told = decoder.metadata
    chosen = sampling.chosen([i / told.average_fps for i in range(told.num_frames)], told.average_fps)
    found = decoder.get_frames_at(indices=chosen)
    return Video(found.data.numpy(), tuple(found.pts_seconds.tolist()), told.average_fps, told.duration_seconds)


def measure(way: str, file: Path, sampling: FrameSampling) -> dict[str, float]:
    """Seconds and MiB of one way of coming by a film's frames."""
    import torch

    from vlrl.policies import tiny
    from vlrl.policies.processor import codec_for

    torch.set_num_threads(1)
    cache, work = Cache(), None
    if way == "cached":
        cache.read(file, sampling)
        work = lambda: cache.read(file, sampling)  # noqa: E731
    elif way == "preprocess":
        tokenizer = tiny.tokenizer_from([ASK])
        model, processor = tiny.build(tokenizer, family="qwen2_5_vl", hidden=64, layers=1, patch=14)
        codec, seen = (
            codec_for(processor, model, max_prompt=10**6),
            Observation((read_clip_frames(file, sampling), ASK)),
        )
        codec.encode(Observation((Video(np.zeros((2, 56, 56, 3), np.uint8), (0.0, 0.5), 2.0, 1.0), ASK)))  # warms up
        work = lambda: codec.encode(seen)  # noqa: E731
    else:
        work = lambda: (by_torchcodec if way == "torchcodec" else read_clip_frames)(file, sampling)  # noqa: E731
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before, start, begun = resident("VmRSS"), time.process_time(), time.perf_counter()
    kept = work()
    spent = {"cpu": time.process_time() - start, "wall": time.perf_counter() - begun}
    del kept
    return spent | {"mib": resident("VmHWM") - before}


def resident(field: str) -> float:
    """VmRSS (now) or VmHWM (peak) of this process, MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--codec", nargs="+", choices=list(ENCODERS), default=list(ENCODERS))
    parser.add_argument("--fps", nargs="+", type=float, default=[0.2, 2.0], help="frames a second that are looked at")
    parser.add_argument("--size", nargs=2, type=int, default=[640, 360], metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sampling = FrameSampling(fps=options.fps[0], max_pixels=128 * 28 * 28, multiple=28)
    if options.child:
        print(json.dumps(measure(options.child[0], Path(options.child[1]), sampling)))
        return
    ways = ["pyav", *(["torchcodec"] if importlib.util.find_spec("torchcodec") else []), "cached", "preprocess"]
    rows = []
    print(
        "| codec | frames a second | way | CPU s per minute | wall s per minute | peak MiB |\n|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder:
        for codec in options.codec:
            if not encoder(codec):
                print(f"{codec} left out: this PyAV has none of {', '.join(ENCODERS[codec])}", file=sys.stderr)
                continue
            file = Path(folder) / f"film.{ENDINGS[codec]}"
            film(file, codec, options.seconds, tuple(options.size))
            for fps in options.fps:
                for way in ways:
                    command = [sys.executable, __file__, "--fps", str(fps), "--child", way, str(file)]
                    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                    told, minutes = json.loads(done.stdout), options.seconds / 60
                    cpu, wall = told["cpu"] / minutes, told["wall"] / minutes
                    rows.append({"codec": codec, "fps": fps, "way": way, "cpu": cpu, "wall": wall, "mib": told["mib"]})
                    print(f"| {codec} | {fps:g} | {way} | {cpu:.3f} | {wall:.3f} | {told['mib']:.0f} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
