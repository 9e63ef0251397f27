"""Write the pages of reference from the program itself, and tables into the README and the pages about methods.

python scripts/reference.py write    # docs/reference/, and the blocks of README.md and docs/methods/
python scripts/reference.py check    # names the files that are not current; exit code 1 if there are any
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import typer
from scipy import stats

from unisono.cli.main import app
from unisono.config import TABLES
from unisono.core.config import Section
from unisono.core.method import Method, methods
from unisono.core.payload import Reveals
from unisono.evaluation.floors import FLOORS
from unisono.methods.local_training import LocalTraining
from unisono.studies.kept_results import read_kept
from unisono.studies.numbers import CellNumbers
from unisono.testing import TinyFederation

ROOT = Path(__file__).resolve().parents[1]
COMMANDS, OPTIONS, README = "docs/reference/commands.md", "docs/reference/options.md", "README.md"
SCOPES: Mapping[str, Any] = {
    "training": lambda method: issubclass(method, LocalTraining),
    "views": lambda method: issubclass(method, LocalTraining),
    "graph": lambda method: method.overrides("client_graph"),
    "labels": lambda method: method.needs_labels or "label_weight" in method.Config.model_fields,
}
"""Tables that methods read themselves, and which methods do; all other tables hold for every method."""
READERS_TOO = {"labels": "; of every method by the probes"}
NO_BREAK = "\N{NO-BREAK SPACE}"
LEAVES = re.compile(r"(<!-- leaves ([^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
RESULTS = ("fedmcc-table-1", "small", "MNIST", "cluster-accuracy")
"""Study, scale, setting and score of the README's table of results."""
PIXELS = "K-means on pixels"
"""The row of that study that is a floor."""
WRITTEN = (
    "<!-- Written by scripts/reference.py. Change the program's own texts, then run 'python scripts/reference.py write'. -->\n"
)


def pages() -> dict[str, str]:
    """Return all written files by path, as they ought to be."""
    found = {COMMANDS: commands_page(), OPTIONS: options_page()}
    for path in (ROOT / README, *sorted((ROOT / "docs" / "methods").glob("*.md"))):
        text = path.read_text(encoding="utf-8")
        found[str(path.relative_to(ROOT))] = filled_readme(text) if path.name == README else with_shares(text)
    return found


def commands_page() -> str:
    """Return every command with what it does, its options and an example, by task."""
    top: Any = typer.main.get_command(app)
    intro = (
        "`unisono COMMAND --help` prints the same. `unisono --install-completion` installs completion for bash or zsh.\n"
        "Exit codes: 0; 1 if a client failed or something is not as it should be; 2 if the input was wrong; 130 after Ctrl-C.\n"
    )
    text = [f"# Commands\n\n{WRITTEN}\n{intro}"]
    groups: dict[str, list[str]] = {}
    for name, command in top.commands.items():
        if not hasattr(command, "commands"):
            groups.setdefault(command.rich_help_panel, []).append(_command(f"unisono {name}", command))
        for inner, deployed in getattr(command, "commands", {}).items():
            group = f"{command.rich_help_panel}: {deployed.rich_help_panel[0].lower()}{deployed.rich_help_panel[1:]}"
            groups.setdefault(group, []).append(_command(f"unisono {name} {inner}", deployed))
    for group, described in groups.items():
        text += [f"## {group}\n", *described]
    return "\n".join(text)


def _command(path: str, command: Any) -> str:
    """Return the section of one command."""
    body, _, example = (command.help or "").partition("Example: ")
    arguments = " ".join(param.metavar for param in command.params if param.param_type_name == "argument")
    usage = " ".join(part for part in (path, "[OPTIONS]", arguments) if part)
    paragraphs = "\n\n".join(_escaped(" ".join(part.split())) for part in body.strip().split("\n\n"))
    text = f"### {path}\n\n`{usage}`\n\n{paragraphs}\n\n```sh\n{example.strip()}\n```\n"
    rows = [
        f"| `{', '.join(param.opts)}`{_value(param)} | {_escaped(param.help or '')} |"
        for param in command.params
        if param.param_type_name == "option" and param.name != "help"
    ]
    return text + ("\n| option | meaning |\n|---|---|\n" + "\n".join(rows) + "\n" if rows else "")


