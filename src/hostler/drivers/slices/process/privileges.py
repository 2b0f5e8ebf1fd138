"""The user that a slice's process runs as, and its limits.

As with guests (`hostler.drivers.privileges`): where the agent may change users, each process has a separate user. Its
code must then be readable for other users. If the agent's Python is not, the system's Python of the same version runs
it; if that is not possible either, the process runs as the agent's user, without capabilities, and this is reported.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import resource
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hostler.drivers.privileges import Privileges, pick_uid
from hostler.drivers.slices.process.process import children_of
from hostler.errors import Refused
from hostler.kit.processes import cgroup_bases, end_process, environment, has_capabilities
from hostler.ports.worker_protocol import Confinement

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from hostler.kit.processes import CgroupBase
    from hostler.model.deployment import SliceSettings

PROBE_WITHIN = 20.0
_IS_CONFINED = "confined"
PERIOD = 100_000
"""Period in microseconds over which a share of the processors is counted."""
_PATHS = "import sys; sys.path += [p for p in sys.argv[1].split(':') if p not in sys.path];"
_CONFINED = " from hostler.slices.confinement import enter; enter(sys.argv[3]);"
_MAIN = " from hostler.slices.worker import main; main()"
WORKER = _PATHS + _MAIN
CONFINED_WORKER = _PATHS + _CONFINED + _MAIN
_CONFINED_PROBE = _PATHS + _CONFINED + f" print({_IS_CONFINED!r})"
_NAMESPACES = ("--mount", "--pid", "--ipc", "--fork", "--kill-child=KILL")
_FIRST = 'exec 2>/dev/null; "$@" 2>&1; exit $?'
"""The first process of the namespaces.

It reaps children, and ends silently with 128 + the signal that ended the worker.

