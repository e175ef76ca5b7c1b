"""What several processes and a cluster do: measured on one machine, simulated for more."""

from programs import run

COMMANDS = ("processes", "placement", "staleness", "simulate_cluster", "cluster_parts")

if __name__ == "__main__":
    run(__file__, COMMANDS)