def _value(param: Any) -> str:
    """Return what an option takes; nothing for a flag."""
    if param.is_flag:
        return ""
    kind = param.metavar or {"text": "TEXT", "integer": "NUMBER", "float": "NUMBER"}.get(
        param.type.name, param.type.name.upper()
    )
    return f" {_escaped(kind)}"


def options_page() -> str:
    """Return every option of every table, and of every method."""
    intro = (
        "Options of recipes, of `--set table.option=value`, and of `config.toml` in every run directory.\n"
        "[Configuration](../configuration.md) explains tables, recipes and their order. `unisono config RECIPE` shows which\n"
        "value a run would have and where it comes from, also where a method has a default of its own. *unset* means that\n"
        "something else decides, as the meaning says. Where nothing else is said, an option holds for every method.\n"
    )
    text = [f"# Options\n\n{WRITTEN}\n{intro}"]
    for name, section in TABLES.items():
        scope = f"Read by {_readers(name)}{READERS_TOO.get(name, '')}.\n\n" if name in SCOPES else ""
        text.append(f"## [{name}]\n\n{scope}{_options_table(section)}")
    text.append("## [method]\n\n`method.name` is the method. A method reads the options under its name and refuses others.\n")
    for name in _built_in():
        own = _options_table(methods[name].Config)
        text.append(f"### {name}\n\n{own or 'No options of its own.' + chr(10)}")
    return "\n".join(text)


def _readers(table: str) -> str:
    """Return which methods read a table."""
    reading = [name for name in _built_in() if SCOPES[table](methods[name])]
    others = [name for name in _built_in() if name not in reading]
    return f"all methods but {', '.join(others)}" if len(others) < len(reading) else ", ".join(reading)


def _built_in() -> list[str]:
    found: Iterator[tuple[str, type[Method]]] = ((name, methods[name]) for name in methods)
    return sorted(name for name, method in found if method.__module__.startswith("unisono."))


def _options_table(section: type[Section]) -> str:
    """Return a row for each option: meaning, default, range."""
    schema = section.model_json_schema()
    known = schema.get("$defs", {})
    rows = []
    for name, field in section.model_fields.items():
        default = "required" if field.is_required() else _shown(field.get_default(call_default_factory=True))
        allowed = _range(schema["properties"][name], known)
        rows.append(f"| `{name}` | {_escaped((field.description or '').rstrip('.'))} | {default} | {allowed} |")
    return "| option | meaning | default | range |\n|---|---|---|---|\n" + "\n".join(rows) + "\n" if rows else ""


def _shown(value: Any) -> str:
    return "*unset*" if value is None else _escaped(f"`{json.dumps(value, default=str)}`")


def _range(schema: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """Return the values that an option takes, in words."""
    if "$ref" in schema:
        return _range(known[schema["$ref"].rpartition("/")[2]], known)
    if "anyOf" in schema:
        return " or ".join(_range(one, known) for one in schema["anyOf"] if one.get("type") != "null")
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "")
    if kind == "array":
        items = schema.get("prefixItems")
        if items:
            return f"{len(items)} values: {_range(items[0], known)}"
        return f"list of: {_range(schema.get('items', {}), known) or 'values'}"
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    words = {"integer": "whole number", "number": "number", "boolean": "`true`, `false`", "string": "text", "object": "table"}
    limits = ", ".join(f"{sign}{NO_BREAK}{schema[key]:g}" for key, sign in bounds.items() if key in schema)
    return " ".join(part for part in (words.get(kind, "any"), limits) if part)


def with_shares(text: str) -> str:
    """Return a page about methods with what their clients send, between marks: ``<!-- leaves byol simclr:uv_weight=1 -->``."""
    return LEAVES.sub(lambda found: found[1] + _shares_table(found[2].split()) + found[3], text)