It keeps its privileges. The worker has none and cannot get at them: the first process ignores the worker's signals.
"""
_OWN_NAMESPACE = ("--user", "--map-current-user", "--keep-caps")
_TAG = sys.implementation.cache_tag
_PROBE = WORKER.replace("main()", "print(sys.implementation.cache_tag, sys.version, sys.prefix, sys.base_prefix)")
"""Python silently uses the files of another Python if it cannot read its own: the output shows which one runs."""
_SYSTEM = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
_NO_CAPABILITIES = ("--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all")
_SETPCAP = 8
_GROUP = "hostler-slice-"
_OPTIONAL = ("memory.swap.max", "memory.memsw.limit_in_bytes")
"""Files that do not exist if the kernel does not account swap."""
_LET_IN = (
    f"install {_SYSTEM} if it is missing, and let other users read Hostler (o+rx on every folder from / down to it);"
    " or let them run its own Python, too"
)
_BE_ROOT = "run the agent as root, with permission to change users, where these are mapped"
_UNCONFINED = (
    "it would run as the agent does, and could read its data folder, including the administrator's token:"
    " user namespaces cannot be created here"
)
_CONFINE = (
    "run the agent as root, or allow namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone,"
    " kernel.apparmor_restrict_unprivileged_userns; containers mostly forbid them),"
    ' or set slice_users = "owner" if you trust every slice like the agent'
)
_AS_OWNER = "it runs as the agent does, and can read its data folder"
_SEES_ALL = "it sees other processes: namespaces cannot be created here"
_answers: dict[tuple[str, ...], bytes | None] = {}
_log = logging.getLogger("hostler.agent")


class Allowed(msgspec.Struct, frozen=True, kw_only=True):
    """The privileges and limits of one process."""

    argv: tuple[str, ...]
    """The command. For a confined process without its confinement, which is the last argument."""
    confinement: Confinement | None = None
    """Without the folders of the instance."""
    uid: int | None = None
    groups: tuple[str, ...] = ()
    """Control groups that the process is put into."""
    memory_mib: int | None = None
    """The memory limit of its control group."""
    about: tuple[str, ...] = ()
    """Its limits, and what could not be enforced, for people."""


class Allowing:
    """Decides the privileges of the slices of one node.

    `uids`: the users they may have; None: they run as the agent's user, unless separate users are `required`. `owner`:
    they may run as the agent's user even where nothing protects its files, including `hidden`. `disk_mib`: the maximum
    size of one of their files.
    """

    def __init__(
        self,
        place: str,
        python: str,
        uids: range | None,
        *,
        required: bool = False,
        owner: bool = False,
        hidden: Path | None = None,
        disk_mib: int | None = None,
    ) -> None:
        self._place, self._uids, self._required = place, uids, required
        self._owner, self._hidden, self._disk_mib = owner, hidden, disk_mib
        self._is_confined = False
        self._python: tuple[str, ...] = (python, "-I")
        self._drop: tuple[str, ...] = ()
        self._bases: tuple[CgroupBase, ...] | None = None
        self._can_wrap = shutil.which("prlimit") is not None and shutil.which("setpriv") is not None
        self._why_not = ""
        self.advice = _BE_ROOT if uids is None else _LET_IN
        """What to do so that slices have separate users."""
        self._is_probed = False
        self._turn = asyncio.Lock()
        self._paths = ":".join(dict.fromkeys(_parent(name) for name in ("hostler", "msgspec")))

    async def allow(self, run_id: str, settings: SliceSettings, taken: Container[int | None]) -> Allowed:
        """Return the privileges of an instance.

        Unavailable: no user is free. Refused: it needs one, and cannot have it.
        """
        why_not = await self.why_not()
        if self._required and self._uids is None:
            why = why_not.partition(": ")[2] or "the agent is not root"
            raise Refused(f"{run_id}: needs a separate user, but {why}; {self.advice}, or set slice_users to auto")
        if self._uids is None and os.geteuid() != 0 and not self._is_confined and not self._owner:
            raise Refused(f"{run_id}: {_UNCONFINED}; {_CONFINE}")
        return await asyncio.to_thread(self._allow, run_id, settings, taken)

    async def why_not_confined(self) -> tuple[str, str]:
        """Return why slices of the agent's user could read its files, and what to do; empty: they could not."""
        await self.why_not()
        return ("", "") if self._is_confined or os.geteuid() == 0 else (_UNCONFINED, _CONFINE)

    async def why_not(self) -> str:
        """Return why slices have no separate users although the agent is root; empty: they have, or it is not root."""
        async with self._turn:
            if not self._is_probed:
                await self._probe()
                self._bases = await asyncio.to_thread(_usable)
                self._is_probed = True
                if self._why_not and not self._required:
                    _log.warning("slices: %s; %s", self._why_not.replace("it runs", "they run", 1), self.advice)
        return self._why_not

    def enter(self, allowed: Allowed, pid: int) -> str:
        """Put the process, which must not have started, into its control groups; return its limits, for people."""
        why = ""
        for group in allowed.groups:
            try:
                todo = [pid]
                for one in todo:  # the process itself first: its later children are then in the group as well
                    (Path(group) / "cgroup.procs").write_text(str(one), encoding="ascii")
                    todo += children_of(one)
            except OSError as error:
                why = f"{group} rejected it: {error.strerror}"
        return "; ".join(_instead(said, allowed, pid, why) if why else said for said in allowed.about)

    def _allow(self, run_id: str, settings: SliceSettings, taken: Container[int | None]) -> Allowed:
        uid = None
        if self._uids is not None:
            uid = pick_uid(f"{self._place}/{run_id}", 0, self._uids, taken=taken)
        groups, held = self._groups(run_id, settings)
        about = [self._why_not] if self._why_not else []
        if not self._is_confined:
            about += [_AS_OWNER] if self._uids is None and not self._why_not else []
            about += [_SEES_ALL] if uid is not None else []
        code = CONFINED_WORKER if self._is_confined else WORKER
        argv = self._wrap([*self._python, "-u", "-c", code, self._paths, run_id], uid)
        if self._disk_mib is not None and self._can_wrap:
            argv[1:1] = [f"--fsize={self._disk_mib * 2**20}"]
        memory = settings.memory_mib
        if memory is not None:
            if "memory" in held:
                about.append(f"memory: {memory} MiB{_BY_GROUP}")
            elif self._can_wrap:
                argv[1:1] = [f"--data={memory * 2**20}"]
                about.append(_by_prlimit(memory))
            else:
                about.append("memory: cannot be limited here")
        if settings.cpus is not None:
            about.append(f"cpus: {settings.cpus:g}{_BY_GROUP}" if "cpu" in held else "cpus: cannot be limited here")
        return Allowed(
            argv=tuple(argv),
            confinement=self._confinement(uid) if self._is_confined else None,
            uid=uid,
            groups=groups,
            memory_mib=memory if "memory" in held else None,
            about=tuple(about),
        )

    def _wrap(self, argv: Sequence[str], uid: int | None) -> list[str]:
        if not self._can_wrap:
            return list(argv)
        found = Privileges(uid=uid).wrap(argv)
        if self._is_confined:
            return _in_namespaces(found, argv, own=uid is None)
        if uid is None and self._drop:
            at = found.index("--no-new-privs") + 1
            found[at:at] = self._drop
        return found

    def _confinement(self, uid: int | None) -> Confinement:
        folders = (*self._paths.split(":"), sys.prefix, sys.base_prefix, str(Path(self._python[0]).parent))
        return Confinement(
            own_root=uid is None,
            readable=tuple(dict.fromkeys(folders)),
            hidden="" if self._hidden is None else str(self._hidden.absolute()),
            uid=uid,
        )

    async def _can_confine(self) -> bool:
        """Return whether the required namespaces can be created here."""
        if not self._can_wrap or shutil.which("unshare") is None:
            return False
        uid = None if self._uids is None else self._uids[-1]
        plan = msgspec.json.encode(self._confinement(uid)).decode()
        argv = [*self._python, "-c", _CONFINED_PROBE, self._paths, "-", plan]
        wrapped = _in_namespaces(Privileges(uid=uid).wrap(argv), argv, own=uid is None)
        return (await _output_of(wrapped) or b"").decode().strip() == _IS_CONFINED

    def _groups(self, run_id: str, settings: SliceSettings) -> tuple[tuple[str, ...], set[str]]:
        name = f"{_GROUP}{hashlib.sha256(f'{self._place}/{run_id}'.encode()).hexdigest()[:16]}"
        made: list[str] = []
        held: set[str] = set()
        for base in self._bases or ():
            wanted = limits_of(base, settings)
            group = Path(base.path) / name
            if not wanted:
                continue
            try:
                group.mkdir(exist_ok=True)
                for file, value in wanted.items():
                    with suppress(*((OSError,) if file in _OPTIONAL else ())):
                        (group / file).write_text(value, encoding="ascii")
            except OSError:
                release((str(group),))
                continue
            made.append(str(group))
            held.update(name for name in ("memory", "cpu") if any(file.startswith(name) for file in wanted))
        return tuple(made), held

    async def _probe(self) -> None:
        """Find a Python that separate users can run; if there is none, how to run slices as the agent's user."""
        if self._uids is None and os.geteuid() != 0:
            self._is_confined = await self._can_confine()
            return
        probe = ("-c", _PROBE, self._paths)
        ours = await _output_of([*self._python, *probe])
        why = "prlimit and setpriv are not installed"
        if self._uids is None:
            why = "users cannot be changed here"
        elif self._can_wrap:
            # Without `site`, so that no package of the system precedes Hostler's.
            for python in dict.fromkeys((self._python, (_SYSTEM, "-I", "-S"))):
                theirs = await _output_of(Privileges(uid=self._uids[-1]).wrap([*python, *probe]))
                is_same = theirs == ours if python is self._python else f"{_TAG} ".encode() in (theirs or b"")[:20]
                if theirs is not None and is_same:
                    self._python = python
                    self._is_confined = await self._can_confine()
                    return
            why = f"other users can run neither {self._python[0]} nor {_SYSTEM} with what Hostler needs"
        self._uids = None
        if self._can_wrap and has_capabilities(_SETPCAP):
            self._drop = _NO_CAPABILITIES
            if ours is None or await _output_of(self._wrap([*self._python, *probe], None)) != ours:
                self._drop = ()
        how = "without capabilities" if self._drop else "with all of its capabilities"
        self._why_not = f"it runs as the agent does, {how}: {why}"


