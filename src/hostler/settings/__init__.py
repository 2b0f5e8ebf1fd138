"""Settings: defaults < `hostler.toml` < environment < flags. Every value records its origin.

An unknown name is an error in the file, in the environment (`HOSTLER_…`) and among the flags, so that a typing error
never silently means a default. Variables `PLASMAVMC_…` that are not close to one of the four known names belong to
other programs: they are listed in `Settings.ignored` and change nothing.

This package does not open what the settings name.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import quote, urlsplit

import msgspec

from hostler.errors import Invalid, NotFound
from hostler.settings.driver import MACHINES, all_options, driver_options, installed
from hostler.settings.option import DEFAULT_STATE_PATH, STORAGE_OPTIONS, Option, is_truth
from hostler.settings.toml import parse_toml
from hostler.settings.value import is_plain_redis

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Layer: TypeAlias = Literal["default", "file", "environment", "flag"]
_LAYERS: tuple[Layer, ...] = ("default", "file", "environment", "flag")

FILE_NAME = "hostler.toml"
CONFIG_VARIABLE = "HOSTLER_CONFIG"
FOREIGN_VARIABLES = frozenset(
    {
        *(CONFIG_VARIABLE, "HOSTLER_SERVER", "HOSTLER_TOKEN", "HOSTLER_TOKEN_FILE", "HOSTLER_CA"),
        *("HOSTLER_ORG", "HOSTLER_PROJECT", "HOSTLER_DEBUG", "HOSTLER_DOSE", "HOSTLER_TEST_SERVERS"),
        *("HOSTLER_CRASH_POINT", "HOSTLER_CRASH_SEED", "HOSTLER_PAGE", "HOSTLER_SHOTS"),
        *("HOSTLER_ETCD", "HOSTLER_ETCDCTL", "HOSTLER_REDIS_SERVER", "HOSTLER_NODEJS", "HOSTLER_JAVA"),
    }
)
"""Variables of ours that are not settings: they belong to the client, the build and the test run."""


_STORAGE_PREFIX = "PLASMAVMC_"
_BESIDE_REDIS = "REDIS_PASSWORD"
"""The password of a Redis that is named without a URL: `HOST:PORT`, as in REDIS_CONNECTION_STRING."""
NEAR = 0.8
"""Similarity of two names (0 to 1) from which one is taken for a typing error of the other."""


class Origin(msgspec.Struct, frozen=True):
    """The origin of a value: the layer, and its name there."""

    layer: Layer
    name: str

    def __str__(self) -> str:
        return self.name


class NamespaceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The namespace in the store. Invalid: the three options contradict each other.

    `use_unique_instance` selects the test namespace; it has no effect without `use_test_namespace`.
    """

    use_test_namespace: bool = False
    use_unique_instance: bool = False
    pre_clean_store: bool = False

    def __post_init__(self) -> None:
        if self.pre_clean_store and self.use_unique_instance:
            raise Invalid(
                "PreCleanStore: it cleans the standard test namespace, but UseUniqueInstance asks for a new one;"
                " set only one of the two"
            )
        if self.pre_clean_store and not self.use_test_namespace:
            raise Invalid("PreCleanStore: only for the test namespace; set UseTestNamespace too, or remove it")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a process."""

    data: Path
    store: str
    state_path: Path | None
    """The state file of the contract's `[storage]`: migrated into the cluster once, and used as the fallback."""
    storage_fallback: bool
    lock_ttl: float
    namespace: NamespaceOptions
    listen: str
    """`HOST:PORT`; port 0: any free port."""
    agent_listen: str
    """`HOST:PORT` of an agent, where other processes of its control plane reach its machines."""
    tls_cert: Path | None
    tls_key: Path | None
    insecure: bool
    trusted_proxies: tuple[str, ...]
    """Addresses and networks."""
    max_connections: int
    max_connections_per_address: int
    request_rate: int
    """Per second; 0: no limit. The same for the other rates."""
    request_burst: int
    write_rate: int
    write_burst: int
    address_rate: int
    address_burst: int
    machines: str
    nodes: int
    node: str | None
    rack: str | None
    labels: dict[str, str]
    image: str
    boots: int | None
    """None: as the machine driver says."""
    node_ttl: float
    fencing_time: float
    power_command: tuple[str, ...]
    """The command that switches a node off; empty: none."""
    power: dict[str, str]
    """The URLs of power switches, by node or pattern."""
    power_grace: float
    brake_share: float
    brake_window: float
    fence_every: float
    power_timeout: float
    watchdog: Path | None
    """The device; None: the host is not reset."""
    leadership_ttl: float
    acquisition_timeout: float
    """0: a replica waits without a limit."""
    shutdown_delay: float
    replicas: int
    log_level: str
    log_format: str
    metrics: str
    """Who may read the metrics: callers with a `token`; also those `nearby`; `everybody`. `auto`: those nearby, unless
    guests may be among them."""
    redis: str | None
    """The URL of the Redis that brings lab requests; it may contain a password."""
    labs: Path | None
    """`labs.toml`; None: every lab uses the default template."""
    lab_life: float
    """Minutes."""
    lab_user: str
    lab_provision_limit: float
    """Seconds; 0: no limit. The same for decommissions."""
    lab_decommission_limit: float
    lab_switch: bool
    lab_key: Path
    """The private SSH key of the terminal; created on first use."""
    artifacts: str
    """The folder of slice artifacts, or its URL."""
    artifacts_token: Path | None
    artifacts_ca: Path | None
    slice_listen: str
    """Without a port: each instance has its own."""
    slice_users: str
    """`auto`, `required` or `owner`."""
    slice_disk_mib: int
    slice_packages: str | None
    """A folder of wheels, or the URL of an index."""
    slice_loading_limit: float
    slice_activating_limit: float
    slice_deactivating_limit: float
    slice_unloading_limit: float
    slice_min_ready: int
    slice_rebalance: str
    """`paced` or `never`."""
    audit_days: int
    burn_in: float
    retention: float
    audit_lines: int
    trace_days: int
    trace_lines: int
    store_history: int
    """0: not compacted by Hostler."""
    store_revisions: int
    origins: dict[str, Origin]
    """By the name in `all_options()`, and `state_path`."""
    driver_options: dict[str, Any]
    """The settings of machine drivers, by name. They may be secret."""
    ignored: tuple[str, ...] = ()
    """Variables `PLASMAVMC_…` of other programs."""

    def __repr__(self) -> str:
        """Show only two fields, because some settings are secrets."""
        return f"Settings(data={str(self.data)!r}, machines={self.machines!r}, …)"

    def with_driver_options(self, **changes: object) -> Settings:
        """Return these settings with other values of settings of machine drivers."""
        return msgspec.structs.replace(self, driver_options={**self.driver_options, **changes})

    def __post_init__(self) -> None:
        if self.fencing_time < 2 * self.node_ttl:
            raise Invalid(
                f"fencing_time {self.fencing_time:g} s: must be at least twice node_ttl ({self.node_ttl:g} s);"
                " raise the one or lower the other"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise Invalid("tls_cert and tls_key: only one is set; set both or none")


_Found: TypeAlias = dict[str, tuple[Any, Origin]]


def load(
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    file: Path | None = None,
    toml: str | None = None,
    cwd: Path | None = None,
) -> Settings:
    """Resolve all settings; nothing is created or changed.

    `flags` uses the names in `all_options()`; None means not given. `environ` defaults to that of the process.
    The file is `file`, else the one that HOSTLER_CONFIG names, else `hostler.toml` in `cwd` if it exists; `toml` is its
    text if the caller has already read it. Invalid: an unknown name or an impossible value. NotFound: the named file
    does not exist.
    """
    environ = os.environ if environ is None else environ
    cwd = Path.cwd() if cwd is None else cwd
    name, text = (str(file or FILE_NAME), toml) if toml is not None else _read_file(file, environ, cwd)
    table = parse_toml(name, text)
    found, storage = _from_file(name, table)
    found |= _from_environ(environ, all_options(), "HOSTLER_", FOREIGN_VARIABLES) | _from_flags(flags or {})
    ignored = _foreign_storage_variables(environ)
    storage |= _from_environ(environ, STORAGE_OPTIONS, _STORAGE_PREFIX, frozenset(ignored))
    if "redis" in found and environ.get(_BESIDE_REDIS):
        url, origin = found["redis"]
        given = {"file": table, "flag": flags or {}}.get(origin.layer, {}).get("redis", environ.get(origin.name))
        if is_plain_redis(given):
            found["redis"] = url.replace("://", f"://:{quote(environ[_BESIDE_REDIS], safe='')}@", 1), origin
        else:  # the password is for another server, or given twice
            ignored = (*ignored, _BESIDE_REDIS)
    present = "storage" in table or bool(storage)
    settings = _settle(found, storage, present=present, file=name, environ=environ, cwd=cwd)
    return msgspec.structs.replace(settings, ignored=ignored)


def _settle(
    found: _Found, storage: _Found, *, present: bool, file: str, environ: Mapping[str, str], cwd: Path
) -> Settings:
    built_in = Origin("default", "default")
    chosen: _Found = {option.name: found.get(option.name, (option.default, built_in)) for option in all_options()}
    for name in (option.name for option in all_options() if option.path):
        text, origin = chosen[name]
        if text is not None:
            chosen[name] = _path(text, origin, environ, cwd), origin
    if "data" not in found:
        chosen["data"] = _state_folder(environ), built_in
    data: Path = chosen["data"][0]
    if chosen["lab_key"][0] is None:
        chosen["lab_key"] = data / "lab_ed25519", built_in
    text, origin = chosen["artifacts"]
    if text is None:
        chosen["artifacts"] = str(data / "artifacts"), origin
    elif "://" not in text:
        chosen["artifacts"] = str(_path(text, origin, environ, cwd)), origin
    text, origin = chosen["slice_packages"]
    if text is not None and "://" not in text:
        chosen["slice_packages"] = str(_path(text, origin, environ, cwd)), origin
    chosen["store"] = f"sqlite://{quote(str(data / 'hostler.db'))}", built_in
    state_path: Path | None = data / "state.json"
    state_origin = built_in
    if present:
        chosen["store"] = _storage_url(storage, Origin("file", f"{file}: [storage]"), environ, cwd)
        state_origin = _state_path(storage, built_in)[1]
        state_path = _path(*_state_path(storage, built_in), environ, cwd)
    by_contract = chosen["store"]
    for name, older in (("store", chosen["store"]), ("lock_ttl", storage.get("lock_ttl_seconds", chosen["lock_ttl"]))):
        own = found.get(name)
        newer = own is not None and _LAYERS.index(own[1].layer) >= _LAYERS.index(older[1].layer)
        chosen[name] = own if own is not None and newer else older
    if not chosen["storage_fallback"][0] and not (present and chosen["store"] is by_contract):
        state_path = None
    values = {name: value for name, (value, _) in chosen.items()}
    drivers = {option.name: values.pop(option.name) for option in driver_options()}
    options = {name: values.pop(name) for name in NamespaceOptions.__struct_fields__}
    return Settings(
        **values,
        state_path=state_path,
        driver_options=drivers,
        namespace=NamespaceOptions(**options),
        origins={"state_path": state_origin, **{name: origin for name, (_, origin) in chosen.items()}},
    )


def _state_path(storage: _Found, otherwise: Origin) -> tuple[str, Origin]:
    return storage.get("state_path", (DEFAULT_STATE_PATH, otherwise))


def _storage_url(storage: _Found, table: Origin, environ: Mapping[str, str], cwd: Path) -> tuple[str, Origin]:
    """Return the store that the contract's names select: the file if it is requested, or if no endpoint is given."""
    backend, said = storage.get("backend", ("chainfire", table))
    origins = [origin for _, origin in storage.values()] or [table]
    newest = max(origins, key=lambda origin: _LAYERS.index(origin.layer))
    if backend == "chainfire" and "endpoint" in storage:
        endpoint, origin = storage["endpoint"]
        return _etcd_url(endpoint, origin), Origin(newest.layer, origin.name)
    path, origin = _state_path(storage, newest)
    why = said.name if backend == "file" else f"{origin.name} (no chainfire endpoint is set)"
    return f"file://{quote(str(_path(path, origin, environ, cwd)))}", Origin(newest.layer, why)


def _etcd_url(endpoint: str, origin: Origin) -> str:
    """Return the store URL for `http://host:port[,http://host:port…]`; https means TLS."""
    schemes, hosts = set(), []
    for part in endpoint.split(","):
        try:
            url = urlsplit(part.strip())
            usable = url.scheme in ("http", "https") and url.hostname and url.port and url.username is None
        except ValueError:
            usable = False
        if not usable or url.path not in ("", "/") or url.query or url.fragment:
            # the value is not repeated, because it may contain a password, which is not allowed here
            raise Invalid(f"{origin.name}: must be http://host:port or https://host:port, and nothing else")
        schemes.add(url.scheme)
        hosts.append(url.netloc)
    if len(schemes) > 1:
        raise Invalid(f"{origin.name}: {endpoint!r} mixes http and https; use one of them")
    return f"{'etcds' if schemes == {'https'} else 'etcd'}://{','.join(hosts)}"


def _state_folder(environ: Mapping[str, str]) -> Path:
    """Return the state folder of a user by the XDG rules; a relative XDG_STATE_HOME is ignored."""
    state = environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state.startswith("/") else _home(environ) / ".local" / "state") / "hostler"


