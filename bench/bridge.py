"""What robots and simulators cost: the bridge beside lerobot's, ticks a second, scripted experts, trials."""

from programs import run

COMMANDS = ("costs", "simulate", "simulators", "metaworld_experts", "robosuite_robots", "trial")

if __name__ == "__main__":
    run(__file__, COMMANDS)