def _in_namespaces(wrapped: Sequence[str], argv: Sequence[str], *, own: bool) -> list[str]:
    """Return the command in namespaces: in a new user namespace, or created by root, which drops privileges inside."""
    at = wrapped.index("setpriv")
    unshare = ("setpriv", "--no-new-privs", "--", "unshare", *_OWN_NAMESPACE) if own else ("unshare",)
    return [*wrapped[:at], *unshare, *_NAMESPACES, "--", "sh", "-c", _FIRST, "sh", *argv]


async def _output_of(argv: Sequence[str]) -> bytes | None:
    """Return the output of a program; None: it failed. It is run once, however many nodes this process has."""
    command = tuple(argv)
    if command not in _answers:
        _answers[command] = await _run_program(command)
    return _answers[command]


async def _run_program(argv: Sequence[str]) -> bytes | None:
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd="/",
            env=environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return None
    said = b""
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(PROBE_WITHIN):
                said, _ = await process.communicate()
    finally:
        await end_process(process)
    return said if process.returncode == 0 else None


_BY_GROUP = " by a control group"


def _by_prlimit(memory_mib: int) -> str:
    return f"memory: {memory_mib} MiB by prlimit, for each of its processes"


def _instead(said: str, allowed: Allowed, pid: int, why: str) -> str:
    """Return the limit that applies if a control group rejected the process."""
    if not said.endswith(_BY_GROUP):
        return said
    what, memory = said.partition(":")[0], allowed.memory_mib
    if what == "memory" and memory is not None:
        with suppress(OSError, ValueError):
            resource.prlimit(pid, resource.RLIMIT_DATA, (memory * 2**20, memory * 2**20))
            return _by_prlimit(memory)
    return f"{what}: cannot be limited here: {why}"


