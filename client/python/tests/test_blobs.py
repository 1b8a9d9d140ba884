"""Opaque bytes beside a model: kept, written, saved and read as they are."""

import os
import warnings

from runner import main
from torched import ClusterCase

import torch
from torch import nn

import cairn


EVERY = bytes(range(256))
NANS = b"\x01\x00\x80\x7f\xff\xff\xff\xff\x00"  # if they were numbers
LONG = os.urandom(20001)


class Evil:
    """What must not be unpickled, nor pickled."""

    def __reduce__(self):
        raise AssertionError("it was pickled")


class Recipe(nn.Linear):
    """As the modules of FP8 recipes: a state beside parameters and buffers."""

    amax = torch.zeros(4, dtype=torch.uint8)

    def get_extra_state(self):
        return self.amax

    def set_extra_state(self, state):
        self.amax = state


class Blobs(ClusterCase):
    shards = 3

    def attach(self, blobs, model=None, session=None):
        return super().attach(model or nn.Linear(3, 2), cairn.SGD(lr=0.5), session, blobs=blobs)

    def step(self, m):
        m.model(torch.ones(1, 3)).sum().backward()
        return m.step()

    def test_they_are_put_trained_beside_written_and_read_at_an_exact_version(self):
        m = self.attach({"every": EVERY, "nans": torch.tensor(list(NANS), dtype=torch.uint8), "none": b"",
                         "long": bytearray(LONG)})
        self.assertEqual(m.blobs, {"every": 256, "nans": 9, "none": 0, "long": 20001})
        self.step(m)
        self.assertEqual([m.blob(name) for name in m.blobs], [EVERY, NANS, b"", LONG])
        before = m.version
        bias = torch.tensor([5.0, 7.0])
        version = m.write({"every": EVERY[::-1], "long": LONG[::-1], "bias": bias})
        self.assertEqual(version, (before.generation + 1, before.step))
        self.assertEqual(m.model.bias.tolist(), [5.0, 7.0])
        with cairn.reader(m.name, self.cluster.endpoint) as reader:
            self.assertEqual(reader.blob("long", before), LONG)
            self.assertEqual(reader.blob("long", version), LONG[::-1])
            self.assertEqual(reader.blob("nans"), NANS)
            self.assertEqual(reader.load_into(nn.Linear(3, 2)), version)
            with self.assertRaisesRegex(cairn.NotFound, "no blob bias; there are every, long, nans, none"):
                reader.blob("bias")
        self.step(m)
        self.assertEqual(m.blob("every"), EVERY[::-1])
        self.assertEqual({t.name: (t.kind, t.wire) for t in m.job.tensors()}["long"], ("blob", "u8"))

    def test_a_job_that_is_there_keeps_its_own(self):
        first = self.attach({"state": b"first"})
        first.close()
        again = self.attach({"state": b"other"})
        self.assertEqual(again.blob("state"), b"first")
        again.close()
        with self.assertRaisesRegex(cairn.Mismatch, r"tensor state: shape \[4\] here, \[5\] on the servers"):
            self.attach({"state": b"four"})

    def test_what_is_no_bytes_is_refused_and_nothing_is_pickled(self):
        for value, word in ((Evil(), "Evil"), ("text", "str"), (torch.ones(3), "torch.float32"), (None, "NoneType")):
            with self.assertRaisesRegex(cairn.Invalid, f"blob state is {word}; bytes and tensors of torch.uint8"):
                self.attach({"state": value})
        with self.assertRaisesRegex(cairn.Invalid, "'weight' is no name, or the name of a tensor"):
            self.attach({"weight": b"bytes"})
        m = self.attach({"state": b"bytes"})
        for values, plane in (({"state": b"four"}, "param"), ({"state": b"bytes"}, "exp_avg")):
            with self.assertRaisesRegex(cairn.Invalid, "blob state: . bytes of plane .*; its 5 bytes"):
                m.write(values, plane)
        with self.assertRaisesRegex(cairn.Invalid, "blob state is Evil"):
            m.write({"state": Evil()})
        self.assertEqual(m.blob("state"), b"bytes")

    def test_extra_state_is_saved_if_it_is_given_and_warned_of_if_not(self):
        with self.assertWarnsRegex(UserWarning, r"extra state of modules stays with this worker: 0\._extra_state;"):
            self.attach({}, nn.Sequential(Recipe(3, 2))).close()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with cairn.connect(self.cluster.endpoint) as session:
                m = session.attach(nn.Sequential(Recipe(3, 2)), cairn.SGD(lr=0.5), rank=0, workers_min=1, timeout=20,
                                   name="with_recipe", blobs={"0._extra_state": NANS, "other": b"1"})
                state = m.state_dict()
        self.assertEqual(sorted(state), ["0._extra_state", "0.bias", "0.weight"])
        model = nn.Sequential(Recipe(3, 2))
        model.load_state_dict(state)  # strict
        self.assertEqual(bytes(model[0].amax.tolist()), NANS)


if __name__ == "__main__":
    main()
