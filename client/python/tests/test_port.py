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

    def kill_behind_step_30(self, ranks: list) -> None:
        ranks[0].until("step 30 loss")
        for run in ranks:
            run.kill()
            self.assertEqual(run.status, -signal.SIGKILL, run.said())

    def both(self, name: str) -> list:
        """Rank 0 of before.py and of after.py, which run at once, when they are done."""
        return [[run.done() for run in ranks][0] for ranks in (self.before(name), self.after(name))]

    def worst(self, one: dict, other: dict) -> float:
        """How far the figures of `one` are from those of the same name."""
        return max(abs(a - b) for key in one for a, b in zip(one[key], other[key]))

    def test_before_and_after_have_the_same_losses_also_where_both_are_killed(self):
        before, after = self.both("whole")
        of_before, of_after = figures(before), figures(after)
        self.assertEqual([len(of_before), len(of_after)], [STEPS + EVALUATIONS] * 2)
        worst = self.worst(of_before, of_after)
        self.assertLessEqual(worst, APART)
        self.assertLess(of_after[STEPS][0], of_after[1][0] - 2)
        print(f"note: {before.lines('; (.*)')[0]}: {STEPS} steps and {EVALUATIONS} evaluations of before.py and "
              f"after.py differ by at most {worst:.0e}")
        self.kill_behind_step_30(self.before("killed"))
        self.kill_behind_step_30(self.after("killed"))
        for run, least in zip(self.both("killed"), (21, 31)):
            again = figures(run)
            begun = min(key for key in again if isinstance(key, int))
            self.assertGreaterEqual(begun, least, run.said())
            self.assertIn(STEPS, again)
            self.assertLessEqual(self.worst(again, of_after), APART)


if __name__ == "__main__":
    main()
