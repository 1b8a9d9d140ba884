"""The text, and a DataLoader whose position is a number: before.py and after.py share both."""

import itertools

import torch
from torch.utils.data import DataLoader, Dataset, Sampler


class Text(Dataset):
    """Row i is bytes i * context to (i + 1) * context of a file, and the one that follows. The last tenth of the rows
    is for evaluation."""

    def __init__(self, path, context, evaluation=False):
        with open(path, "rb") as file:
            text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
        rows = text.unfold(0, context + 1, context)
        training = len(rows) * 9 // 10
        self.rows = rows[training:] if evaluation else rows[:training]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i].long()


class Order(Sampler):
    """Which rows are in this rank's micro-batches, from micro-batch `first` on, without an end. Every epoch is shuffled
    anew, and all of it follows from (first, rank, world): nothing else is to be saved."""

    def __init__(self, length, rows, first, rank, world):
        self.length, self.rows, self.first, self.rank, self.world = length, rows, first, rank, world

    def __iter__(self):
        in_epoch = self.length // self.rows  # what is left of an epoch's rows is left out
        shuffled = None
        for micro in itertools.count(self.first):
            epoch, at = divmod(micro, in_epoch)
            if shuffled is None or at == 0:
                shuffled = torch.randperm(self.length, generator=torch.Generator().manual_seed(epoch)).tolist()
            yield shuffled[at * self.rows:(at + 1) * self.rows][self.rank::self.world]


class Batches:
    """The micro-batches of this rank: `rows` rows over all ranks, `passes` micro-batches a step."""

    def __init__(self, text, rows, passes, **options):
        self.text, self.rows, self.passes, self.options = text, rows, passes, options
        self.at = None  # micro-batch, rank, world

    def seek(self, step, rank, world):
        """Goes on with the first micro-batch of a step. Where it stands there, the DataLoader just goes on."""
        at = step * self.passes, rank, world
        if at != self.at:
            self.at = at
            order = Order(len(self.text), self.rows, *at)
            self.loader = iter(DataLoader(self.text, batch_sampler=order, **self.options))

    def next(self):
        micro, rank, world = self.at
        self.at = micro + 1, rank, world
        return next(self.loader)
