"""`python -m tests.torture`: runs of one seed after another, each in namespaces of its own."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.torture import agents, hostile, hosts, rotation, run, servers
from tests.torture.options import Options
from tests.torture.readers import receivers

INSIDE = "TORTURE_INSIDE"


def refusal() -> str:
    """Why this machine cannot run the torture; "" if it can."""
    if os.geteuid() != 0:
        return "torture needs root: it makes hosts"
    program = servers.missing() or rotation.missing() or agents.missing() or receivers.missing()
    return f"{program} is not installed" if program else hosts.refusal()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__)
    parser.add_argument("--seconds", type=float, default=900.0, help="of faults, for each seed")
    parser.add_argument(
        "--seeds",
        default="1",
        help="one or more, with spaces; one that has a result with the same options is not run again",
    )
    parser.add_argument("--out", type=Path, default=Path("torture-out"))
    parser.add_argument("--agents", type=int, default=5)
    parser.add_argument("--rate", type=float, default=40.0, help="requests a second at each server")
    parser.add_argument("--gap", type=float, default=6.0, help="seconds between faults, in the mean")
    parser.add_argument(
        "--rotate", type=float, default=20.0, help="seconds between rotations of a log, in the mean"
    )
    parser.add_argument(
        "--mode", default="", choices=["", *rotation.MODES], help="rotate every log in this way"
    )
    parser.add_argument("--load", type=int, default=0, help="busy loops beside it")
    parser.add_argument("--faults", default="", help="only these kinds, with spaces")
    parser.add_argument("--without", default="", help="not these kinds")
    parser.add_argument("--allow", default="", help="kinds of findings that do not make a run bad")
    parser.add_argument("--quick", action="store_true", help="timings for a short run")
    parser.add_argument("--keep", action="store_true", help="keep states and logs of a good run too")
    parser.add_argument(
        "--hostile", action="store_true", help="clients that mean harm, in the place of faults"
    )
    parser.add_argument("--again", action="store_true", help="run seeds that have a result, too")
    return parser.parse_args()


def options(asked: argparse.Namespace, seed: int) -> Options:
    return Options(
        seconds=asked.seconds,
        seed=seed,
        out=asked.out.absolute(),
        agents=asked.agents,
        rate=asked.rate,
        gap_s=asked.gap,
        rotate_s=asked.rotate,
        mode=asked.mode,
        load=asked.load,
        is_quick=asked.quick,
        keeps=asked.keep,
        faults=tuple(asked.faults.split()),
        without=tuple(asked.without.split()),
        allowed=tuple(asked.allow.split()),
    )


def inside(asked: argparse.Namespace) -> int:
    """In the namespaces: the run of one seed."""
    if asked.hostile:
        attacked = hostile.Hostile(options(asked, 0))
        for finding in attacked.go(lambda text: print(text, flush=True)).wrong:
            print(f"{finding.kind}: {finding.text}")
        return 1 if attacked.verdict.wrong else 0
    each = run.Run(options(asked, int(asked.seeds)))
    verdict = each.go(lambda text: print(f"» {text}", flush=True))
    print(run.result_text(each.result(), verdict), flush=True)
    print(f"» {each.options.folder}/page.html", flush=True)
    return 1 if verdict.wrong else 0


def outside(asked: argparse.Namespace) -> int:
    """Run each seed in namespaces of its own. Results that already exist are printed again."""
    reason = refusal()
    if reason:
        print(f"torture: {reason}", file=sys.stderr)
        return 2
    code = 0
    for seed in [0] if asked.hostile else map(int, asked.seeds.split()):
        done = None if asked.again or asked.hostile else run.finished(options(asked, seed))
        if done is not None:
            print(run.result_text(done))
            code |= not done["is_good"]
            continue
        command = [sys.executable, "-m", "tests.torture", *sys.argv[1:], "--seeds", str(seed)]
        code |= subprocess.run(
            hosts.enclosed(command), env=os.environ | {INSIDE: "1"}, check=False
        ).returncode
    return code


if __name__ == "__main__":
    asked = arguments()
    sys.exit(inside(asked) if os.environ.get(INSIDE) else outside(asked))
