"""Attaching to a job that is there, or is not, or is another one."""


from runner import main
from torched import ClusterCase

import torch
from torch import nn

import cairn


class Case(ClusterCase):
    def attach(self, optim, model=None, **options):
        return super().attach(nn.Linear(2, 2) if model is None else model, optim, **options)


class TheJob(Case):
    def test_a_name_that_is_wrong_begins_nothing(self):
        self.attach(cairn.SGD(), name="right").close()
        self.attach(cairn.SGD(), name="right", must_exist=True).close()
        for optim in (cairn.SGD(), None):
            with self.assertRaisesRegex(cairn.NotFound, r"no job wrong, and must_exist=True begins none: `cairn job "
                                        r"list`.*`cairn snapshot restore wrong latest`"):
                self.session.attach(nn.Linear(2, 2).requires_grad_(optim is not None), optim, name="wrong", timeout=20,
                                    must_exist=True)
        self.assertNotIn("wrong", [job["name"] for job in self.cluster.ctl("job", "list")["jobs"]])

    def test_one_that_is_gone_is_resumed_from_its_newest_snapshot(self):
        with self.assertRaisesRegex(cairn.Invalid, "resume is 'newest'; it is None or 'latest'"):
            self.attach(cairn.SGD(), name="gone", resume="newest")
        with self.assertRaisesRegex(cairn.NotFound, "there is no job gone"):
            self.attach(cairn.SGD(), name="gone", resume="latest", must_exist=True)
        m = self.attach(cairn.SGD(), name="gone", resume="latest")  # nothing to resume: begun anew
        for _ in range(2):
            m.begin(), m.step()
        m.snapshot()
        m.begin(), m.step()
        m.close()
        m = self.attach(cairn.SGD(), name="gone", resume="latest", must_exist=True)  # it is there, as it is
        self.assertEqual(m.version.step, 3)
        m.close()
        self.cluster.ctl("job", "drop", "gone", "--yes")
        m = self.attach(cairn.SGD(), name="gone", resume="latest", must_exist=True)
        self.assertEqual(m.version.step, 2)


