"""What faults do: the bridge's table, lines broken on purpose, and tiny steps for a long time."""

from programs import run

COMMANDS = ("bridge_faults", "mutants", "soak")

if __name__ == "__main__":
    run(__file__, COMMANDS)
