"""A robot policy in simulation, beside the robot's script and chance in the same scenes.

python examples/robot_policy.py
"""

import vlrl


def main() -> None:
    config = vlrl.load_config("manipulation", {"policy.model": "embedded_push"})
    result = vlrl.simulate(config, "runs/pushed", against=["expert", "random"], episodes=20)
    for arm in result["arms"]:
        success = arm["success"]
        print(f"{arm['name']}: success {success['value']:.2f} [{success['low']:.2f}, {success['high']:.2f}]")
    for pair in result["pairs"]:
        gap, low, high = pair["difference"], pair["low"], pair["high"]
        print(f"{pair['a']} against {pair['b']}: {gap:+.2f} [{low:+.2f}, {high:+.2f}], p = {pair['p']:.2g}")
    print("looked at in a browser: runs/pushed/report.html")


if __name__ == "__main__":
    main()
