"""What an error of attach or of a step advises is done here as it stands there, and is right."""

import warnings

from runner import main
from torched import ClusterCase

import torch
from torch import nn

import cairn


def line() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))


class Buffered(nn.Module):
    """With a buffer that no state dict has."""

    def __init__(self, device=None):
        super().__init__()
        self.line = nn.Linear(2, 1, device=device)
        self.register_buffer("mask", torch.ones(2, device=device), persistent=False)

    def forward(self, x):
        return self.line(x * self.mask)


class Advice(ClusterCase):
    def setUp(self):
        self.made = 0

    def attach(self, model=None, optim=None, **options):
        self.made += "name" not in options
        return super().attach(line() if model is None else model, optim or cairn.SGD(lr=0.1),
                              **{"name": f"{self.name}{self.made}", **options})

    def step(self, m, **options):
        m.model(torch.ones(2, 2)).sum().backward()
        return m.step(**options)

    def test_of_an_optimizer_that_lacks_a_parameter(self):
        model = line()
        some = torch.optim.SGD(model[0].parameters(), lr=0.1)
        self.refused(r"does not have 1.weight, 1.bias; add them to it, or freeze them \(requires_grad_\(False\)\)",
                     lambda: self.attach(model, some))
        some.add_param_group({"params": list(model[1].parameters())})
        self.step(self.attach(model, some))
        model = line()
        model[1].requires_grad_(False)
        m = self.attach(model, torch.optim.SGD(model[0].parameters(), lr=0.1))
        before = model[1].weight.detach().clone()
        self.step(m)
        self.assertTrue(torch.equal(m.state_dict()["1.weight"], before))

    def test_of_a_model_that_nobody_trains(self):
        model = line().requires_grad_(False)
        self.refused(r"to read or to keep such a model on the servers leave the optimizer out, attach\(model\)",
                     lambda: self.attach(model, name="kept"))
        trained = line()
        self.refused(r"no job kept to read.*model.requires_grad_\(False\)",
                     lambda: self.session.attach(trained, name="kept", rank=0, workers=1, timeout=1), cairn.NotFound)
        self.session.attach(trained.requires_grad_(False), name="kept", rank=0, workers=1, timeout=20).close()
        self.session.attach(model, name="kept", rank=0, workers=1, timeout=20).close()

    def test_of_a_buffer_on_meta(self):
        model = Buffered("meta")
        init = {"*": cairn.Init("constant", 0.5)}
        self.refused(r"as in model.mask = torch.tensor\(…\)", lambda: self.attach(model, init=init))
        model.mask = torch.tensor([1.0, 0.0])
        m = self.attach(model, init=init)
        self.assertEqual(m.model(torch.ones(1, 2)).item(), 1.0)
        self.step(m)

    def test_of_a_job_that_a_model_on_meta_is_to_go_on_with(self):
        m = self.attach(name="meta")
        self.step(m)
        m.snapshot(), m.close()
        self.cluster.ctl("job", "drop", "meta", "--yes")
        model = nn.Sequential(nn.Linear(2, 2, device="meta"), nn.Linear(2, 1, device="meta"))
        self.refused("`cairn snapshot restore meta latest` first, or attach a model on the CPU",
                     lambda: self.attach(model, name="meta", resume="latest"))
        self.cluster.ctl("snapshot", "restore", "meta", "latest")
        self.assertEqual(self.attach(model, name="meta", resume="latest").version.step, 1)
        m = self.attach(name="poor")
        m.close()
        self.cluster.ctl("job", "drop", "poor", "--yes")
        self.refused(r"nobody has the initial values.*init={pattern: cairn.Init\(…\)}", lambda: self.attach(
            nn.Sequential(nn.Linear(2, 2, device="meta")), name="poor"))
        self.attach(nn.Sequential(nn.Linear(2, 2, device="meta")), init={"*": cairn.Init("ones")}, name="poor")

    def test_of_a_scripted_module(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, that torch.jit grows old
            scripted = torch.jit.script(line())
        self.refused("attach the module that torch.jit was given, and train that, or have it inside another module",
                     lambda: self.attach(scripted))
        for model in (line(), nn.Sequential(scripted)):
            self.assertGreater(self.step(self.attach(model)).grad_norm, 0)

    def test_of_options(self):
        for words, wrong, right in (
                ("leave it out, or give stage=3", dict(stage=2, window=2), (dict(stage=2), dict(stage=3, window=2))),
                ("leave it out, or take stage 2", dict(stage=1, micro_batches=2, mapped_gradients=True),
                 (dict(stage=1, micro_batches=2), dict(stage=2, micro_batches=2, mapped_gradients=True))),
                ("leave it out, or give stage=3", dict(stage=2, mapped_parameters=True),
                 (dict(stage=2), dict(stage=3, mapped_parameters=True))),
                (r"give a list of classes and patterns: units=\[…\]", dict(units=nn.Linear),
                 (dict(units=[nn.Linear]), dict(units=["*"]))),
                ("it is True, False, or None for where it helps", dict(mapped_gradients=1),
                 (dict(mapped_gradients=True), dict(mapped_gradients=None)))):
            self.refused(words, lambda: self.attach(**wrong))
            for options in right:
                self.step(self.attach(**options))

    def test_of_a_step(self):
        m = self.attach(loss_scale=8.0, loss_scale_policy="fixed")
        self.refused(r"m.scale\(loss\).backward\(\)", lambda: self.step(m))
        m.resume()
        m.scale(m.model(torch.ones(2, 2)).sum()).backward()
        self.assertTrue(m.step().applied)
        m = self.attach(name="state")
        self.refused(r"give attach\(…, client_state_max=…\)", lambda: self.step(m, client_state=b"1"))
        m.close()
        self.cluster.ctl("job", "drop", "state", "--yes")
        m = self.attach(name="state", client_state_max=4)
        self.step(m, client_state=b"1")
        self.assertEqual(m.client_state(), b"1")
        m = self.attach(clip_norm=1.0)
        self.refused("clip_norm 2.0 here, 1.0 in the job: .*give it to attach", lambda: self.step(m, clip_norm=2.0))
        m = self.attach(clip_norm=2.0)
        self.assertTrue(self.step(m, clip_norm=2.0).applied)

    def test_of_an_amendment(self):
        m = self.attach(snapshot_every=4, snapshot_keep=2)
        self.refused("snapshot_keep without snapshot_every: give both, snapshot_every=4 to leave it",
                     lambda: m.amend(snapshot_keep=3))
        m.amend(snapshot_keep=3, snapshot_every=4)
        self.step(m)

    def test_of_a_global_batch(self):
        m = self.attach(global_batch=2, stage=2)
        self.refused(r"for k in m.begin\(\).micro_batches; m.micro_end\(\) ends one without gradients",
                     lambda: self.step(m))
        m.resume()
        for k in m.begin().micro_batches:
            m.model(torch.ones(2, 2)).sum().backward()
        self.assertTrue(m.step().applied)
        m.model(torch.ones(2, 2)).sum().backward()
        m.micro_end(), m.micro_end()
        self.assertTrue(m.step().applied)


if __name__ == "__main__":
    main()
