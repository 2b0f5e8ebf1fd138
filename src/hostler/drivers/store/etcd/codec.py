"""Converts values to and from etcd's messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.drivers.store.etcd import rpc_pb2 as pb
from hostler.ports.store import Comparison, Delete, DeletePrefix, Get, KeyValue, Operation, Put, lease_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.ports.store import Response

_RESULTS = {
    "==": pb.Compare.EQUAL,
    "!=": pb.Compare.NOT_EQUAL,
    "<": pb.Compare.LESS,
    ">": pb.Compare.GREATER,
}
_TARGETS = {
    "version": (pb.Compare.VERSION, "version"),
    "create": (pb.Compare.CREATE, "create_revision"),
    "mod": (pb.Compare.MOD, "mod_revision"),
    "value": (pb.Compare.VALUE, "value"),
}


def key_value(kv: pb.KeyValue) -> KeyValue:
    """Convert a KeyValue from etcd's."""
    return KeyValue(
        kv.key.decode("utf-8", "surrogateescape"),  # a foreign key that is not UTF-8 can be read, not written
        kv.value,
        kv.create_revision,
        kv.mod_revision,
        kv.version,
        kv.lease or None,
    )


def span(prefix: str) -> tuple[bytes, bytes]:
    """Return the first key of a prefix and the first one after it, as etcd expects a range."""
    start = prefix.encode()
    return start or b"\0", end_of(start)


def end_of(prefix: bytes) -> bytes:
    """Return the first key after all that start with `prefix`; `\\0` (which means: no end) if there is none."""
    for at in range(len(prefix) - 1, -1, -1):
        if prefix[at] != 0xFF:
            return prefix[:at] + bytes((prefix[at] + 1,))
    return b"\0"


# Filled in place: building and copying each part takes three times as long.


def txn_request(when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation]) -> pb.TxnRequest:
    """Build the request of a transaction."""
    request = pb.TxnRequest()
    for comparison in when:
        target, field = _TARGETS[comparison.target]
        made = request.compare.add()
        made.result = _RESULTS[comparison.operator]
        made.target = target
        made.key = comparison.key.encode()
        setattr(made, field, comparison.operand)
    for operation in then:
        _fill(request.success.add(), operation)
    for operation in otherwise:
        _fill(request.failure.add(), operation)
    return request


def _fill(made: pb.RequestOp, operation: Operation) -> None:
    if isinstance(operation, Put):
        put = made.request_put
        put.key, put.value = operation.key.encode(), operation.value
        if operation.lease is not None:
            put.lease = lease_id(operation.lease) or 0
    elif isinstance(operation, Get):
        made.request_range.key = operation.key.encode()
    elif isinstance(operation, Delete):
        made.request_delete_range.key = operation.key.encode()
    else:
        made.request_delete_range.key, made.request_delete_range.range_end = span(operation.prefix)


def responses(operations: Sequence[Operation], raw: Sequence[pb.ResponseOp]) -> tuple[Response, ...]:
    """Return the response to each operation of the branch that ran."""
    made: list[Response] = []
    for operation, response in zip(operations, raw, strict=True):
        if isinstance(operation, Put):
            made.append(None)
        elif isinstance(operation, Get):
            kvs = response.response_range.kvs
            made.append(key_value(kvs[0]) if kvs else None)
        elif isinstance(operation, DeletePrefix):
            made.append(response.response_delete_range.deleted)
        else:
            made.append(response.response_delete_range.deleted > 0)
    return tuple(made)
