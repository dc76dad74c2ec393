"""LoRA fine-tuning with eager, sdpa and nki attention side by side: loss, time, memory and what attention ran.

    python examples/finetune.py                      # CPU, Transformers' Trainer: a small Qwen3 on the text of this project
    python examples/finetune.py --packed             # sequences of many lengths in one row, apart by their positions
    python examples/finetune.py --trl                # TRL's SFTTrainer, which packs and checkpoints (pip install trl), on CPU
    python examples/finetune.py --device neuron      # on Trainium, TorchNeuron: the same steps in a plain loop
    python examples/finetune.py --device xla         # on Trainium, torch-neuronx: lazy tensors, one graph a step
    python examples/finetune.py --dry-run            # anywhere: the commands of both worlds

The model has random weights, so that nothing is downloaded; its base is frozen but for embeddings and head. Bytes are tokens.
Written are a table, RESULT.json and, with matplotlib, the loss curves as RESULT.png.
Exit code 0: the curves of nki are those of eager within --tolerance and nothing fell back, 1: they are not, 2: wrong use.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import sys
import time
import warnings
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import numpy as np

try:
    import typer
    from rich.table import Table

    from nki_hf.tools.model_bench.device.plan import environment
    from nki_hf.tools.model_bench.options import BenchOptions
    from nki_hf.tools.output_files import check_writable, whole_file, writing
    from nki_hf.tools.program import ProgramCommand
    from nki_hf.tools.progress import working
    from nki_hf.tools.screen import Screen
except KeyboardInterrupt:
    print("interrupted.", file=sys.stderr)
    sys.exit(130)
except ModuleNotFoundError as missing:
    # The words of a clone that was never installed, or of another Python than the one it was installed in.
    print(
        f'{missing.name} is missing in {sys.executable}: pip install -e ".[hf]" in the folder of this clone.', file=sys.stderr
    )
    sys.exit(2)

ATTENTIONS = ("eager", "sdpa", "nki")
DEVICES = ("cpu", "neuron", "xla")
RANK = 8
"""Of the LoRA updates."""
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=ProgramCommand)
def main(
    steps: Annotated[int, typer.Option(help="Optimizer steps.", min=1)] = 30,
    seqlen: Annotated[int, typer.Option(help="Tokens of a row.", min=8)] = 256,
    batch_size: Annotated[int, typer.Option(help="Rows of a step.", min=1)] = 2,
    attn: Annotated[str, typer.Option(help="Any subset, with commas.")] = ",".join(ATTENTIONS),
    device: Annotated[str, typer.Option(help=f"One of {', '.join(DEVICES)}.")] = "cpu",
    packed: Annotated[bool, typer.Option("--packed", help="Pack sequences of many lengths into each row.")] = False,
    checkpointing: Annotated[bool, typer.Option("--checkpointing", help="Recompute layers in the backward pass.")] = False,
    trl: Annotated[bool, typer.Option("--trl", help="TRL's SFTTrainer with packing, if installed; on CPU.")] = False,
    tolerance: Annotated[float, typer.Option(help="Largest difference of a loss from eager's.")] = 1e-3,
    result: Annotated[Path, typer.Option("--json", help="Result file; the picture lies beside it.")] = Path(
        "out/finetune.json"
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands of a run on Trainium.")] = False,
) -> None:
    """Fine-tune with each attention and compare. Exit code 0: the same curves, 1: others or a fallback, 2: wrong use."""
    names = [name for name in attn.split(",") if name]
    if not names or set(names) - set(ATTENTIONS):
        raise ValueError(f"attn={attn!r} is not known: it is a subset of {','.join(ATTENTIONS)}.")
    if device not in DEVICES:
        raise ValueError(f"device={device!r} is not known: device is one of {', '.join(DEVICES)}.")
    if trl and (device != "cpu" or dry_run):
        raise ValueError("trl=True is not known for Trainium here: pass --packed, or run it with --device cpu.")
    if dry_run:
        for each in DEVICES[1:] if device == "cpu" else (device,):
            print(f"# world: {'native' if each == 'neuron' else 'xla'} (device {each})")
            for name, text in environment(BenchOptions(), each).items():
                print(f"export {name}={shlex.quote(text)}")
            flags = f"--device {each} --steps {steps} --seqlen {seqlen} --batch-size {batch_size} --attn {shlex.quote(attn)}"
            flags += " --packed" * packed + " --checkpointing" * checkpointing
            flags += f" --tolerance {tolerance} --json {shlex.quote(str(result))}"
            print(f"# train\npython examples/finetune.py {flags}")
        return
    for name, text in environment(BenchOptions(), device).items():
        os.environ.setdefault(name, text)
    with writing(result, "json"):
        result.parent.mkdir(parents=True, exist_ok=True)
    check_writable(result, "json")
    for module in ("torch.utils.data", "transformers.training_args"):  # names that Trainer and TRL still pass to them
        warnings.filterwarnings("ignore", module=module)
    from nki_hf.tools.model_bench.worlds import choose_device  # imports torch, after the variables

    choose_device(device)
    how = {"packed": packed, "checkpointing": checkpointing, "trl": trl}
    rows = {}
    with working("fine-tuning", len(names) * steps) as work:
        for name in names:
            work.begin(name)
            rows[name] = train(name, device, steps, seqlen, batch_size, **how, step=work.advance)
    show(rows)
    with writing(result, "json"), whole_file(result) as file:
        record = {"steps": steps, "seqlen": seqlen, "batch_size": batch_size, "device": device, "runs": rows}
        file.write(json.dumps(record, indent=1).encode())
    draw(rows, result.with_suffix(".png"))
    raise typer.Exit(verdict(rows, tolerance))


# ---- model and data ---------------------------------------------------------------------------------------------------


def small_model(attention: str) -> Any:
    """A Qwen3 of two layers with LoRA on its projections; equal weights for every attention."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    import nki_hf  # noqa: F401  (makes "nki" known to Transformers)

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=False,
        attn_implementation=attention,
        use_cache=False,
    )
    model = Qwen3ForCausalLM(config)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("embed_tokens" in name or "lm_head" in name)
    for layer in model.model.layers:
        for projection in PROJECTIONS:
            setattr(layer.self_attn, projection, lora(getattr(layer.self_attn, projection)))
    return model


