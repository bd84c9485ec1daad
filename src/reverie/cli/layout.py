"""Layout of the help: panels of options and of commands, and examples."""

from __future__ import annotations

from typing import Any

PANEL_OPTIONS = 14  # commands with fewer options have no panels

TRAINING_PANELS: dict[str, tuple[str, ...]] = {
    "Data": (
        "data", "moved", "size", "fit", "channels", "labels", "data_dir", "strict", "window", "text", "pairs", "columns",
        "points", "augment",
    ),
    "Length": ("minutes", "steps", "epochs", "until", "clock", "resume", "extend"),
    "Model": (
        "families", "family", "purpose", "network", "schedule", "target", "variance", "latent_space", "codec", "tokenizer",
        "start_from", "lora",
    ),
    "Optimisation": (
        "batch", "accumulate", "optimizer", "learning_rate", "warmup", "decay", "weight_decay", "gradient_clip", "ema_share",
        "keep", "loss", "weight", "times", "beta", "free_bits", "kl_warmup",
    ),
    "Conditioning": ("condition_columns", "condition_image", "label_dropout", "clusters", "guidance"),
    "Output": ("out", "runs", "n", "quick", "overwrite", "tensorboard"),
    "Several processes": ("processes", "shard", "exact", "micro_batches"),
    "Advanced": ("config", "precision"),
}  # fmt: skip
SAMPLING_PANELS: dict[str, tuple[str, ...]] = {
    "Conditioning": ("label", "labels", "views", "prompt", "prompts", "negative_prompt", "condition", "condition_image"),
    "Guidance": (
        "guidance", "scales", "guidance_interval", "guidance_rescale", "autoguidance", "classifier_guidance",
    ),
    "Sampler": ("sampler", "steps", "grid"),
    "Text": ("temperature", "top_k", "top_p", "length", "beams"),
    "Task": ("mask", "known", "task", "degrade", "noise", "method", "strength", "begin", "end", "frames"),
    "Data": ("data", "data_dir", "features", "quick"),
    "Output": ("n", "out", "format", "measure", "licence", "overwrite"),
    "Advanced": ("adapter", "backend", "precision", "processes"),
}  # fmt: skip
COMMAND_PANELS: dict[str, tuple[str, ...]] = {
    "Train": ("train", "distil", "train-classifier"),
    "Sample": ("sample", "edit", "inpaint", "restore", "illusion", "interpolate", "invert", "studio"),
    "Evaluate": ("evaluate", "compare", "inspect", "runs", "list", "gallery"),
    "Convert": ("export", "import", "compress", "decompress", "pack"),
}

EXAMPLES: dict[str, tuple[str, str]] = {
    "train": ("train digits --out runs/digits --minutes 5", "train photos/ --out runs/photos --size 64"),
    "distil": ("distil runs/digits --out runs/fast --minutes 5", "distil runs/digits --guidance 2 --steps 2000"),
    "train-classifier": ("train-classifier runs/digits", "train-classifier runs/digits --minutes 1"),
    "sample": ("sample runs/digits -n 64 --label all --out digits.png", "sample runs/digits --sampler ddim:eta=0.5 --steps 20"),
    "edit": ("edit runs/digits seven.png --strength 0.6 --label 3", "edit runs/digits seven.png --strength 0.3,0.6,0.9"),
    "inpaint": ("inpaint runs/digits seven.png --mask left-half", "inpaint runs/spiral --known x=0.5 --out points.npy"),
    "restore": ("restore runs/digits small.png --task upscale:factor=4", "restore runs/digits a.png --task colour"),
    "illusion": ("illusion runs/digits --views identity,rotate180 --labels 6,9", "illusion runs/a --views identity,jigsaw"),
    "interpolate": ("interpolate runs/digits --from 1 --to 2", "interpolate runs/digits --from seven.png --to 3 --out a.mp4"),
    "invert": ("invert runs/digits seven.png", "invert runs/digits seven.png --steps 50 --sampler ddim"),
    "studio": ("studio", "studio runs --port 8000"),
    "evaluate": ("evaluate runs/digits --quick", "evaluate runs/a runs/b -n 2048 --out report.html"),
    "compare": (
        "compare digits --families gaussian,mixture,diffusion --minutes 5",
        "compare digits --families gaussian,diffusion --quick --out report.html",
    ),
    "inspect": ("inspect photos/ --size 64", "inspect runs/digits --out run.png"),
    "runs": ("runs", "runs experiments --json"),
    "list": ("list", "list samplers"),
    "export": ("export runs/digits --out digits.html", "export runs/digits --out digits.onnx --sampler ddim --steps 20"),
    "import": ("import digits-hub --out runs/digits", "import ddpm-cifar10 --out runs/cifar10 --name cifar10"),
    "compress": ("compress runs/digits pictures/ --out pictures.rvi", "compress runs/digits a.png --out a.rvi --steps 100"),
    "decompress": ("decompress runs/digits pictures.rvi --out pictures/", "decompress runs/digits a.rvi --out a.npy"),
    "pack": ("pack photos/ --out shards/", "pack photos.zip --out shards/ --shard-size 1GB"),
}  # fmt: skip


def lay_out(name: str, command: Any) -> None:
    """Set the panels, the order of options and the examples of a command."""
    command.rich_help_panel = next((panel for panel, names in COMMAND_PANELS.items() if name in names), None)
    if name in EXAMPLES:
        command.epilog = "Examples:\n\n" + "\n\n".join(f"reverie {example}" for example in EXAMPLES[name])
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    if len(options) < PANEL_OPTIONS:
        return
    panels = TRAINING_PANELS if any(parameter.name in ("learning_rate", "window") for parameter in options) else SAMPLING_PANELS
    panel_index = {option: index for index, (_, names) in enumerate(panels.items()) for option in names}
    titles = list(panels)
    for parameter in options:
        if parameter.name in panel_index:
            parameter.rich_help_panel = titles[panel_index[parameter.name]]
    command.params.sort(key=lambda parameter: panel_index.get(parameter.name, -1) if parameter in options else -2)
