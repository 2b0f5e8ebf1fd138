"""Hostler without its extras: everything else works, and what needs one names it in one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

HIDDEN = {
    "etcd": ("grpc", "google"),
    "redis": ("redis", "hiredis"),
    "dynamodb": ("aiobotocore", "botocore"),
    "cassandra": ("cassandra",),
    "hetzner": ("hcloud", "requests", "dateutil"),
}
HIDE = f"""
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(name for names in HIDDEN.values() for name in names)}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
"""
EVERY_MODULE = """
import importlib, pkgutil, hostler
NEEDS_ONE = ("drivers.store.etcd", "drivers.ttl.redis", "drivers.ttl.dynamodb", "drivers.ttl.cassandra",
    "drivers.inbox.redis", "drivers.redis_client", "drivers.machines.hetzner")
missing = []
for found in pkgutil.walk_packages(hostler.__path__, "hostler.", onerror=lambda name: None):
    name = found.name.removeprefix("hostler.")
    if name.startswith(("testing", "__main__")) or name.startswith(NEEDS_ONE):
        continue
    try:
        importlib.import_module(found.name)
    except ModuleNotFoundError as error:
        missing.append(f"{name} needs {error.name}")
print(missing, len(sys.modules) > 500)
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HIDE + code, *arguments], capture_output=True, text=True, check=False, timeout=120
    )


COMMANDS = [
    ("etcd", "store status --store etcd://127.0.0.1:2379"),
    ("etcd", "store status --store etcds://127.0.0.1:2379"),
    ("etcd", "replica --store etcd://127.0.0.1:2379"),
    ("redis", "replica --data {folder} --redis redis://127.0.0.1:6379/0"),
    ("redis", "leader --store redis://127.0.0.1:6379/0"),
    ("dynamodb", "leader --store dynamodb://table?region=eu"),
    ("cassandra", "leader --store cassandra://127.0.0.1/keys"),
    ("hetzner", "up --machines hetzner --data {folder}"),
]
ASK_ALL = """
import contextlib, io, json
from hostler.entry.cli import main
answers = []
for command in sys.argv[1:]:
    sys.argv = ["hostler", *command.split()]
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = main()
        except SystemExit as ended:
            code = ended.code
    answers.append((code, [line for line in said.getvalue().splitlines() if "open files" not in line]))
print(json.dumps(answers))
"""


def test_one_sentence_names_the_extra_and_the_command(tmp_path: Path) -> None:
    done = run(ASK_ALL, *(command.format(folder=tmp_path) for _, command in COMMANDS))
    assert done.returncode == 0, done.stderr
    for (extra, command), (code, said) in zip(COMMANDS, json.loads(done.stdout), strict=True):
        sentence = [f"hostler: {extra}: its client is not installed", f"  next: run: pip install 'hostler[{extra}]'"]
        assert (command, code, said) == (command, 2, sentence)


def test_everything_else_is_imported_without_them() -> None:
    done = run(EVERY_MODULE)
    assert done.stdout.strip() == "[] True", done.stderr


def test_the_core_requires_none_of_their_packages_and_all_has_every_extra() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    for needed in [line for name, lines in extras.items() if name != "all" for line in lines]:
        package = needed.partition(">")[0]
        assert not [line for line in project["dependencies"] if line.partition(">")[0] == package]
    (every,) = extras["all"]
    assert set(every.removeprefix("hostler[").removesuffix("]").split(",")) == set(extras) - {"all"} == set(HIDDEN)
