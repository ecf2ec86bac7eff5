"""Do two versions compute the same, to the last bit? Run on one machine, side by side.

    python tools/same_outputs.py v0.3.0                      everything, this checkout against that commit
    python tools/same_outputs.py HEAD~20 mechanisms text     two parts of it

Parts: `mechanisms` (outputs and all gradients of every mechanism under every choice of options that the contract's
tests know), `stacks` (whole models on every stack: outputs, gradients, tokens that they write), `heads`, `checkpoints`
(model folders that the earlier version wrote, without the version that later ones write into them), `recipes` (each as
it is resolved), `text` (what summarize and answer print for ten documents of LONGSPAN_DATA).

What is compared is made by the earlier version's tests: names, options and configurations. Both versions run it, each
in a process of its own, and write a digest for each case. The exit code is 1 where any two differ.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from source_paths import source_paths

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("mechanisms", "stacks", "heads", "checkpoints", "recipes", "text")
Digests = Iterator[tuple[str, str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="the earlier commit, or a folder that holds its checkout")
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; without, all of them")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: no such part; there are {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as folder, checkout(options.base, Path(folder) / "base") as base:
        cases = Path(folder) / "cases"
        cases.mkdir()
        call(base, "cases", str(cases))
        differ = [part for part in options.parts or PARTS if not same(part, base, cases)]
    sys.exit(f"not the same: {', '.join(differ)}" if differ else None)


@contextlib.contextmanager
def checkout(base: str, where: Path) -> Iterator[Path]:
    if Path(base, "src").is_dir() or Path(base, "packages").is_dir():
        yield Path(base).resolve()
        return
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--detach", "--quiet", str(where), base], check=True)
    try:
        yield where
    finally:
        subprocess.run([*git, "remove", "--force", str(where)], check=True)


def call(tree: Path, *arguments: str) -> str:
    """Runs this file with the package of one tree; what it prints."""
    sources = [tree / "src"] if (tree / "src").is_dir() else source_paths(tree)
    tests = tree / "packages/longspan/tests"
    paths = os.pathsep.join(map(str, (*sources, tests if tests.is_dir() else tree / "tests", tree / "tests/shared")))
    environment = os.environ | {
        "PYTHONPATH": paths,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "LONGSPAN_TREE": str(tree),
    }
    done = subprocess.run(
        [sys.executable, __file__, "--child", *arguments], env=environment, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(f"{tree}: {' '.join(arguments)} ended with {done.returncode}; its message stands above")
    return done.stdout


def same(part: str, base: Path, cases: Path) -> bool:
    """Whether both trees give the same digests, with a line for each case that differs."""
    before, now = (
        dict(line.rsplit("\t", 1) for line in call(tree, part, str(cases)).splitlines()) for tree in (base, ROOT)
    )
    differ = [case for case in before if now.get(case) != before[case]]
    for case in differ:
        print(f"  {part}: {case}: {'differs' if case in now else 'is missing'}")
    print(f"{part}: {len(before) - len(differ)} of {len(before)} cases are the same", flush=True)
    return not differ and bool(before)


# What one tree does, in a process of its own.


def write_cases(folder: Path) -> None:
    """The earlier version's choice of mechanisms, models and heads, and model folders that it writes."""
    import torch

    import longspan.models
    from contract import test_heads, test_stacked_models
    from contract.forms import FORMS
    from longspan.models import LongspanConfig, LongspanModel

    def config_of(model: Any) -> dict[str, Any]:
        return json.loads(model.config.to_json_string(use_diff=False))

    stacked = test_stacked_models
    names = [(name, None) for name in stacked.filled(stacked.STACKS)]
    names += list(stacked.every_writer.args[1])
    models = {}
    for name, kind in names:
        model = stacked.build(name, kind)
        models[f"{name} {type(model).__name__}"] = {"kind": type(model).__name__, "config": config_of(model)}
    sizes = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 40, "max_position_embeddings": 97}
    mechanisms = {}
    for form in FORMS:
        spec = LongspanConfig(attention=form.config, **sizes).to_dict()["attention"]
        mechanisms[form.name] = {"spec": spec, "causal": form.causal}
    heads = {}
    for spec in test_heads.CASES:
        name = spec["head"]
        given = {"input_ids": test_heads.IDS, "attention_mask": test_heads.MASK}
        given |= test_heads.INPUTS.get(name, {}) | test_heads.LABELS.get(name, {})
        if name == "multiple_choice":  # two questions of two choices
            given |= {key: given[key].expand(2, 2, -1) for key in ("input_ids", "attention_mask")}
        inputs = {key: value.tolist() for key, value in given.items()}
        label = " ".join(map(str, [name, *list(spec)[1:]]))
        heads[label] = {"head": name, "config": config_of(test_heads.make(spec)), "inputs": inputs}
    (folder / "cases.json").write_text(json.dumps({"mechanisms": mechanisms, "stacks": models, "heads": heads}))
    for number, (name, case) in enumerate((*mechanisms.items(), *models.items())):
        torch.manual_seed(number)
        if "spec" in case:
            kind = longspan.models.LongspanForCausalLM if case["causal"] else LongspanModel
            model = kind(LongspanConfig(attention=case["spec"], **sizes))
        else:
            model = getattr(longspan.models, case["kind"])(LongspanConfig.from_dict(case["config"]))
        where = folder / "models" / f"{number}"
        model.save_pretrained(where)
        (where / "name.txt").write_text(f"{type(model).__name__}\n{name}")


