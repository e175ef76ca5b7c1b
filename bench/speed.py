"""What a step, a token, a reward and a row cost: beside TRL and `generate`, by size, and on a GPU."""

from programs import run

COMMANDS = ("vs_trl", "turns", "step", "decode", "sizes", "gpu", "detection_rewards", "video", "million_rows")

if __name__ == "__main__":
    run(__file__, COMMANDS)
