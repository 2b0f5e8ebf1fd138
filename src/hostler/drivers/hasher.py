"""argon2id in a few threads: a hash takes a tenth of a second and 64 MiB, off the event loop."""

from __future__ import annotations

import asyncio
import base64
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import argon2
from argon2.exceptions import Argon2Error, InvalidHashError

from hostler.errors import Closed, TooManyTries, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_SALT_BYTES, _DIGEST_BYTES = 16, 32


class Argon2Hasher:
    """A `Hasher` with bounded concurrency.

    At most `threads` hashes run at once and at most `waiting` wait, so that a flood of logins exhausts neither the
    memory nor the processors. `cost` and `memory_kib` are argon2's own parameters; the defaults are those of RFC 9106
    for machines with little memory.
    """

    def __init__(self, *, threads: int = 2, waiting: int = 32, cost: int = 3, memory_kib: int = 65536) -> None:
        self._argon2 = argon2.PasswordHasher(time_cost=cost, memory_cost=memory_kib, parallelism=1)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="hostler-hash")
        self._most = threads + waiting
        self._count = threading.Lock()
        self._under_way = 0
        self._closed = False
        self._stand_in = _hash_of_nothing(cost, memory_kib)

    async def hash(self, password: str) -> str:
        return await self._off_loop(lambda: self._hash_password(password))

    async def verify(self, kept: str, password: str) -> bool:
        return await self._off_loop(lambda: self._verified(kept, password))

    async def aclose(self) -> None:
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)

    # In a thread

    def _hash_password(self, password: str) -> str:
        try:
            return self._argon2.hash(_bytes(password))
        except (Argon2Error, MemoryError) as error:
            raise Unavailable(f"password: could not be hashed ({error}); try again") from None

    def _verified(self, kept: str, password: str) -> bool:
        if not _is_hash(kept):
            self._matches(self._stand_in, password)
            return False
        return self._matches(kept, password)

    def _matches(self, kept: str, password: str) -> bool:
        try:
            return self._argon2.verify(kept, _bytes(password))
        except MemoryError as error:
            raise Unavailable(f"password: could not be checked ({error}); try again") from None
        except (Argon2Error, InvalidHashError):
            return False

    # Internal

    async def _off_loop(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise Closed("password: the hasher is closed")
        with self._count:
            if self._under_way >= self._most:
                raise TooManyTries("password: too many logins at once; try again in a second", 1.0)
            self._under_way += 1
        future = self._pool.submit(work)
        future.add_done_callback(self._finish_one)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                raise Closed("password: the hasher was closed during the request") from None
            raise

    def _finish_one(self, _: object) -> None:
        with self._count:
            self._under_way -= 1


def _hash_of_nothing(cost: int, memory_kib: int) -> str:
    """Return a hash that no password has, and that takes as long to check as any other.

    It is made of random bytes: to make it of a password would take a process a tenth of a second.
    """
    salt, digest = (base64.b64encode(os.urandom(size)).decode().rstrip("=") for size in (_SALT_BYTES, _DIGEST_BYTES))
    return f"$argon2id$v=19$m={memory_kib},t={cost},p=1${salt}${digest}"


def _is_hash(kept: str) -> bool:
    try:
        argon2.extract_parameters(kept)
    except InvalidHashError:
        return False
    return True


def _bytes(password: str) -> bytes:
    # A lone surrogate is not a character, but it must not cause an error that differs from a wrong password.
    return password.encode("utf-8", "surrogatepass")