def _home(environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME", "")
    return Path(home) if home.startswith("/") else Path("~").expanduser()


def _path(text: str, origin: Origin, environ: Mapping[str, str], cwd: Path) -> Path:
    if "\0" in text:
        raise Invalid(f"{origin.name}: {text!r} is not a path; correct it")
    if text == "~" or text.startswith("~/"):
        return _home(environ) / text[2:]
    return cwd / text


# The layers


def _read_file(file: Path | None, environ: Mapping[str, str], cwd: Path) -> tuple[str, str]:
    named = file if file is not None else environ.get(CONFIG_VARIABLE) or None
    path = cwd / (named or FILE_NAME)
    try:
        return str(path), path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if named is None:
            return str(path), ""
        raise NotFound(f"{path}: no such file; name another one with {CONFIG_VARIABLE}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise Invalid(f"{path}: cannot be read: {reason}") from None


def _from_file(name: str, table: dict[str, Any]) -> tuple[_Found, _Found]:
    top = [option for option in all_options() if not option.table]
    own = _from_table(name, {key: value for key, value in table.items() if key != "storage"}, top, ("storage",))
    storage = table.get("storage", {})
    if not isinstance(storage, dict):
        raise Invalid(f"{name}: storage: must be a table, written [storage]")
    inside = [option for option in all_options() if option.table]
    found = _from_table(f"{name}: [storage]", storage, (*STORAGE_OPTIONS, *inside), ())
    own |= {option.name: found.pop(option.name) for option in inside if option.name in found}
    return own, found


def _from_table(where: str, table: dict[str, Any], options: Iterable[Option], also: tuple[str, ...]) -> _Found:
    names = {option.in_file: option for option in options}
    found: _Found = {}
    for key, value in table.items():
        if key not in names:
            raise _unknown_setting(f"{where}: {key}", key, (*names, *also))
        if is_truth(names[key]) and not isinstance(value, bool):
            raise Invalid(f"{where}: {key} = {value!r}: must be true or false, without quotes")
        found[names[key].name] = _value(names[key], value, Origin("file", f"{where}: {key}"))
    return found


def _from_environ(
    environ: Mapping[str, str], options: Iterable[Option], prefix: str, foreign: frozenset[str]
) -> _Found:
    """Read the variables. Those with our prefix must be known; others, from the contracts, count if not empty."""
    options = tuple(options)
    names = {variable for option in options for variable in option.variables}
    for variable in environ:
        if variable.startswith(prefix) and variable not in names and variable not in foreign:
            raise _unknown_setting(f"environment: {variable}", variable, (*names, *foreign))
    found: _Found = {}
    for option in options:
        for variable in sorted(option.variables, key=lambda name: not name.startswith(prefix)):  # our own names first
            if variable in environ and (environ[variable] or variable.startswith(prefix)):
                found[option.name] = _value(option, environ[variable], Origin("environment", variable))
                break
    return found


def _foreign_storage_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables `PLASMAVMC_…` that are neither settings nor similar to one (a typing error)."""
    known = [variable.removeprefix(_STORAGE_PREFIX) for option in STORAGE_OPTIONS for variable in option.variables]
    return tuple(
        variable
        for variable in sorted(environ)
        if variable.startswith(_STORAGE_PREFIX)
        and not difflib.get_close_matches(variable.removeprefix(_STORAGE_PREFIX).upper(), known, n=1, cutoff=NEAR)
    )


def _from_flags(flags: Mapping[str, object]) -> _Found:
    names = {option.name: option for option in all_options()}
    found: _Found = {}
    for flag, value in flags.items():
        if flag not in names:
            raise _unknown_setting(f"flag {flag}", flag, names)
        if value is not None:
            plain = str(value) if isinstance(value, Path) else value
            found[flag] = _value(names[flag], plain, Origin("flag", f"--{flag.replace('_', '-')}"))
    return found


def _value(option: Option, value: object, origin: Origin) -> tuple[Any, Origin]:
    try:
        return option.read(value), origin
    except ValueError as error:
        shown = "" if option.secret else f" = {value!r}"
        raise Invalid(f"{origin.name}{shown}: {error}") from None


def _unknown_setting(subject: str, name: str, known: Iterable[str]) -> Invalid:
    by_lower = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.0)
    hint = f"did you mean {by_lower[near[0]]}?" if near else "there are no settings here"
    broken = ", ".join(installed(MACHINES).broken)
    left_out = f" (the settings of {broken} are not known: its driver cannot be used; see hostler config drivers)"
    return Invalid(f"{subject}: unknown setting; {hint}{left_out * bool(broken)}")
