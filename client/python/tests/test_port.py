"""client/examples/fsdp_port: the trainer with FSDP2 (with an older torch: with averaged gradients) and its port."""

import signal

from runner import main
from test_examples import NUMBER, Case, Run

STEPS, EVALUATIONS = 60, 3
APART = 1e-4


def figures(run: Run) -> dict:
    """Loss, norm and lr by step, and the loss by evaluation, as far as it has said them."""
    said = {int(step): line for step, *line in run.lines(rf"step (\d+) loss {NUMBER} norm {NUMBER} lr {NUMBER}\n")}
    said.update({f"evaluation {step}": line for step, *line in run.lines(rf"step (\d+) evaluation loss {NUMBER}\n")})
    return {key: [float(figure) for figure in line] for key, line in said.items()}


class Port(Case):
    def before(self, name: str) -> list:
        return self.ranks(2, "fsdp_port/before.py", "--checkpoint", f"{name}.pt")

    def after(self, name: str) -> list:
        return self.ranks(2, "fsdp_port/after.py", "--job", name)

    def rank_1_of_after(self, name: str) -> Run:
        return Run(self, "fsdp_port/after.py", "--job", name, RANK="1", WORLD_SIZE="2", LOCAL_RANK="1")

    def rank_0(self, *started: list) -> list:
        """Of each, when all ranks are done."""
        return [[run.done() for run in ranks][0] for ranks in started]

    def kill_behind(self, step: int, first: Run, *runs: Run) -> None:
        """When rank 0, `first`, has made a step."""
        first.until(f"step {step} loss")
        for run in runs:
            run.kill()
            self.assertEqual(run.status, -signal.SIGKILL, run.said())

    def worst(self, one: dict, other: dict) -> float:
        """How far the figures of `one` are from those of the same name."""
        return max(abs(a - b) for key in one for a, b in zip(one[key], other[key]))

    def test_before_and_after_have_the_same_losses_also_where_workers_are_killed(self):
        before, after = self.rank_0(self.before("whole"), self.after("whole"))
        of_before, of_after = figures(before), figures(after)
        self.assertEqual([len(of_before), len(of_after)], [STEPS + EVALUATIONS] * 2)
        worst = self.worst(of_before, of_after)
        self.assertLessEqual(worst, APART)
        self.assertLess(of_after[STEPS][0], of_after[1][0] - 2)
        print(f"note: {before.lines('; (.*)')[0]}: {STEPS} steps and {EVALUATIONS} evaluations of before.py and "
              f"after.py differ by at most {worst:.0e}")
        for start, first_step in ((self.before, 21), (self.after, 31)):
            ranks = start("killed")
            self.kill_behind(30, ranks[0], *ranks)
            ranks = start("killed")
            if start == self.after:  # one alone: the other does its step again, and its rows are the same
                self.kill_behind(40, ranks[0], ranks[1])
                ranks[1] = self.rank_1_of_after("killed")
            again = figures(self.rank_0(ranks)[0])
            steps = [key for key in again if isinstance(key, int)]
            self.assertGreaterEqual(steps[0], first_step)
            self.assertEqual(steps, list(range(steps[0], STEPS + 1)), "each step is applied once")
            self.assertLessEqual(self.worst(again, of_after), APART)


if __name__ == "__main__":
    main()
