"""What rewards pay for tricks: the published ones beside ours, hostile completions, judges with a weakness."""

from programs import run

COMMANDS = ("exploit", "hostile", "hacked_judge", "table_ranking")

if __name__ == "__main__":
    run(__file__, COMMANDS)
