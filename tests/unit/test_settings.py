"""Settings: which layer wins, where a value came from, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hostler.errors import HostlerError, Invalid, NotFound
from hostler.settings import FOREIGN_VARIABLES, STORAGE_OPTIONS, Settings, load
from hostler.settings.driver import all_options
from hostler.settings.option import Option
from hostler.settings.value import split_address

HOME = {"HOME": "/home/ada"}
OF_OTHERS = {"HOSTLER_PROCESS_COMMAND", "HOSTLER_GREEDY"}
"""Of the drivers in the tests of drivers of others."""
CHAINFIRE = "PLASMAVMC_CHAINFIRE_ENDPOINT"


def settled(toml: str = "", environ: dict[str, str] | None = None, **flags: object) -> Settings:
    return load(flags, HOME | (environ or {}), toml=toml, cwd=Path("/some dir"))


def test_without_anything_the_store_is_embedded_in_the_state_folder() -> None:
    found = settled()
    assert found.data == Path("/home/ada/.local/state/hostler")
    assert found.store == "sqlite:///home/ada/.local/state/hostler/hostler.db"
    assert found.lock_ttl == 30.0
    assert not found.namespace.use_test_namespace
    assert {str(origin) for origin in found.origins.values()} == {"default"}


def test_the_state_folder_follows_xdg() -> None:
    assert settled(environ={"XDG_STATE_HOME": "/var/x"}).store == "sqlite:///var/x/hostler/hostler.db"
    assert settled(environ={"XDG_STATE_HOME": "not/absolute"}).data == Path("/home/ada/.local/state/hostler")


def test_each_layer_beats_the_one_below_and_says_so() -> None:
    toml, environ = 'store = "memory://?history=1"', {"HOSTLER_STORE": "memory://?history=2"}
    for found, number, layer, name in (
        (settled(toml), 1, "file", "hostler.toml: store"),
        (settled(toml, environ), 2, "environment", "HOSTLER_STORE"),
        (settled(toml, environ, store="memory://?history=3"), 3, "flag", "--store"),
        (settled(toml, environ, store=None), 2, "environment", "HOSTLER_STORE"),
    ):
        assert found.store == f"memory://?history={number}"
        assert found.origins["store"].layer == layer
        assert found.origins["store"].name == name


def test_the_default_store_follows_the_data_folder() -> None:
    assert settled(data="/srv/h").store == "sqlite:///srv/h/hostler.db"
    assert settled('data = "~/h"').data == Path("/home/ada/h")
    assert settled(data=Path("rel")).store == "sqlite:///some%20dir/rel/hostler.db"


def test_namespace_options_are_spelled_as_in_the_contract() -> None:
    assert settled("UseTestNamespace = true\nPreCleanStore = true").namespace.pre_clean_store
    found = settled("UseTestNamespace = true", {"HOSTLER_USE_UNIQUE_INSTANCE": "yes"})
    assert found.namespace.use_unique_instance
    assert found.origins["use_unique_instance"].name == "HOSTLER_USE_UNIQUE_INSTANCE"
    assert not settled("UseTestNamespace = true", {"HOSTLER_USE_TEST_NAMESPACE": "0"}).namespace.use_test_namespace


@pytest.mark.parametrize(
    "toml", ["PreCleanStore = true", "UseTestNamespace = true\nUseUniqueInstance = true\nPreCleanStore = true"]
)
def test_options_that_do_not_go_together_are_refused_at_start(toml: str) -> None:
    with pytest.raises(Invalid, match="PreCleanStore"):
        settled(toml)


# The contract's own names


@pytest.mark.parametrize(
    ("toml", "environ", "store"),
    [
        ("", {CHAINFIRE: "http://127.0.0.1:50051"}, "etcd://127.0.0.1:50051"),
        ("", {CHAINFIRE: "https://h:1/"}, "etcds://h:1"),
        ("", {CHAINFIRE: "http://a:1,http://b:2"}, "etcd://a:1,b:2"),
        ("", {CHAINFIRE: "http://[::1]:50051"}, "etcd://[::1]:50051"),
        ("", {"PLASMAVMC_STORAGE_BACKEND": "file"}, "file:///var/run/plasmavmc/state.json"),
        ("", {"PLASMAVMC_STORAGE_BACKEND": "file", CHAINFIRE: "http://h:1"}, "file:///var/run/plasmavmc/state.json"),
        ("", {"PLASMAVMC_STORAGE_BACKEND": "chainfire"}, "file:///var/run/plasmavmc/state.json"),
        ("", {"PLASMAVMC_STATE_PATH": "/x/a b.json"}, "file:///x/a%20b.json"),
        ("", {"PLASMAVMC_LOCK_TTL_SECONDS": "5"}, "file:///var/run/plasmavmc/state.json"),
        ("[storage]", {}, "file:///var/run/plasmavmc/state.json"),
        ('[storage]\nbackend="chainfire"\nchainfire_endpoint="http://h:1"', {}, "etcd://h:1"),
        ('[storage]\nchainfire_endpoint="http://h:1"', {"PLASMAVMC_STORAGE_BACKEND": "file"}, "file:///var/run/plasmavmc/state.json"),
        ('[storage]\nchainfire_endpoint="http://h:1"', {CHAINFIRE: "http://g:2"}, "etcd://g:2"),
        ('[storage]\nbackend="file"\nstate_path="s.json"', {}, "file:///some%20dir/s.json"),
    ],
)  # fmt: skip
def test_the_storage_names_of_the_contract_mean_a_store(toml: str, environ: dict[str, str], store: str) -> None:
    found = settled(toml, environ)
    assert found.store == store
    assert found.origins["store"].layer == ("environment" if environ else "file")
    assert settled(toml, environ, store="memory://").store == "memory://"


def test_an_own_name_wins_within_its_layer_and_loses_to_a_higher_one() -> None:
    table = '[storage]\nchainfire_endpoint="http://h:1"'
    assert settled('store = "memory://"\n' + table).store == "memory://"
    assert settled(table, {"HOSTLER_STORE": "memory://"}).store == "memory://"
    assert settled('store = "memory://"', {CHAINFIRE: "http://h:1"}).store == "etcd://h:1"
    assert settled("", {CHAINFIRE: "http://h:1", "HOSTLER_STORE": "memory://"}).store == "memory://"


def test_the_life_of_a_lock_is_set_by_the_contracts_names() -> None:
    assert settled("[storage]\nlock_ttl_seconds = 5").lock_ttl == 5.0
    found = settled("[storage]\nlock_ttl_seconds = 5", {"PLASMAVMC_LOCK_TTL_SECONDS": "7.5"})
    assert found.lock_ttl == 7.5
    assert found.origins["lock_ttl"].name == "PLASMAVMC_LOCK_TTL_SECONDS"


@pytest.mark.parametrize(
    ("toml", "environ", "flags", "message"),
    [
        ("stor = 'x'", {}, {}, "hostler.toml: stor: unknown setting; did you mean store"),
        ("usetestnamespace = true", {}, {}, "did you mean UseTestNamespace"),
        ("[storage]\nbackends = 'file'", {}, {}, r"\[storage\]: backends: unknown setting; did you mean backend"),
        ("[stroage]\nbackend = 'file'", {}, {}, "did you mean storage"),
        ("storage = 1", {}, {}, "must be a table"),
        ("", {"HOSTLER_STOR": "x"}, {}, "environment: HOSTLER_STOR: unknown setting; did you mean HOSTLER_STORE"),
        ("", {"PLASMAVMC_STATE_PTH": "x"}, {}, "did you mean PLASMAVMC_STATE_PATH"),
        ("", {}, {"sotre": "x"}, "did you mean store"),
        ("store = 1", {}, {}, "hostler.toml: store = 1: must be a text"),
        ("", {"HOSTLER_STORE": ""}, {}, "HOSTLER_STORE = '': must be a text"),
        ("UseTestNamespace = 'true'", {}, {}, "without quotes"),
        ("", {"HOSTLER_USE_TEST_NAMESPACE": "maybe"}, {}, "must be true or false"),
        ("", {"PLASMAVMC_STORAGE_BACKEND": "etcd"}, {}, "must be chainfire or file"),
        ("", {CHAINFIRE: "127.0.0.1:50051"}, {}, "must be http://host:port"),
        ("", {CHAINFIRE: "http://h"}, {}, "must be http://host:port"),
        ("", {CHAINFIRE: "http://h:99999"}, {}, "must be http://host:port"),
        ("", {CHAINFIRE: "http://h:1/x"}, {}, "must be http://host:port"),
        ("", {CHAINFIRE: "http://a:1,https://b:1"}, {}, "mixes http and https"),
        ("", {"PLASMAVMC_LOCK_TTL_SECONDS": "0"}, {}, "above 0"),
        ("", {"PLASMAVMC_LOCK_TTL_SECONDS": "nan"}, {}, "above 0"),
        ("[storage]\nlock_ttl_seconds = true", {}, {}, "above 0"),
        ("", {}, {"data": "a\0b"}, "is not a path"),
        ("a = ", {}, {}, "hostler.toml: not TOML"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(
    toml: str, environ: dict[str, str], flags: dict[str, object], message: str
) -> None:
    with pytest.raises(Invalid, match=message):
        settled(toml, environ, **flags)


def test_variables_of_the_client_and_of_others_are_no_settings() -> None:
    assert settled(environ=dict.fromkeys(FOREIGN_VARIABLES, "1") | {"HOSTNAME": "h"}).store.startswith("sqlite:")


def test_every_variable_of_ours_in_the_tree_is_known_to_the_settings() -> None:
    root = Path(__file__).parents[2]
    files = [root / "Makefile", *(root / "scripts").iterdir()]
    files += [
        file for folder in ("src", "bench", "tests") for file in (root / folder).rglob("*.py") if file != Path(__file__)
    ]
    texts = [file.read_text(encoding="utf-8") for file in files if file.is_file()]
    named = {name for text in texts for name in re.findall(r"(?<![A-Z_])HOSTLER_[A-Z_]*[A-Z]\b", text)}
    assert {"HOSTLER_STORE", "HOSTLER_DOSE"} <= named, "nothing was found: it looks in the wrong place"
    assert (
        named - {variable for option in all_options() for variable in option.variables} - FOREIGN_VARIABLES == OF_OTHERS
    )


def test_the_file_is_the_one_named_else_the_one_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "hostler.toml").write_text('store = "memory://?history=1"')
    other = tmp_path / "other.toml"
    other.write_text('store = "memory://?history=2"')
    assert load({}, HOME, cwd=tmp_path).store.endswith("=1")
    assert load({}, HOME | {"HOSTLER_CONFIG": "other.toml"}, cwd=tmp_path).store.endswith("=2")
    found = load({}, HOME, file=other, cwd=tmp_path)
    assert found.origins["store"].name == f"{other}: store"
    assert load({}, HOME, cwd=tmp_path / "nowhere").origins["store"].layer == "default"


def test_a_missing_file_is_told_with_a_way_that_exists(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="name another one with HOSTLER_CONFIG$"):
        load({}, HOME | {"HOSTLER_CONFIG": "none.toml"}, cwd=tmp_path)


def test_a_file_that_was_named_must_be_there_and_readable(tmp_path: Path) -> None:
    for name, kind, content in (("none.toml", NotFound, None), ("latin", Invalid, b"\xff"), (".", Invalid, None)):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(HostlerError) as caught:
            load({}, HOME, file=Path(name), cwd=tmp_path)
        assert isinstance(caught.value, kind)


def test_every_setting_has_names_of_its_own() -> None:
    options = (*all_options(), *STORAGE_OPTIONS)
    for names in zip(*((option.name, option.in_file, option.variable) for option in options)):
        assert len(set(names)) == len(options)
    assert set(settled().origins) == {option.name for option in all_options()} | {"lock_ttl", "state_path"}


# The control plane


def test_without_anything_the_control_plane_stays_on_loopback_with_one_simulated_node() -> None:
    found = settled()
    assert (found.listen, found.insecure, found.tls_cert, found.tls_key) == ("127.0.0.1:7070", False, None, None)
    assert (found.machines, found.nodes, found.node, found.rack, found.labels) == ("simulated", 1, None, None, {})
    assert (found.node_ttl, found.fencing_time, found.leadership_ttl, found.replicas) == (15.0, 30.0, 20.0, 1)
    assert (found.log_level, found.log_format, found.audit_days, found.metrics) == ("info", "json", 90, "auto")
    assert found.trace_days == 7
    assert (found.storage_fallback, found.state_path) == (False, None)
    assert (found.image, found.boots) == ("tiny", None)
    assert (found.driver_options["network"], found.driver_options["network_prefix6"]) == ("user", None)


@pytest.mark.parametrize("option", all_options(), ids=lambda option: option.name)
def test_every_setting_can_be_set_in_each_layer(option: Option) -> None:
    first, second, third = {
        **dict.fromkeys(("listen", "agent_listen"), ("h:1", "h:2", "h:3")),
        "labels": ({"a": "1"}, "a=2", ("a=3",)),
        "machines": ("simulated", "qemu", "simulated"),
        "log_level": ("debug", "error", "info"),
        "log_format": ("json", "text", "json"),
        "metrics": ("nearby", "everybody", "token"),
        "rack": ("r1", "r2", "r3"),
        "trusted_proxies": ("10.0.0.1", "10.1.0.0/16, ::1", ["fd00::/8"]),
        **dict.fromkeys(("store_revisions", "audit_lines", "trace_lines"), (2000, "3000", 4000)),
        "store_history": (0, "60", 3600),
        **dict.fromkeys(("nodes", "replicas", "audit_days", "trace_days", "boots", "slice_min_ready"), (2, "3", 4)),
        **dict.fromkeys(("max_connections", "max_connections_per_address"), (100, "200", 300)),
        **{f"{of}_{what}": (1, "2", 3) for of in ("request", "write", "address") for what in ("rate", "burst")},
        "slice_rebalance": ("never", "paced", "never"),
        "network": ("bridge:a", "isolated", "user"),
        "network_prefix6": ("fd00::/64", "fd00:1::/64", "fd00:2::/64"),
        "accelerator": ("kvm", "tcg", "kvm"),
        "qemu_uids": ("1000-2000", "3000-4000", "5000-6000"),
        "disk_reserve_gib": (1, "2.5", 0.0),
        "cpu_overcommit": (1, "2", 3),
        "redis": ("redis://a", "redis://b:1/2", "rediss://:pw@c"),
        "lab_life": (1, "2.5", 3.0),
        "lab_provision_limit": (1, "15", 3.0),
        "lab_decommission_limit": (1, "15", 3.0),
        "lab_user": ("a", "b", "c"),
        **dict.fromkeys(
            ("node_ttl", "lock_ttl", "leadership_ttl", "power_grace", "power_timeout", "retention", "burn_in"),
            (1, "2", 3.0),
        ),
        **dict.fromkeys(("brake_window", "fence_every", "shutdown_delay", "acquisition_timeout"), (1, "2", 3.0)),
        "brake_share": (0.1, "0.5", 1.0),
        "fencing_time": (60, "70", 80.0),
        "slice_listen": ("10.0.0.1", "fd00::1", "blade-1.example"),
        "slice_users": ("auto", "required", "owner"),
        "slice_disk_mib": (64, "128", 256),
        **{f"slice_{step}_limit": (1, "2", 3.0) for step in ("loading", "activating", "deactivating", "unloading")},
        "power_command": ("/a {node}", "/b {node}", ["/c", "{node}"]),
        "power": ({"a": "ipmi://u@b"}, "a=ipmi://u@c 'b=command:/off {node}'", {"a": "redfish://u@d/s"}),
        **dict.fromkeys(("storage_fallback", "insecure", "use_test_namespace", "lab_switch"), (True, "no", True)),
        **dict.fromkeys(("hcloud_ipv4", "hcloud_probe"), (True, "no", True)),
        "hcloud_endpoint": ("http://a", "https://b:1/v1", "http://c/v1"),
        **dict.fromkeys(("use_unique_instance", "pre_clean_store"), (False, "no", False)),
    }.get(option.name, ("/a", "/b", "/c") if option.name != "node" else ("a", "b", "c"))
    beside = {"tls_cert": "tls_key", "tls_key": "tls_cert"}.get(option.name)
    flags = {} if beside is None else {beside: "/x"}
    inline = (
        f"{{a='{first['a']}'}}"
        if isinstance(first, dict)
        else str(first).lower()
        if not isinstance(first, str)
        else f"'{first}'"
    )
    toml = f"[{option.table}]\n" * bool(option.table) + f"{option.in_file} = {inline}"
    by_file = settled(toml, **flags)
    by_variable = settled(toml, {option.variable: second}, **flags)
    by_flag = settled(toml, {option.variable: second}, **flags, **{option.name: third})
    layers = [found.origins[option.name].layer for found in (by_file, by_variable, by_flag)]
    assert layers == ["file", "environment", "flag"]
    assert by_flag.origins[option.name].name == f"--{option.name.replace('_', '-')}"
    if option.name in Settings.__struct_fields__:
        assert getattr(by_file, option.name) != getattr(by_variable, option.name) != getattr(by_flag, option.name)
    elif option.name in by_file.driver_options:
        values = [found.driver_options[option.name] for found in (by_file, by_variable, by_flag)]
        assert values[0] != values[1] != values[2]


@pytest.mark.parametrize(
    ("toml", "flags", "message"),
    [
        ("listen = '7070'", {}, "must be HOST:PORT"),
        ("listen = 'h:70000'", {}, "must be HOST:PORT"),
        ("listen = '::1:80'", {}, "must be HOST:PORT"),
        ("listen = 'a b:80'", {}, "must be HOST:PORT"),
        ("listen = 'h:-1'", {}, "must be HOST:PORT"),
        ("slice_listen = 'h:80'", {}, "without a port"),
        ("slice_listen = '0.0.0.0'", {}, "by which other nodes reach it"),
        ("slice_listen = '::'", {}, "by which other nodes reach it"),
        ("slice_listen = '0'", {}, "by which other nodes reach it"),
        ("slice_listen = '0x0.0'", {}, "by which other nodes reach it"),
        ("slice_listen = '::ffff:0.0.0.0'", {}, "by which other nodes reach it"),
        ("trusted_proxies = ['proxy']", {}, "must be addresses or networks"),
        ("trusted_proxies = ['10.0.0.1', '0.0.0.0/0']", {}, "include every address"),
        ("trusted_proxies = '::/0'", {}, "include every address"),
        ("trusted_proxies = '::ffff:0:0/96'", {}, "include every address"),
        ("trusted_proxies = '::1, ::ffff:10.0.0.0/104'", {}, "write 10.0.0.0/8 instead of ::ffff:"),
        ("trusted_proxies = '::ffff:192.0.2.7'", {}, "write 192.0.2.7/32 instead of ::ffff:"),
        ("machines = 'vmware'", {}, "must be simulated, qemu or hetzner"),
        ("nodes = 0", {}, "whole number from 1"),
        ("nodes = true", {}, "whole number from 1"),
        ("nodes = 1.5", {}, "whole number from 1"),
        ("", {"nodes": "many"}, "whole number from 1"),
        ("power_command = []", {}, "must be a list of a program and its arguments"),
        ("power_command = ['/off', 1, '{node}']", {}, "must be a list of a program and its arguments"),
        ("power_command = ['/off']", {}, "as a separate argument"),
        ("power_command = ['/off', '--node={node}', '{node}']", {}, "as a separate argument"),
        ("power_command = ['/off/{node}', '{node}']", {}, "must begin with the program"),
        ("power_command = ['', '{node}']", {}, "must begin with the program"),
        ("", {"power_command": "/off '{node}"}, "no closing quotation"),
        ("power_timeout = 0", {}, "seconds above 0"),
        ("power = 'ipmi://u@h'", {}, "power: must be NODE=URL, separated by spaces, each URL redfish://…"),
        ("power = ['ipmi://u@h']", {}, "must be a table of nodes"),
        ("[power]\na = 1", {}, "a: must be redfish://…, redfish.http://…, ipmi://…, command:…"),
        ("[power]\na = 'https://u@h'", {}, "a: must be redfish://…"),
        ("[power]\n'a/b' = 'ipmi://u@h'", {}, "without /"),
        ("", {"power": "a=ipmi://u@h a=ipmi://u@i"}, "one URL for each node"),
        ("", {"power": "a='ipmi://u@h"}, "no closing quotation"),
        ("node = 'a/b'", {}, "without /"),
        ('node = "a\\nb"', {}, "without /"),
        ("", {"node": "x" * 64}, "up to 63"),
        ("rack = 'a-b'", {}, "without -"),
        ("network = 'tap0'", {}, "must be user, isolated, bridge or bridge:NAME"),
        ("network = 'bridge:'", {}, "must be user, isolated, bridge or bridge:NAME"),
        ("network = 'bridge:a,script=/x'", {}, "must be user, isolated, bridge or bridge:NAME"),
        ("network_prefix6 = 'fd00::/48'", {}, "prefix of 64 bits"),
        ("network_prefix6 = '10.0.0.0/24'", {}, "prefix of 64 bits"),
        ("qemu_uids = '0-100'", {}, "above 999"),
        ("qemu_uids = '3000-2000'", {}, "must be FIRST-LAST"),
        ("disk_reserve_gib = -1", {}, "number of GiB"),
        ("accelerator = 'hvf'", {}, "must be kvm or tcg"),
        ("boots = 0", {}, "whole number from 1"),
        ("labels = 'zone'", {}, "name=value"),
        ("labels = {zone = 1}", {}, "name=value"),
        ("log_level = 'loud'", {}, "debug, info, warning or error"),
        ("node_ttl = 20", {}, "fencing_time 30 s: must be at least twice node_ttl"),
        ("fencing_time = 29", {}, "fencing_time 29 s"),
        ("tls_cert = '/c'", {}, "only one is set"),
        ("", {"tls_key": "/k"}, "only one is set"),
        ("fallback = true", {}, "unknown setting"),
        ("redis = 'http://h'", {}, "must be redis://"),
        ("redis = 'redis://h x'", {}, "must be redis://"),
        ("lab_life = 0", {}, "number of minutes above 0"),
        ("lab_life = true", {}, "number of minutes above 0"),
        ("lab_life = 1e9", {}, "at most a year"),
        ("lab_user = 'Root'", {}, "user name"),
        ("lab_switch = 'no'", {}, "must be true or false"),
    ],
)
def test_what_the_control_plane_cannot_do_is_refused(toml: str, flags: dict[str, object], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        settled(toml, **flags)


def test_the_state_file_matters_only_where_the_contracts_names_choose_the_store() -> None:
    table = '[storage]\nchainfire_endpoint="http://h:1"\nstate_path="/s.json"'
    assert settled(table).state_path == Path("/s.json")
    assert settled("", {CHAINFIRE: "http://h:1"}).state_path == Path("/var/run/plasmavmc/state.json")
    assert settled(table, store="etcd://g:2").state_path is None
    assert settled(store="etcd://g:2").state_path is None


def test_where_falling_back_is_allowed_there_is_a_file_to_fall_back_to() -> None:
    assert settled(store="etcd://g:2", environ={"HOSTLER_STORAGE_FALLBACK": "1"}, data="/d").state_path == Path(
        "/d/state.json"
    )
    found = settled('[storage]\nfallback = true\nchainfire_endpoint="http://h:1"')
    assert (found.storage_fallback, found.state_path) == (True, Path("/var/run/plasmavmc/state.json"))
    assert not settled('[storage]\nchainfire_endpoint="http://h:1"').storage_fallback


def test_the_fallback_alone_is_no_choice_of_a_store() -> None:
    assert settled(environ={"HOSTLER_STORAGE_FALLBACK": "yes"}).store.startswith("sqlite:")


def test_the_own_name_of_the_locks_life_wins_within_its_layer() -> None:
    table = "[storage]\nlock_ttl_seconds = 5"
    assert settled("lock_ttl = 6\n" + table).lock_ttl == 6.0
    assert settled("lock_ttl = 6", {"PLASMAVMC_LOCK_TTL_SECONDS": "7"}).lock_ttl == 7.0


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:7070", "127.0.0.1", 7070), ("[::1]:0", "::1", 0), (":80", "0.0.0.0", 80), ("a.b:1", "a.b", 1)],
)
def test_an_address_to_listen_on_has_two_parts(text: str, host: str, port: int) -> None:
    assert split_address(settled(listen=text).listen) == (host, port)


# Labs


def test_without_anything_labs_live_for_half_an_hour_and_have_no_redis() -> None:
    found = settled(data="/d")
    assert (found.redis, found.labs, found.lab_life, found.lab_user, found.lab_switch) == (
        *(None, None, 30.0, "student", False),
    )
    assert found.lab_key == Path("/d/lab_ed25519")
    assert settled("labs = 'labs.toml'\nlab_key = '~/key'").labs == Path("/some dir/labs.toml")
    assert settled("lab_key = '~/key'").lab_key == Path("/home/ada/key")


def test_the_interfaces_own_variables_apply_when_they_are_there() -> None:
    found = settled("lab_life = 5", {"DEFAULT_TTL_MINUTES": "45", "SSH_USERNAME": "pupil"})
    assert (found.lab_life, found.lab_user) == (45.0, "pupil")
    assert found.origins["lab_life"].name == "DEFAULT_TTL_MINUTES"
    empty = settled("lab_life = 5", {"DEFAULT_TTL_MINUTES": "", "SSH_USERNAME": "", "HOSTLER_LAB_USER": "x"})
    assert (empty.lab_life, empty.lab_user) == (5.0, "x")
    with pytest.raises(Invalid, match="DEFAULT_TTL_MINUTES = 'soon': must be a number of minutes"):
        settled(environ={"DEFAULT_TTL_MINUTES": "soon"})


def test_l46_the_redis_of_the_originals_own_variables() -> None:
    """L46: `host:port` and a password beside it; our own names go before them."""
    swim = {"REDIS_CONNECTION_STRING": "10.0.0.5:6379"}
    assert settled(environ=swim).redis == "redis://10.0.0.5:6379"
    assert settled(environ=swim).origins["redis"].name == "REDIS_CONNECTION_STRING"
    assert settled(environ={"REDIS_CONNECTION_STRING": ":6379"}).redis == "redis://localhost:6379"
    assert settled(environ={"REDIS_CONNECTION_STRING": "[fd00::1]:6379"}).redis == "redis://[fd00::1]:6379"
    assert settled(environ={"REDIS_CONNECTION_STRING": ""}).redis is None
    secret = {**swim, "REDIS_PASSWORD": "p@ss/w:rd %"}
    found = settled(environ=secret)
    assert found.redis == "redis://:p%40ss%2Fw%3Ard%20%25@10.0.0.5:6379"
    assert urlsplit(found.redis).hostname == "10.0.0.5"
    assert "w:rd" not in repr(found)
    assert "w%3Ard" not in repr(found)
    own = settled(environ={**secret, "HOSTLER_REDIS": "redis://other:1"})
    assert own.redis == "redis://other:1", "a password went to another server"
    assert own.ignored == ("REDIS_PASSWORD",)
    assert settled(environ={**secret, "HOSTLER_REDIS": "redis://:mine@other:1"}).redis == "redis://:mine@other:1"
    flag = settled(environ=secret, redis="there:7000")
    assert flag.redis == "redis://:p%40ss%2Fw%3Ard%20%25@there:7000"
    assert flag.ignored == ()
    assert settled("redis = 'redis://file:1'").redis == "redis://file:1"
    assert settled(environ={"REDIS_PASSWORD": "of another program"}).ignored == ()
    assert settled(environ={"DEFAULT_TTL_MINUTES": "45", "HOSTLER_LAB_LIFE": "50"}).lab_life == 50.0
    for wrong in ("host", "host:6379,password=secret", "host:port", "secret@host:1"):
        with pytest.raises(Invalid, match="REDIS_CONNECTION_STRING: must be redis://") as caught:
            settled(environ={"REDIS_CONNECTION_STRING": wrong})
        assert "secret" not in str(caught.value)


def test_an_error_about_redis_does_not_repeat_its_password() -> None:
    for toml, environ in (("redis = 'tcp://:secret@h'", {}), ("", {"HOSTLER_REDIS": "redis://:secret@h x"})):
        with pytest.raises(Invalid) as caught:
            settled(toml, environ)
        assert "secret" not in str(caught.value)
        assert "must be redis://" in str(caught.value)


# Hetzner Cloud


@pytest.mark.parametrize("prefix", ["HCLOUD_DEFAULT_", "HCLOUD_", "HOSTLER_HCLOUD_"])
def test_the_names_of_hetzner_cloud_are_those_of_the_contract_and_of_its_own_tools(prefix: str) -> None:
    found = settled(
        environ={
            "HCLOUD_TOKEN": " abc ",
            f"{prefix}IMAGE": "ubuntu-24.04",
            f"{prefix}SERVER_TYPE": "cx23, cx33",
            f"{prefix}LOCATION": "fsn1",
            f"{prefix}FIREWALL": "labs",
            f"{prefix}SSH_KEY": "a,b",
            f"{prefix}CLOUD_INIT_FILE": "/etc/labs.yaml",
        }
    )
    given = found.driver_options
    assert (given["hcloud_token"], given["hcloud_image"], given["hcloud_firewall"]) == ("abc", "ubuntu-24.04", "labs")
    assert (given["hcloud_server_type"], given["hcloud_location"]) == (("cx23", "cx33"), ("fsn1",))
    assert (given["hcloud_ssh_key"], given["hcloud_cloud_init_file"]) == (("a", "b"), Path("/etc/labs.yaml"))


def test_a_list_may_be_one_in_the_file_and_nothing_of_it_is_empty() -> None:
    assert settled(toml='hcloud_location = ["fsn1", "hel1"]').driver_options["hcloud_location"] == ("fsn1", "hel1")
    for bad in ('""', '"a,,b"', "[]", "[1]", "5"):
        with pytest.raises(Invalid, match="one or more names"):
            settled(toml=f"hcloud_location = {bad}")


def test_no_token_is_in_an_error_or_in_what_settings_say_of_themselves() -> None:
    with pytest.raises(Invalid) as caught:
        settled(environ={"HCLOUD_TOKEN": "secret token"})
    assert "secret" not in str(caught.value)
    assert "hush" not in repr(settled(environ={"HCLOUD_TOKEN": "hush"}))


def test_v32_variables_of_plasmavmc_that_mean_nothing_here_are_listed_and_ignored() -> None:
    found = settled("", {"PLASMAVMC_QEMU_PATH": "/usr/bin/qemu", "PLASMAVMC_QCOW2_PATH": "/x"})
    assert found.ignored == ("PLASMAVMC_QCOW2_PATH", "PLASMAVMC_QEMU_PATH")
    assert found.store == settled("", {}).store
    assert settled("", {"PLASMAVMC_STATE_PATH": "/x"}).ignored == ()


def test_v30_the_state_path_has_an_origin_where_a_cluster_is_chosen() -> None:
    found = settled("", {CHAINFIRE: "http://h:1", "PLASMAVMC_STATE_PATH": "/x/state.json"})
    assert str(found.state_path) == "/x/state.json"
    assert found.origins["state_path"].name == "PLASMAVMC_STATE_PATH"
    assert settled("", {CHAINFIRE: "http://h:1"}).origins["state_path"].name == "default"


def test_r32_a_replica_waits_120_seconds_for_a_key_unless_it_is_told_otherwise() -> None:
    assert settled("", {}).acquisition_timeout == 120.0
    assert settled("", {"HOSTLER_ACQUISITION_TIMEOUT": "0"}).acquisition_timeout == 0.0
    with pytest.raises(Invalid, match="0 for no limit"):
        settled("", {"HOSTLER_ACQUISITION_TIMEOUT": "-1"})


def test_v30_v32_config_show_has_the_state_path_and_the_ignored_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    from hostler.entry.cli.config import settled as shown

    monkeypatch.setenv(CHAINFIRE, "http://h:1")
    monkeypatch.setenv("PLASMAVMC_QEMU_PATH", "/x")
    rows = {row["name"]: (row["value"], row["from"]) for row in shown({})}
    assert rows["state_path"] == ("/var/run/plasmavmc/state.json", "default")
    assert rows["PLASMAVMC_QEMU_PATH"][0] == "ignored"
