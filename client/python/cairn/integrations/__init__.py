"""Scripts that do not own their loop. Each module needs its package, and nothing else of Cairn needs any of them:

    cairn.integrations.transformers.attach(trainer, session, …)      transformers.Trainer
    cairn.integrations.lightning.CairnStrategy(…)                    lightning.Trainer(strategy=…)
    cairn.integrations.accelerate.attach(accelerator, session, …)    a loop of one's own with Accelerator

The loop keeps its torch optimizer and its scheduler: what it calls there is a `ServerOptimizer`, whose step() is
m.step(), and each step goes by the learning rates that the scheduler has set. Numbers are those of the package with
torch's optimizer.
"""

from ._optimizer import ServerOptimizer

__all__ = ["ServerOptimizer"]