def limits_of(base: CgroupBase, settings: SliceSettings) -> dict[str, str]:
    """Return the files and values of a control group."""
    found: dict[str, str] = {}
    second = base.version == 2
    if settings.memory_mib is not None and "memory" in base.controllers:
        most = str(settings.memory_mib * 2**20)
        found |= (
            {"memory.max": most, "memory.swap.max": "0"}
            if second
            else {"memory.limit_in_bytes": most, "memory.memsw.limit_in_bytes": most}
        )
    if settings.cpus is not None and "cpu" in base.controllers:
        quota = max(1000, int(settings.cpus * PERIOD))
        found |= (
            {"cpu.max": f"{quota} {PERIOD}"}
            if second
            else {
                "cpu.cfs_period_us": str(PERIOD),
                "cpu.cfs_quota_us": str(quota),
            }
        )
    return found


def release(groups: Sequence[str]) -> None:
    """Delete control groups whose process has ended."""
    for group in groups:
        if Path(group).name.startswith(_GROUP):
            with suppress(OSError):
                Path(group).rmdir()


def _usable() -> tuple[CgroupBase, ...]:
    found = []
    for base in cgroup_bases(Path("/proc"), Path("/")):
        trial = Path(base.path) / f"{_GROUP}trial-{os.getpid()}"
        with suppress(OSError):
            trial.mkdir()
            trial.rmdir()
            found.append(base)
    return tuple(found)


def _parent(package: str) -> str:
    """Return the folder that a package is imported from."""
    file = sys.modules[package].__file__
    return str(Path(file or ".").absolute().parent.parent)