class AnotherOne(Case):
    """A trainer that is started again with other terms is told the call that changes them, and the call does it."""

    def amended(self, was, now, was_clip: float = 0.0, now_clip: float = 0.0) -> str:
        self.attach(was, clip_norm=was_clip).close()
        with self.assertRaisesRegex(cairn.Mismatch, "on the servers") as caught:
            self.attach(now, clip_norm=now_clip)
        self.assertIn("\nThese may change while it trains: attach as it was, then m.amend(", str(caught.exception))
        call = str(caught.exception).rpartition("then ")[2]
        m = self.attach(was, clip_norm=was_clip)
        eval(call, {"m": m, "cairn": cairn})
        m.close()
        self.attach(now, clip_norm=now_clip).close()
        self.attach(was, clip_norm=was_clip).close()  # as it was is good, too
        return call

    def test_a_learning_rate(self):
        self.assertEqual(self.amended(cairn.AdamW(lr=0.1), cairn.AdamW(lr=0.05)),
                         "m.amend({'default': dict(lr=0.05)})")

    def test_the_number_of_steps(self):
        self.assertEqual(self.amended(cairn.AdamW(lr=0.1, schedule=cairn.cosine(100, warmup_steps=5)),
                                      cairn.AdamW(lr=0.1, schedule=cairn.cosine(200, warmup_steps=5))),
                         "m.amend({'default': dict(schedule=cairn.cosine(total_steps=200, warmup_steps=5))})")

    def test_several_groups_and_the_clip_norm(self):
        call = self.amended(cairn.AdamW(lr=0.1, groups={"bias": dict(weight_decay=0.0)}),
                            cairn.AdamW(lr=0.1, betas=(0.8, 0.9), groups={"bias": dict(
                                weight_decay=0.5, schedule=cairn.wsd(10, 5))}), now_clip=2.0)
        self.assertRegex(call, r"^m.amend\(\{'bias': dict\(.*weight_decay=0.5, schedule=cairn.wsd\(total_steps=10, "
                         r"decay_steps=5\)\), 'default': dict\(beta1=0.8, beta2=0.9\)\}, clip_norm=2.0\)$")

    def spelled(self, name, was, now, says: str) -> None:
        """The call that a Mismatch spells, after which the job is `now`."""
        self.attach(cairn.SGD(lr=0.1), was, name=name).close()
        with self.assertRaises(cairn.Mismatch) as caught:
            self.attach(cairn.SGD(lr=0.1), now, name=name)
        text = str(caught.exception)
        self.assertNotIn("no setting makes it so", text)
        self.assertNotRegex(text, "group  here|here,  on")
        call = text.rpartition("attach as it was, then ")[2].partition(", and after the next attach")[0]
        self.assertEqual(call, says)
        m = self.attach(cairn.SGD(lr=0.1), was, name=name)
        eval(call, {"m": m, "cairn": cairn})
        m.close()
        m = self.attach(cairn.SGD(lr=0.1), now, name=name)
        m.write({key: value.detach().float() + 1 for key, value in now.named_parameters()})
        before = m.state_dict()
        now(torch.ones(1, 2).to(now[0].weight.dtype)).sum().backward() if now[1].weight.dtype == torch.float32 else None
        m.step()
        for key, value in m.state_dict().items():
            self.assertEqual(torch.equal(value, before[key]), now[1].weight.dtype != torch.float32, key)
        m.close()

    def test_tensors_that_are_thawed_frozen_rewired_and_added(self):
        def net(count=2, thawed=True, dtype=torch.float32):
            torch.manual_seed(0)
            made = nn.Sequential(*[nn.Linear(2, 2) for _ in range(count)])
            made[0].weight.requires_grad_(thawed)
            made[1].to(dtype)
            return made

        for name, was, now, says in (
                ("thawed", net(thawed=False), net(), "m.amend(unfreeze_tensors={'0.weight': 'default'})"),
                ("rewired", net(), net(dtype=torch.bfloat16),
                 "m.job.amend(settings={'1.bias.wire': 'bf16', '1.weight.wire': 'bf16'})"),
                ("added", net(), net(3), "m.job.amend(add=[cairn.Tensor('2.bias', (2,), unit='2', group='default', "
                 "wire='f32', init=cairn.Init('zeros')), cairn.Tensor('2.weight', (2, 2), unit='2', group='default', "
                 "wire='f32', init=cairn.Init('zeros'))])")):
            with self.subTest(name):
                self.spelled(name, was, now, says)

    def test_a_layer_that_is_frozen(self):
        was, now = nn.Linear(2, 2), nn.Linear(2, 2)
        now.weight.requires_grad_(False)
        self.attach(cairn.SGD(lr=0.1), was).close()
        with self.assertRaisesRegex(cairn.Mismatch, "(?s)group .none. here.*trains: attach as it was, then "
                                    r"m.amend\(freeze_tensors=\['weight'\]\)") as caught:
            self.attach(cairn.SGD(lr=0.1), now)
        m = self.attach(cairn.SGD(lr=0.1), was)
        eval(str(caught.exception).rpartition("then ")[2], {"m": m})
        before = m.state_dict()
        was(torch.ones(1, 2)).sum().backward()
        m.step()
        self.assertEqual([torch.equal(value, before[key]) for key, value in m.state_dict().items()], [True, False])

    def test_a_change_that_is_no_number_is_a_sentence(self):
        m = self.attach(cairn.AdamW(lr=0.1))
        for change, words in ((dict(lr="x"), "lr is 'x', which is no number"), (dict(lr=None), "lr is None"),
                              (dict(betas=0.9), "betas is 0.9; it is two numbers"), (dict(eps=[1]), "eps is \\[1\\]")):
            with self.assertRaisesRegex(cairn.Invalid, words):
                m.amend({"default": change})

    def test_what_no_amendment_does_is_not_promised(self):
        self.attach(cairn.SGD(lr=0.1)).close()
        for other in (dict(optim=cairn.AdamW(lr=0.1)), dict(optim=cairn.SGD(lr=0.1, momentum=0.9)),
                      dict(optim=cairn.SGD(lr=0.2), stage=0), dict(optim=cairn.SGD(lr=0.1, groups={"bias": {}}))):
            with self.assertRaisesRegex(cairn.Mismatch, "on the servers") as caught:
                self.attach(**other)
            self.assertNotIn("m.amend", str(caught.exception))


if __name__ == "__main__":
    main()
