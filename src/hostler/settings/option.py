"""All settings, with their names in the file, the environment and the flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hostler.settings import value

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_STATE_PATH = "/var/run/plasmavmc/state.json"
MAX_NODES = 10_000
DEFAULT_MACHINES = "simulated"
"""The machine driver that needs nothing else on a host."""
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("json", "text")
METRICS = ("auto", "token", "nearby", "everybody")


class Option(msgspec.Struct, frozen=True):
    """One setting and its names. `read` parses the value of a layer, or raises ValueError."""

    name: str
    in_file: str
    variable: str
    read: Callable[[object], Any]
    about: str
    default: Any = None
    table: str = ""
    """The table of the setting in the file; empty: the top level."""
    also: tuple[str, ...] = ()
    """More variables with the same meaning. Variables with the prefix HOSTLER_ come first; the first one set counts."""
    secret: bool = False
    """Error messages do not repeat the value."""
    path: bool = False
    """A file or folder; a relative one is relative to the folder that the process was started in."""

    @property
    def variables(self) -> tuple[str, ...]:
        """Return all variables of the setting."""
        return (self.variable, *self.also)


def is_truth(option: Option) -> bool:
    """Return whether the setting is a boolean."""
    return option.read is value.read_truth


def _read_machines(found: object) -> str:
    from hostler.settings.driver import MACHINES, TO_ADD, installed, machine_kinds

    kinds = machine_kinds()
    if found in kinds:
        return str(found)
    broken = installed(MACHINES).broken.get(str(found))
    if broken is not None:
        raise ValueError(f"this driver is installed and cannot be used: {broken}; repair its package, or remove it")
    raise ValueError(f"must be {', '.join(kinds[:-1])} or {kinds[-1]}; {TO_ADD}")


OPTIONS: tuple[Option, ...] = (
    Option("data", "data", "HOSTLER_DATA", value.read_text, "the folder for all state, sockets and logs", path=True),
    Option("store", "store", "HOSTLER_STORE", value.read_text, "the store's URL"),
    Option(
        "storage_fallback",
        "fallback",
        "HOSTLER_STORAGE_FALLBACK",
        value.read_truth,
        "start on the state file if the cluster cannot be reached",
        False,
        "storage",
    ),
    Option("listen", "listen", "HOSTLER_LISTEN", value.read_address, "the address of the API", "127.0.0.1:7070"),
    Option(
        "agent_listen",
        "agent_listen",
        "HOSTLER_AGENT_LISTEN",
        value.read_address,
        "the address where an agent serves other processes of its control plane",
        "127.0.0.1:0",
    ),
    Option("tls_cert", "tls_cert", "HOSTLER_TLS_CERT", value.read_text, "the server's certificate (PEM)", path=True),
    Option(
        "tls_key", "tls_key", "HOSTLER_TLS_KEY", value.read_text, "the private key of the certificate (PEM)", path=True
    ),
    Option("insecure", "insecure", "HOSTLER_INSECURE", value.read_truth, "serve a public address without TLS", False),
    Option(
        *("trusted_proxies", "trusted_proxies", "HOSTLER_TRUSTED_PROXIES", value.read_networks),
        "addresses or networks of proxies whose headers name the client address and scheme",
        (),
    ),
    Option(
        *("max_connections", "max_connections", "HOSTLER_MAX_CONNECTIONS", value.read_number(64, 1_000_000)),
        "the largest number of connections to the API, and to an agent's relay; a quarter of them without credentials",
        8192,
    ),
    Option(
        *("max_connections_per_address", "max_connections_per_address"),
        *("HOSTLER_MAX_CONNECTIONS_PER_ADDRESS", value.read_number(16, 1_000_000)),
        "the largest number of these from one address (not from trusted_proxies)",
        2048,
    ),
    *(
        Option(
            *(name, name, f"HOSTLER_{name.upper()}", value.read_number(low, 1_000_000)),
            about,
            default,
        )
        for name, low, default, about in (
            ("request_rate", 0, 500, "requests per second of one account (not of administrators); 0: no limit"),
            ("request_burst", 1, 5000, "the largest burst of requests of one account"),
            ("write_rate", 0, 20, "of these, writes per second, without calls of slices; 0: no limit"),
            ("write_burst", 1, 200, "the largest burst of writes of one account"),
            ("address_rate", 0, 200, "requests per second without an account from one address; 0: no limit"),
            ("address_burst", 1, 2000, "the largest burst of requests without an account from one address"),
        )
    ),
    Option("machines", "machines", "HOSTLER_MACHINES", _read_machines, "the machine driver", DEFAULT_MACHINES),
    Option("nodes", "nodes", "HOSTLER_NODES", value.read_number(1, MAX_NODES), "the number of nodes of `up`", 1),
    Option("node", "node", "HOSTLER_NODE", value.read_part, "the name of the agent's node"),
    Option("rack", "rack", "HOSTLER_RACK", value.read_rack, "the rack of the node"),
    Option("labels", "labels", "HOSTLER_LABELS", value.read_labels, "the labels of the node", {}),
    Option("image", "image", "HOSTLER_IMAGE", value.read_text, "the default image of machines", "tiny"),
    Option("boots", "boots", "HOSTLER_BOOTS", value.read_number(1, 1000), "how many machines of a node start at once"),
    Option(
        "node_ttl",
        "node_ttl",
        "HOSTLER_NODE_TTL",
        value.read_seconds,
        "a node without a heartbeat for this many seconds is unreachable",
        15.0,
    ),
    Option(
        "fencing_time",
        "fencing_time",
        "HOSTLER_FENCING_TIME",
        value.read_seconds,
        "seconds by which fenced machines of an unreachable node have stopped; at least twice node_ttl",
        30.0,
    ),
    Option(
        *("power_command", "power_command", "HOSTLER_POWER_COMMAND", value.read_power_command),
        "the program that switches an unreachable node off: a list, with {node} as one of its arguments",
        (),
    ),
    Option(
        *("power", "power", "HOSTLER_POWER", value.read_power),
        "what switches each unreachable node off: a table of nodes or patterns and the URLs of their management boards",
        {},
        secret=True,
    ),
    Option(
        *("power_grace", "power_grace", "HOSTLER_POWER_GRACE", value.read_seconds),
        "seconds for which a node is unreachable before it is switched off",
        30.0,
    ),
    Option(
        *("brake_share", "brake_share", "HOSTLER_BRAKE_SHARE", value.read_share),
        "when more than this share of the nodes becomes unreachable together, none is fenced",
        1 / 3,
    ),
    Option(
        *("brake_window", "brake_window", "HOSTLER_BRAKE_WINDOW", value.read_seconds),
        "seconds within which nodes become unreachable together",
        60.0,
    ),
    Option(
        *("fence_every", "fence_every", "HOSTLER_FENCE_EVERY", value.read_seconds),
        "seconds between two nodes that are fenced",
        10.0,
    ),
    Option(
        *("power_timeout", "power_timeout", "HOSTLER_POWER_TIMEOUT", value.read_seconds),
        "time limit for switching one node off, in seconds",
        60.0,
    ),
    Option(
        *("watchdog", "watchdog", "HOSTLER_WATCHDOG", value.read_text),
        "the watchdog device that resets this host when fenced machines cannot be stopped, for example /dev/watchdog",
        path=True,
    ),
    Option(
        "leadership_ttl",
        "leadership_ttl",
        "HOSTLER_LEADERSHIP_TTL",
        value.read_seconds,
        "a leader that has not renewed for this many seconds is replaced",
        20.0,
    ),
    Option(
        *("acquisition_timeout", "acquisition_timeout", "HOSTLER_ACQUISITION_TIMEOUT", value.read_timeout),
        "seconds after which `hostler replica` ends if it got no key of the election; 0: no limit",
        120.0,
    ),
    Option(
        *("shutdown_delay", "shutdown_delay", "HOSTLER_SHUTDOWN_DELAY", value.read_delay),
        "seconds for which a stopping replica serves while /readyz answers 503, if other replicas run",
        3.0,
    ),
    Option(
        "lock_ttl",
        "lock_ttl",
        "HOSTLER_LOCK_TTL",
        value.read_seconds,
        "seconds that a lock of a virtual machine lives",
        30.0,
    ),
    Option(
        "replicas",
        "replicas",
        "HOSTLER_REPLICAS",
        value.read_number(1, 1000),
        "how many replicas may hold a key at once",
        1,
    ),
    Option("log_level", "log_level", "HOSTLER_LOG_LEVEL", value.read_one_of(*LOG_LEVELS), "the log level", "info"),
    Option("log_format", "log_format", "HOSTLER_LOG_FORMAT", value.read_one_of(*LOG_FORMATS), "the log format", "json"),
    Option("metrics", "metrics", "HOSTLER_METRICS", value.read_one_of(*METRICS), "who may read /metrics", "auto"),
    Option(
        *("redis", "redis", "HOSTLER_REDIS", value.read_redis, "the Redis that brings lab requests"),
        also=("REDIS_CONNECTION_STRING",),
        secret=True,
    ),
    Option("labs", "labs", "HOSTLER_LABS", value.read_text, "the file that defines the labs, labs.toml", path=True),
    Option(
        "lab_life",
        "lab_life",
        "DEFAULT_TTL_MINUTES",
        value.read_minutes,
        "minutes that a lab lives, unless the catalogue says otherwise",
        30.0,
        also=("HOSTLER_LAB_LIFE",),
    ),
    Option(
        "lab_user",
        "lab_user",
        "SSH_USERNAME",
        value.read_login,
        "the login user of a lab, unless the catalogue says otherwise",
        "student",
        also=("HOSTLER_LAB_USER",),
    ),
    Option(
        *("lab_provision_limit", "lab_provision_limit", "PROVISION_RATE_LIMIT_SECONDS", value.read_lab_limit),
        "seconds between two starts of one user from Redis; of the waiting ones the last counts; 0: no limit",
        0.0,
        also=("HOSTLER_LAB_PROVISION_LIMIT",),
    ),
    Option(
        *("lab_decommission_limit", "lab_decommission_limit", "DECOMMISSION_RATE_LIMIT_SECONDS", value.read_lab_limit),
        "the same for stops",
        0.0,
        also=("HOSTLER_LAB_DECOMMISSION_LIMIT",),
    ),
    Option(
        "lab_switch",
        "lab_switch",
        "HOSTLER_LAB_SWITCH",
        value.read_truth,
        "a start of another lab replaces the existing lab",
        False,
    ),
    Option("lab_key", "lab_key", "HOSTLER_LAB_KEY", value.read_text, "the private SSH key of the terminal", path=True),
    Option(
        *("artifacts", "artifacts", "HOSTLER_ARTIFACTS", value.read_repository),
        "the repository of slice artifacts: a folder, or the http(s) URL of one",
    ),
    Option(
        *("artifacts_token", "artifacts_token", "HOSTLER_ARTIFACTS_TOKEN", value.read_text),
        "the file with the token for the artifact server",
        path=True,
    ),
    Option(
        *("artifacts_ca", "artifacts_ca", "HOSTLER_ARTIFACTS_CA", value.read_text),
        "the file with the certificates to trust for the artifact server",
        path=True,
    ),
    Option(
        *("slice_listen", "slice_listen", "HOSTLER_SLICE_LISTEN", value.read_host),
        "the address of this machine at which slices take calls, without a port",
        "127.0.0.1",
    ),
    Option(
        *("slice_users", "slice_users", "HOSTLER_SLICE_USERS", value.read_one_of("auto", "required", "owner")),
        "the user of slices: `auto`, own users under root if possible, else confined without access to the data folder,"
        " or refused; `required`, own users or refused; `owner`, the user of the agent if nothing else is possible",
        "auto",
    ),
    Option(
        *("slice_disk_mib", "slice_disk_mib", "HOSTLER_SLICE_DISK_MIB", value.read_number(1, 2**24)),
        "disk space of one slice instance, in MiB",
        1024,
    ),
    Option(
        *("slice_packages", "slice_packages", "HOSTLER_SLICE_PACKAGES", value.read_repository),
        "the source of packages that slices require: a folder of wheels, or the http(s) URL of an index",
    ),
    *(
        Option(
            *(f"slice_{step}_limit", f"slice_{step}_limit", f"HOSTLER_SLICE_{step.upper()}_LIMIT", value.read_seconds),
            f"time limit for {step} a slice, in seconds",
            limit,
        )
        for step, limit in (("loading", 120.0), ("activating", 60.0), ("deactivating", 30.0), ("unloading", 120.0))
    ),
    Option(
        *("slice_min_ready", "slice_min_ready", "HOSTLER_SLICE_MIN_READY", value.read_number(0, 3600)),
        "seconds for which an instance of a new version must be active before it replaces an old one",
        5,
    ),
    Option(
        *("slice_rebalance", "slice_rebalance", "HOSTLER_SLICE_REBALANCE", value.read_one_of("paced", "never")),
        "whether instances move to nodes that join or return: paced, one at a time; or never",
        "paced",
    ),
    Option(
        *("audit_days", "audit_days", "HOSTLER_AUDIT_DAYS", value.read_number(1, 36500)),
        "days that audit entries stay in the store; older ones are in files, DATA/audit",
        90,
    ),
    Option(
        *("audit_lines", "audit_lines", "HOSTLER_AUDIT_LINES", value.read_number(1000, 100_000_000)),
        "the largest number of audit entries in the store; older ones are in files",
        200_000,
    ),
    Option(
        *("trace_lines", "trace_lines", "HOSTLER_TRACE_LINES", value.read_number(1000, 100_000_000)),
        "the largest number of decisions that are kept",
        200_000,
    ),
    Option(
        *("store_history", "store_history", "HOSTLER_STORE_HISTORY", value.read_number(0, 86400 * 365)),
        "seconds for which etcd keeps overwritten and deleted values; 0: compacted by others",
        3600,
    ),
    Option(
        *("store_revisions", "store_revisions", "HOSTLER_STORE_REVISIONS", value.read_number(1000, 1_000_000_000)),
        "the largest number of such revisions",
        100_000,
    ),
    Option(
        *("burn_in", "burn_in", "HOSTLER_BURN_IN", value.read_seconds),
        "seconds that a blade in burn-in runs without a fault before it is operational",
        86400.0,
    ),
    Option(
        *("retention", "retention", "HOSTLER_RETENTION", value.read_seconds),
        "seconds for which machines that are out of service are kept with their disks",
        7 * 86400.0,
    ),
    Option(
        *("trace_days", "trace_days", "HOSTLER_TRACE_DAYS", value.read_number(0, 3650)),
        "days for which decisions are kept; 0: none are recorded",
        7,
    ),
    Option(
        "use_test_namespace",
        "UseTestNamespace",
        "HOSTLER_USE_TEST_NAMESPACE",
        value.read_truth,
        "keep every key under Test/",
        False,
    ),
    Option(
        "use_unique_instance",
        "UseUniqueInstance",
        "HOSTLER_USE_UNIQUE_INSTANCE",
        value.read_truth,
        "use a new test namespace for each start",
        False,
    ),
    Option(
        "pre_clean_store",
        "PreCleanStore",
        "HOSTLER_PRE_CLEAN_STORE",
        value.read_truth,
        "empty the standard test namespace first",
        False,
    ),
)

# These names come from the contract of virtual machines; together they make a store URL.
STORAGE_OPTIONS: tuple[Option, ...] = (
    Option(
        "backend",
        "backend",
        "PLASMAVMC_STORAGE_BACKEND",
        value.read_one_of("chainfire", "file"),
        "chainfire (any etcd) or file",
    ),
    Option("endpoint", "chainfire_endpoint", "PLASMAVMC_CHAINFIRE_ENDPOINT", value.read_text, "http://host:port"),
    Option("state_path", "state_path", "PLASMAVMC_STATE_PATH", value.read_text, "the state file"),
    Option(
        "lock_ttl_seconds",
        "lock_ttl_seconds",
        "PLASMAVMC_LOCK_TTL_SECONDS",
        value.read_seconds,
        "seconds that a lock lives",
    ),
)
