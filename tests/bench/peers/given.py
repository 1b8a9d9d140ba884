"""Gradients that are there before the backward, for wrappers that want an autograd graph (DDP, FSDP2)."""

import torch


class GivenGradients(torch.autograd.Function):
    """Gives x through; its backward computes nothing, it hands over `grads`, one a parameter, and forgets them."""

    @staticmethod
    def forward(ctx, x, grads, *params):
        ctx.grads = grads
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        given = tuple(ctx.grads)
        ctx.grads.clear()
        return gradient, None, *given


class GivenBlock(torch.nn.Module):
    """Some matrices that are "used" together, and what their gradients will be."""

    def __init__(self, shapes):
        super().__init__()
        self.matrices = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(shape)) for shape in shapes)
        self.grads = []

    def give(self, shapes, dtype=torch.float32):
        """Outside the clock: autograd takes these over, so there are new ones for each step."""
        self.grads[:] = [torch.empty(shape, dtype=dtype).uniform_(-2e-3, 2e-3) for shape in shapes]

    def forward(self, x):
        return GivenGradients.apply(x, self.grads, *self.matrices)


def model_of(shapes, blocks):
    each = -(-len(shapes) // blocks)
    parts = [shapes[i:i + each] for i in range(0, len(shapes), each)]
    return torch.nn.Sequential(*(GivenBlock(part) for part in parts)), parts


def step_with(model, optimizer):
    x = torch.zeros(1, requires_grad=True)

    def step():
        model(x).sum().backward()
        optimizer.step()

    return step
