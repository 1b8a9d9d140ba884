"""A transformers.Trainer whose optimizer is the servers'; --plain: with torch's. Both give the same numbers.

    cairn local --shards 2 -- $launch --nproc_per_node 2 client/examples/integrations/hf_trainer.py --out trained
"""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import cairn
from cairn.integrations.transformers import attach

parser = argparse.ArgumentParser()
parser.add_argument("--plain", action="store_true")
parser.add_argument("--stage", type=int, default=2)
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--resume", action="store_true")
parser.add_argument("--out", default="trained")
options = parser.parse_args()

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0,
                                   embd_pdrop=0.0, attn_pdrop=0.0))
rows = [{"input_ids": one, "labels": one} for one in torch.randint(0, 64, (512, 16))]
trainer = Trainer(model, TrainingArguments(
    options.out, max_steps=options.steps, per_device_train_batch_size=4, gradient_accumulation_steps=2, use_cpu=True,
    learning_rate=1e-2, weight_decay=0.1, max_grad_norm=0.5, lr_scheduler_type="cosine_with_min_lr",
    lr_scheduler_kwargs={"min_lr": 1e-3}, warmup_steps=2, eval_strategy="steps", eval_steps=4, save_steps=5,
    logging_steps=1, report_to=[], disable_tqdm=True), train_dataset=rows, eval_dataset=rows[:32])
if not options.plain:
    callback = attach(trainer, cairn.connect(), name="hf", stage=options.stage)
trainer.train(resume_from_checkpoint=options.resume)
trainer.save_model(options.out)