def lora(linear: Any) -> Any:
    """`x W^T + x A^T B^T` with W frozen, A random and B zero."""
    import torch

    class Lora(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = linear.requires_grad_(False)
            self.down = torch.nn.Linear(linear.in_features, RANK, bias=False)
            self.up = torch.nn.Linear(RANK, linear.out_features, bias=False)
            torch.nn.init.zeros_(self.up.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            update: torch.Tensor = self.base(x) + self.up(self.down(x))
            return update

    return Lora()


def text_bytes() -> bytes:
    """The text that ships with the benchmark."""
    return resources.files("nki_hf.tools.model_bench").joinpath("alice_chapter_1.txt").read_bytes()


def data(steps: int, seqlen: int, batch_size: int, *, packed: bool) -> list[dict[str, Any]]:
    """Rows of bytes of the text; packed ones are sentences, each with positions of its own."""
    import torch

    text, rows = text_bytes(), []
    for number in range(steps * batch_size):
        start = number * seqlen % (len(text) - seqlen)
        ids = torch.tensor(list(text[start : start + seqlen]))
        row = {"input_ids": ids, "labels": ids.clone()}
        if packed:
            begins = (ids == ord(".")).roll(1)
            begins[0] = True
            places = torch.arange(seqlen)
            row["position_ids"] = places - torch.where(begins, places, 0).cummax(0).values
            row["labels"][begins] = -100  # nothing before it says what a sequence begins with
        rows.append(row)
    return rows


# ---- training ---------------------------------------------------------------------------------------------------------


def train(
    attention: str,
    device: str,
    steps: int,
    seqlen: int,
    batch_size: int,
    *,
    packed: bool,
    checkpointing: bool,
    trl: bool,
    step: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Train with one attention: the loss of each step, seconds, resident memory, and what attention ran."""
    import nki_hf

    model = small_model(attention)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    nki_hf.explain(reset=True)
    start = time.perf_counter()
    if trl:
        losses = by_trl(model, steps, seqlen, batch_size, step)
    elif device == "cpu":
        losses = by_trainer(model, data(steps, seqlen, batch_size, packed=packed), steps, batch_size, step)
    else:
        losses = by_loop(model, data(steps, seqlen, batch_size, packed=packed), batch_size, device, step)
    seconds = time.perf_counter() - start
    report = nki_hf.explain(reset=True)
    return {
        "losses": losses,
        "seconds": seconds,
        "calls": report.calls,
        "gradients": report.gradients,
        "fallbacks": report.fallbacks,
        "reasons": report.reasons(),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def by_trainer(model: Any, rows: list[dict[str, Any]], steps: int, batch_size: int, step: Callable[[], None]) -> list[float]:
    """Transformers' Trainer, on CPU."""
    import tempfile

    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(**settings(folder, steps, batch_size))
        return losses_of(Trainer(model=model, args=arguments, train_dataset=rows), step)


def by_trl(model: Any, steps: int, seqlen: int, batch_size: int, step: Callable[[], None]) -> list[float]:
    """TRL's SFTTrainer: the sentences of the text, packed into rows of `seqlen` and flattened into one."""
    import tempfile

    try:
        from datasets import Dataset, disable_progress_bars
        from trl import SFTConfig, SFTTrainer
    except ModuleNotFoundError as missing:
        raise ValueError(f"trl=True needs TRL, and {missing.name} is missing: pip install trl.") from None
    disable_progress_bars()
    sentences = [list(sentence + b".") for sentence in text_bytes().split(b".") if sentence]
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(**settings(folder, steps, batch_size), packing=True, max_length=seqlen, bf16=False)
        rows = Dataset.from_dict({"input_ids": sentences})
        trainer = SFTTrainer(model=model, args=arguments, train_dataset=rows, processing_class=tokenizer_of_bytes())
        return losses_of(trainer, step)


def settings(folder: str, steps: int, batch_size: int) -> dict[str, Any]:
    """What both trainers are told."""
    return {
        "output_dir": folder,
        "max_steps": steps,
        "per_device_train_batch_size": batch_size,
        "learning_rate": 3e-3,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 0,
        "dataloader_pin_memory": False,
        "lr_scheduler_type": "constant",
    }


def losses_of(trainer: Any, step: Callable[[], None]) -> list[float]:
    """The loss of each step; `step` is told of its end."""
    from transformers.trainer_callback import PrinterCallback, TrainerCallback

    class Told(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            step()

    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Told())
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def tokenizer_of_bytes() -> Any:
    """A token per byte; byte 0, which the text has not, ends and pads."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokens = {chr(256 + byte): byte for byte in range(256)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE(vocab=tokens, merges=[])), pad_token=chr(256), eos_token=chr(256)
    )


def by_loop(model: Any, rows: list[dict[str, Any]], batch_size: int, device: str, step: Callable[[], None]) -> list[float]:
    """The steps themselves, on a Neuron device: forward, backward and update are one graph a step in the xla world."""
    import torch

    place, sync = torch.device(device), lambda: None
    if device == "xla":
        import torch_xla

        place, sync = torch_xla.device(), torch_xla.sync
    model = model.to(place).train()
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=3e-3, foreach=False)
    losses = []
    for start in range(0, len(rows), batch_size):
        batch = {name: torch.stack([row[name] for row in rows[start : start + batch_size]]).to(place) for name in rows[0]}
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        sync()
        losses.append(loss.detach().cpu().item())
        step()
    return losses


# ---- results ----------------------------------------------------------------------------------------------------------


def show(rows: dict[str, dict[str, Any]]) -> None:
    """The table."""
    table = Table(title="LoRA fine-tuning", caption="On a CPU the time of nki is that of the simulator, not of a chip.")
    for name in ("attention", "first", "last loss", "off eager", "seconds", "MiB", "calls", "gradients", "fell back"):
        table.add_column(name, justify="left" if name == "attention" else "right", no_wrap=True)
    for name, row in rows.items():
        table.add_row(
            name,
            f"{row['losses'][0]:.4f}",
            f"{row['losses'][-1]:.4f}",
            f"{difference(rows, name):.1e}",
            f"{row['seconds']:.1f}",
            f"{row['peak_mib']:.0f}",
            str(row["calls"]),
            str(row["gradients"]),
            str(row["fallbacks"]),
        )
    Screen().show(table)


def difference(rows: dict[str, dict[str, Any]], name: str) -> float:
    """The largest difference of a loss from eager's; NaN without eager."""
    if "eager" not in rows:
        return float("nan")
    return float(np.abs(np.subtract(rows[name]["losses"], rows["eager"]["losses"])).max(initial=0.0))


def verdict(rows: dict[str, dict[str, Any]], tolerance: float) -> int:
    """The exit code."""
    if "nki" not in rows:
        return 0
    row, far = rows["nki"], difference(rows, "nki")
    counted = f"{row['fallbacks']} calls fell back, {row['gradients']} gradients came from a kernel"
    if "eager" not in rows:
        print(f"NOT COMPARED: nki ran without eager, so that nothing says whether its losses are right; {counted}")
        wrong = bool(row["fallbacks"]) or not row["gradients"]
    else:
        # Not `far > tolerance`: losses that are NaN are not within it.
        wrong = not far <= tolerance or bool(row["fallbacks"]) or not row["gradients"]
        print(f"{'FAIL' if wrong else 'PASS'}: nki's losses are {far:.1e} from eager's at most; {counted}")
    for reason, count in row["reasons"].items():
        print(f"  {count} x {reason}")
    return int(wrong)


def draw(rows: dict[str, dict[str, Any]], path: Path) -> None:
    """The loss curves, if matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        print('No picture: pip install "nki_hf[plot]" for matplotlib.')
        return
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="loss")
    for (name, row), style in zip(rows.items(), ("-", "--", ":"), strict=False):
        axes.plot(row["losses"], style, label=name)
    axes.legend()
    figure.savefig(path, dpi=120)
    print(f"Loss curves: {path}")


if __name__ == "__main__":
    app()