def _shares_table(names: Sequence[str]) -> str:
    """Return a row for each method, by the declared shares."""
    rows = []
    for name in names:
        method, _, assigned = name.partition(":")
        option, _, value = assigned.partition("=")
        shares = TinyFederation(method, over={"method": {option: float(value)}} if option else None).method.shares
        averaged = [group for group, share in shares.items() if share.reveals is Reveals.PARAMETERS]
        more = [
            f"`{group}`: {share.reveals.value}" for group, share in shares.items() if share.reveals is not Reveals.PARAMETERS
        ]
        label = f"`{method}`, `{option} = {value}`" if option else f"`{method}`"
        rows.append(f"| {label} | {', '.join(f'`{group}`' for group in averaged) or '-'} | {', '.join(more) or '-'} |")
    return "| method | weights | more, and what it reveals |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def filled_readme(text: str) -> str:
    """Return the README with the tables of results between their marks."""
    return _filled(_filled(text, "results", results_table()), "speed", speed_table(ROOT / "benchmarks" / "results.json"))


def _filled(text: str, block: str, content: str) -> str:
    """Return the text with a block replaced; where there is nothing to put into it, it stays as it is."""
    if not content:
        return text
    return re.sub(rf"(<!-- {block} -->\n).*?(<!-- end -->)", lambda found: found[1] + content + found[2], text, flags=re.DOTALL)


def results_table() -> str:
    """Return floors and methods of one study in one setting: mean and 95% interval over seeds."""
    study, scale, setting, score = RESULTS
    kept = next(one for one in read_kept(ROOT / "docs" / "results") if (one.study, one.scale) == (study, scale))
    cells = [cell for cell in kept.cells.values() if cell.setting == setting and cell.variant != PIXELS]
    floors: dict[str, float] = {}
    for cell in cells:
        floors |= {name: value for name in FLOORS if (value := cell.floor(name, score)) is not None}
    rows = [f"| floor: {name} | {100 * value:.1f} |" for name, value in floors.items()]
    rows += [f"| {cell.variant} | {_interval(cell, score)} |" for cell in cells]
    seeds = len(cells[0].seeds)
    return f"| clusters of {setting}, {seeds} seeds | accuracy [%] |\n|---|---:|\n" + "\n".join(rows) + "\n"


def _interval(cell: CellNumbers, score: str) -> str:
    values = [100 * value for value in cell.by_seed(score).values()]
    half = float(stats.t.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return f"{fmean(values):.1f} ± {half:.1f}"


def speed_table(results: Path) -> str:
    """Return seconds per round and memory beside other frameworks, with the machine; empty before they were measured.

    Args:
        results: the file that ``make bench`` keeps.
    """
    parts = json.loads(results.read_text(encoding="utf-8")) if results.is_file() else {}
    found = [(part, table) for part in parts.values() for table in part["tables"] if table["title"].startswith("Frameworks: ")]
    if not found:
        return ""
    machine = ", ".join(found[0][0]["machine"].partition(";")[0].split(", ")[:2])
    heads, rows = ["a round of SimCLR"], {row[0]: [row[0]] for _, table in found for row in table["rows"]}
    for _, table in found:
        heads.append(table["title"].removeprefix("Frameworks: "))
        seconds, megabytes = (table["header"].index(name) for name in ("s per round", "peak MB"))
        values = {row[0]: f"{row[seconds]} s, {row[megabytes]} MB" for row in table["rows"]}
        rows = {name: [*row, values.get(name, "")] for name, row in rows.items()}
    marked = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in rows.values())
    link = '<a href="docs/benchmarks.md">medians</a>'
    about = f'<tr><td colspan="{len(heads)}">{machine}: {link}</td></tr>\n'
    head = f"<tr>{''.join(f'<th>{cell}</th>' for cell in heads)}</tr>\n"
    return f'<table align="right">\n{head}{marked}{about}</table>\n'


def _escaped(text: str) -> str:
    """Return plain text that Markdown shows as it is."""
    return re.sub(r"([|*_<>\[\]])", r"\\\1", text) if "`" not in text else text.replace("|", r"\|")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the commands; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("write", "check"))
    command = parser.parse_args(arguments).command
    stale = [
        name
        for name, text in pages().items()
        if not (ROOT / name).is_file() or (ROOT / name).read_text(encoding="utf-8") != text
    ]
    for name in stale:
        print(f"{name}: {'written' if command == 'write' else 'not current'}")
        if command == "write":
            (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / name).write_text(pages()[name], encoding="utf-8")
    return 1 if stale and command == "check" else 0


if __name__ == "__main__":
    sys.exit(main())