def digest(*values: Any) -> str:
    """Of tensors, to the last bit, and of what holds them."""
    import torch

    state = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            value = value.detach().contiguous()
            state.update(f"{value.dtype}{tuple(value.shape)}".encode())
            state.update(value.view(torch.uint8).numpy().tobytes() if value.numel() and value.dim() else b"")
            state.update(repr(value.item()).encode() if not value.dim() else b"")
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                state.update(f"{key}:".encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            for each in value:
                add(each)
        else:
            state.update(repr(value).encode())

    add(list(values))
    return state.hexdigest()[:16]


def gradients(module: Any) -> dict[str, Any]:
    return {name: each.grad for name, each in module.named_parameters() if each.grad is not None}


def fill(module: Any) -> Any:
    """Every weight random, by its place in the order of names."""
    import torch

    for _, parameter in sorted(module.named_parameters()):
        size = parameter.shape[-1] if parameter.dim() else 1
        torch.nn.init.normal_(parameter, std=0.5 * min(1.0, (8 / max(1, size)) ** 0.5))
    return module


def mechanisms(cases: dict[str, Any], _: Path) -> Digests:
    import torch

    from longspan.attention import Tokens
    from longspan.models import LongspanConfig

    for name, case in cases["mechanisms"].items():
        config = LongspanConfig(attention=case["spec"], max_position_embeddings=97).layer_attention(0)
        for length in (1, 29, 131):
            for padded, marked in ((False, False), (True, False), (True, True)):
                refuses = getattr(config, "exempt", None) or getattr(config, "support", {})
                if marked and (case["causal"] or isinstance(refuses.get("globals"), str)):
                    continue
                torch.manual_seed(length)
                module = fill(config.build(width=6, heads=2, causal=case["causal"]))
                mask, is_global = torch.ones(2, length, dtype=torch.bool), torch.zeros(2, length, dtype=torch.bool)
                mask[1, length - length // 3 :] = False
                is_global[:, :1] = True
                tokens = Tokens(mask=mask if padded else None, is_global=is_global if marked else None)
                hidden = torch.randn(2, length, 6, requires_grad=True)
                with torch.no_grad():
                    plain = module.eval()(hidden, tokens)
                output = module.train()(hidden, tokens)
                output.square().sum().backward()
                made = digest(plain, output, hidden.grad, gradients(module))
                yield f"{name} {length}{' padded' * padded}{' global' * marked}", made


def stacks(cases: dict[str, Any], _: Path) -> Digests:
    import torch

    import longspan.models
    from longspan.models import LongspanConfig

    for name, case in cases["stacks"].items():
        torch.manual_seed(7)
        model = getattr(longspan.models, case["kind"])(LongspanConfig.from_dict(case["config"]))
        start = digest(model.state_dict())
        fill(model)
        ids, mask = torch.randint(3, 61, (2, 31)), torch.ones(2, 31, dtype=torch.long)
        ids[:, 4] = 2
        mask[1, 17:] = 0
        given = {"decoder_input_ids": ids[:, :9]} if "Conditional" in case["kind"] else {}
        with torch.no_grad():
            plain = model.eval()(ids, mask, output_hidden_states=True, **given)
        trained = model.train()(ids, mask, **given)
        trained[0].square().mean().backward()
        written = []
        if hasattr(model, "generate") and model.can_generate():
            options = {"max_new_tokens": 7, "min_new_tokens": 7, "do_sample": False}
            written = [model.eval().generate(ids, attention_mask=mask, num_beams=beams, **options) for beams in (1, 2)]
        hidden = plain.get("hidden_states") or plain.get("decoder_hidden_states")
        yield name, digest(start, plain[0], hidden, trained[0], gradients(model), written)


def heads(cases: dict[str, Any], _: Path) -> Digests:
    import torch

    from longspan.models import LongspanConfig, model_with

    for name, case in cases["heads"].items():
        inputs = {key: torch.tensor(value) for key, value in case["inputs"].items()}
        torch.manual_seed(7)
        model = fill(model_with(case["head"])(LongspanConfig.from_dict(case["config"]))).train()
        torch.manual_seed(8)
        output = model(**inputs)
        if output.get("loss") is not None:
            output["loss"].backward()
        values = {key: value for key, value in output.items() if isinstance(value, torch.Tensor)}
        yield name, digest(sorted(model.state_dict()), values, gradients(model))


def checkpoints(_: dict[str, Any], folder: Path) -> Digests:
    import torch

    import longspan.models

    for where in sorted((folder / "models").iterdir(), key=lambda path: int(path.name)):
        kind, name = (where / "name.txt").read_text().split("\n")
        model = getattr(longspan.models, kind).from_pretrained(where)
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()  # memory of its own: where a file ends, sums may round otherwise
        torch.manual_seed(7)
        ids = torch.randint(3, 61, (2, 31))
        given = {"decoder_input_ids": ids[:, :9]} if "Conditional" in kind else {}
        with torch.no_grad():
            output = model.eval()(ids, **given)[0]
        yield f"{name} {kind}", digest(model.state_dict(), output)


def recipes(_: dict[str, Any], __: Path) -> Digests:
    import yaml

    from longspan.cli import main as run

    tree = Path(os.environ["LONGSPAN_TREE"])
    for path in sorted(tree.rglob("recipes/*/*.yaml"), key=lambda path: (path.parent.name, path.name)):
        for show in ([], ["--show"]):  # as later versions have it, and as earlier ones had
            text = io.StringIO()
            with contextlib.redirect_stdout(text), contextlib.redirect_stderr(io.StringIO()):
                code = run(["recipes", *show, path.stem])
            if not code:
                break
        if code:
            sys.exit(f"{path.stem}: `longspan recipes` ended with {code}")
        data = json.dumps(yaml.safe_load(text.getvalue()), sort_keys=True)
        data = re.sub(r"recipes/([\w-]+)\.yaml", r"the recipe \1", data)  # as texts named recipes and tools before
        yield path.stem, digest(re.sub(r"recipes/(\w+)\.py", r"tools/bundled/\1.py", data))


def text(_: dict[str, Any], folder: Path) -> Digests:
    from longspan.cli import main as run

    data = os.environ.get("LONGSPAN_DATA")
    if not data:
        sys.exit("text: set LONGSPAN_DATA to the folder of real documents")
    for number in range(10):
        source = Path(data, ("squality", "pubmed")[number % 2], "validation.jsonl.gz")
        with gzip.open(source, "rt", encoding="utf-8") as lines:
            row = json.loads(next(itertools.islice(lines, number // 2, None)))
        document = folder / f"{number}.txt"
        document.write_text(row["document"] if number % 2 == 0 else "\n".join(row["article_text"]), encoding="utf-8")
        verbs = {
            "summary": ["summarize", str(document)],
            "summary in JSON": ["summarize", str(document), "--json"],
            "summary of 120 words": ["summarize", str(document), "--words", "120"],
            "summary for a question": ["summarize", str(document), "--query", "What was measured, and why?"],
            "answer": ["answer", str(document), "What was the main result?", "--json"],
        }
        for verb, arguments in verbs.items():
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
                code = run(arguments)
            timeless = re.sub(r'"seconds": [\d.e-]+|in [\d.]+ s\b', "", printed.getvalue())
            yield f"{verb} of document {number}", digest(code, timeless)


def child(part: str, folder: Path) -> None:
    if part == "cases":
        with contextlib.redirect_stdout(sys.stderr):
            write_cases(folder)
        return
    import torch

    torch.set_num_threads(1)
    cases = json.loads((folder / "cases.json").read_text())
    printing = sys.stdout
    for case, made in globals()[part](cases, folder):
        print(f"{case}\t{made}", file=printing, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
