"""The documentation holds: the site builds, nothing is left out, and its commands run."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests import cli_page
from tests.generated_pages import _setting_rows
from tests.page_commands import ROOT, commands, python_blocks, run_commands

DOCS = ROOT / "docs"
SECONDS = 230.0

EXEMPT = {
    "README.md": {
        "make demo": "tests/integration/test_demo.py",
        ".venv/bin/headrace up --dev": "tests/integration/server.py",
        "pip install '.[spark]'": "tests/integration/test_release.py",
        "make release": "tests/integration/test_release.py",
        "headrace cluster start --dev": "tests/integration/test_cluster.py",
        "headrace cluster status": "tests/integration/test_cluster.py",
    },
    "docs/tutorial.md": {"pip install '.[spark]' pytest": "tests/integration/test_release.py"},
    "docs/how-to.md": {},
}
"""Commands that are not run here, and the file that does it instead."""


def runnable(page: str) -> list[str]:
    """What is left of a page's commands; a command that is exempt and gone is an error."""
    found = commands((ROOT / page).read_text())
    plain = [re.split(r"\s+#", command)[0].strip() for command in found]
    for command, proof in EXEMPT[page].items():
        assert command in plain, f"{page} no longer has: {command}"
        assert (ROOT / proof).is_file()
    return [each for each, short in zip(found, plain, strict=True) if short not in EXEMPT[page]]


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site/tutorial/index.html").is_file()


def test_every_command_and_setting_is_documented() -> None:
    from headrace.config.settings import Settings

    page = (DOCS / "cli.md").read_text()
    for name, command in cli_page.commands():
        assert f"| `{name}`" in page, f"{name} is not on docs/cli.md; run `make docs`"
        for parameter in cli_page.parameters(command):
            assert parameter.replace("|", "\\|") in page, f"{name}: {parameter}"
    page = (DOCS / "settings.md").read_text()
    for name, default, _ in _setting_rows(Settings):
        assert f"| {name} | {default} |" in page, f"{name} is not on docs/settings.md"


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md"]
)
def test_links_outside_the_site_lead_somewhere(page: str) -> None:
    folder = (ROOT / page).parent
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / page).read_text())
    assert links
    for link in links:
        assert link.startswith("http") or (folder / link).exists(), link


def test_commands_on_other_pages_exist() -> None:
    """Of pages whose commands nobody runs, each `headrace …` is at least a command."""
    known = {name for name, _ in cli_page.commands()}
    for path in sorted(DOCS.rglob("*.md")):
        for command in commands(path.read_text()):
            for part in re.findall(r"(?:^|[|&;] *)headrace ([a-z][a-z -]*)", command):
                words = ["headrace", *part.split()]
                names = {" ".join(words[:2]), " ".join(words[:3])}
                assert names & known, f"{path.name}: {command}"


NAMED = re.compile(r"headrace ((?:--)?[a-z][a-z-]*)(?: ([a-z][a-z-]*))?([^`\"\n]*)")
AT_THE_ROOT = {"--help", "--version", "--install-completion"}


@functools.cache
def known_options() -> dict[str, set[str]]:
    """Of each command."""
    return {
        name.removeprefix("headrace "): {word for one in command.params for word in one.opts}
        for name, command in cli_page.commands()
    }


def misnamed(text: str) -> list[str]:
    """What the text calls a command, or an option of one, and is none."""
    known = known_options()
    nouns = {name.split()[0] for name in known}
    wrong = []
    for found in NAMED.finditer(text):
        first, second, rest = found[1], found[2] or "", found[3]
        quoted = text[: found.start()].endswith("`")
        if first.startswith("--"):
            fits = first in AT_THE_ROOT
        elif first not in nouns:
            fits = not quoted  # "headrace is up"
        elif first in known or not second:
            fits = not quoted or _takes(rest, known.get(first))
        else:
            name = f"{first} {second}"
            fits = name in known and (not quoted or _takes(rest, known[name]))
        if not fits:
            wrong.append(found[0])
    return wrong


def _takes(rest: str, options: set[str] | None) -> bool:
    given = set(re.findall(r"(?<= )--[a-z][a-z-]*", rest.partition("|")[0]))
    return options is None or given <= options


def test_a_command_that_is_named_anywhere_exists() -> None:
    assert misnamed("`headrace user permit`") == ["headrace user permit"]
    assert misnamed("`headrace --tls-ca x`") == ["headrace --tls-ca x"]
    assert misnamed("`headrace stream list --tls-sea x`, headrace is up") != []
    pages = [ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    pages += (ROOT / "src/headrace/web").rglob("*.js")
    for path in pages:
        assert misnamed(_without_python(path.read_text())) == [], path
    for path in (ROOT / "src").rglob("*.py"):
        quoted = re.findall(r"`headrace [^`\n]+`", path.read_text())
        assert [found for each in quoted for found in misnamed(each)] == [], path


def _without_python(text: str) -> str:
    return re.sub(r"^(from|import) .*", "", text, flags=re.M)


def test_samples_of_tables_have_the_columns_of_their_commands() -> None:
    from headrace.cli.pipeline.inspect import EVENTS
    from headrace.cli.pipeline.projects import VERDICTS

    columns = {"headrace event list": EVENTS, "headrace pipeline diff": VERDICTS}
    seen = set()
    for path in sorted(DOCS.rglob("*.md")):
        for block in re.findall(r"^```console\n(.*?)^```", path.read_text(), re.M | re.S):
            lines = block.splitlines()
            for line, shown in pairwise(lines):
                name = " ".join(line.removeprefix("$ ").split()[:3])
                if name in columns and not shown.startswith("$ "):
                    header = next(each for each in lines if each.split()[0] == columns[name][0])
                    assert tuple(header.split()) == columns[name], f"{path.name}: {header}"
                    seen.add(name)
    assert seen == set(columns)


def test_every_command_of_the_readme_runs(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    client, pipeline, _ = python_blocks(text)
    (tmp_path / "shop.py").write_text(pipeline)
    (tmp_path / "client.py").write_text(client)
    found = runnable("README.md")
    found.insert(found.index("headrace consume shop/orders") + 1, "python client.py")
    output = run_commands(found, tmp_path, seconds=SECONDS)
    assert '{"sku": "tea", "qty": 2, "price": 4.5, "at": "2026-01-01T12:00:00Z"}' in output
    assert "{'sku': 'mug', 'qty': 1}" in output
    assert '"sku":"tea","total":9}' in output, "what the pipeline computes"
    assert (tmp_path / "visits/test_pipeline.py").is_file()


def test_every_command_of_the_how_to_guides_runs(tmp_path: Path) -> None:
    _, pipeline, _ = python_blocks((ROOT / "README.md").read_text())
    (tmp_path / "shop.py").write_text(pipeline)
    order = '{"sku": "tea", "qty": 2, "price": 4.5, "at": "2026-01-02T12:00:00Z"}'
    line = {"key": "tea", "headers": {"source": "web"}, "payload": order}
    (tmp_path / "orders.jsonl").write_text(json.dumps(line) + "\n")
    output = run_commands(runnable("docs/how-to.md"), tmp_path, seconds=SECONDS)
    assert output.count("stored 1 message") == 2
