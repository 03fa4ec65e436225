"""The front end's way to a worker, again and again: implements the seam ``EngineSource``."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError, EngineDeadError, EngineError, TwostrokeError
from twostroke.core.files import reason
from twostroke.core.network.address import Address, is_address, watch_connection
from twostroke.core.network.proofs import draw_nonce, is_proof, prove
from twostroke.engine.clients.facts import EngineFacts
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.process.engine_source import StartedEngine
from twostroke.engine.process.frames import encode_frame, receive_frame
from twostroke.engine.process.handshake import EngineRefused
from twostroke.engine.process.socket_link import SocketLink
from twostroke.engine.workers.greeting import (
    GREETING_BYTES,
    GREETING_SECONDS,
    PROTOCOL,
    UNREADABLE,
    WELCOME_BYTES,
    Admitted,
    Challenge,
    FrontEndGreeting,
    ModelFingerprint,
    Welcome,
    WorkerAnswer,
    clock_name,
)

logger = logging.getLogger(__name__)
CONNECT_SECONDS = 5.0
REFUSAL_CHARACTERS = 500
FIRST_PAUSE = 0.5
PAUSES = (0.0, 0.25, 0.5, 1.0, 2.0)  # the last goes on: to knock costs next to nothing
_CHALLENGES = msgspec.msgpack.Decoder(Challenge)
_ANSWERS: msgspec.msgpack.Decoder[WorkerAnswer] = msgspec.msgpack.Decoder(WorkerAnswer)
_HINT = "start it: twostroke worker MODEL --listen HOST:PORT"


class WorkerLink(SocketLink):
    """A connection to a worker; the engine has ended, as far as it goes, where this has."""

    def __init__(self, address: Address, connection: socket.socket) -> None:
        super().__init__(connection)
        self._address = address

    @classmethod
    def ended(cls, address: Address) -> WorkerLink:
        """That to a worker which has never been reached."""
        link = cls(address, socket.socket())
        link._ended.set()
        link._socket.close()
        return link

    @property
    def name(self) -> str:
        return f"worker {self._address}"

    def why_ended(self) -> str | None:
        return f"the connection to {self.name} has ended" if self._ended.is_set() else None

    def wait(self, seconds: float) -> bool:
        return self._ended.wait(seconds)

    def kill(self) -> None:
        self._hang_up()
        self._ended.set()

    def close(self) -> None:
        self._closed = True
        self.kill()
        self._release()


class WorkerSource:
    """Implements ``EngineSource``: each engine is another connection to one worker.

    Args:
        config: How the worker's engine is configured.
        model: What it must have.
    """

    def __init__(
        self,
        address: Address,
        token: bytes,
        version: str,
        config: EngineConfig,
        model: ModelFingerprint,
    ) -> None:
        self.address, self._token, self._version = address, token, version
        self._config, self._model = config, model

    @property
    def config(self) -> EngineConfig:
        return self._config

    @property
    def pauses(self) -> Sequence[float]:
        return PAUSES

    @property
    def gives_up(self) -> bool:
        return False

    @property
    def again(self) -> str:
        return "the router connects again"

    def start(self) -> StartedEngine:
        link, welcome = connect_worker(self.address, self._token, self._version)
        theirs, ours = welcome.model, self._model
        if (theirs.tokenizer, theirs.weights) != (ours.tokenizer, ours.weights):
            link.close()
            raise ConfigError(
                f"{link.name} has another {_differing(theirs, ours)}",
                hint="start all workers with the same model and the same flags",
            )
        return StartedEngine(link, welcome.facts)


def _differing(theirs: ModelFingerprint, ours: ModelFingerprint) -> str:
    """What another worker has otherwise than the others."""
    for flag, value in theirs.settings.items():
        if (other := ours.settings.get(flag)) != value:
            return f"{flag} than the others: {value}, not {other}"
    what = f"{theirs.name} ({theirs.weights}), not {ours.name} ({ours.weights})"
    return f"model than the others: {what}"


def connect_worker(address: Address, token: bytes, version: str) -> tuple[WorkerLink, Welcome]:
    """Connect, and wait to be welcomed.

    Raises:
        EngineDeadError: Nothing answers, or the worker is busy with another front end.
        ShuttingDownError: The worker is about to leave.
        ConfigError: It refuses this front end, or is none of ours.
    """
    connection, answer = open_connection(address, token, version)
    if not isinstance(answer, Welcome):
        connection.close()
        raise _no_worker(address)
    facts = msgspec.structs.replace(answer.facts, info=_reachable(answer.facts.info, address))
    return WorkerLink(address, connection), msgspec.structs.replace(answer, facts=facts)


def open_connection(
    address: Address, token: bytes, version: str
) -> tuple[socket.socket, Welcome | Admitted]:
    """Connect, and have both sides prove that they know the token.

    Raises:
        EngineDeadError, ShuttingDownError, ConfigError: As ``connect_worker``.
    """
    try:
        connection = socket.create_connection(address, CONNECT_SECONDS)
    except OSError as error:
        message = f"worker {address} cannot be reached: {reason(error)}"
        raise EngineDeadError(message, hint=_HINT) from error
    try:
        watch_connection(connection)
        return connection, _greet(connection, address, token, version)
    except BaseException:
        connection.close()
        raise


def _reachable(info: ExecutorInfo, address: Address) -> ExecutorInfo:
    """Name the places of a worker's blocks as other machines reach it: by the host that is here."""
    tiers = [
        replace(tier, place=str(Address.parse(tier.place).reached_by(address.host)))
        if is_address(tier.place)
        else tier
        for tier in info.tiers
    ]
    return replace(info, tiers=tiers)


def _greet(
    connection: socket.socket, address: Address, token: bytes, version: str
) -> Welcome | Admitted:
    deadline = time.monotonic() + GREETING_SECONDS
    try:
        data = _receive(connection, address, GREETING_BYTES, deadline)
        challenge = _CHALLENGES.decode(data)
        if challenge.protocol != PROTOCOL:
            raise ConfigError(
                f"worker {address} greets by protocol {challenge.protocol}, this router by"
                f" {PROTOCOL}",
                hint="install one version of twostroke",
            )
        nonce = draw_nonce()
        proof = prove(token, "front end", challenge.nonce, nonce)
        now = time.monotonic()
        greeting = FrontEndGreeting(PROTOCOL, version, nonce, proof, now, clock_name())
        connection.sendall(encode_frame(greeting))
        answer = _ANSWERS.decode(_receive(connection, address, WELCOME_BYTES, deadline))
    except OSError as error:
        message = f"worker {address} has gone while it was greeted: {reason(error)}"
        raise EngineDeadError(message, hint=_HINT) from error
    except (*UNREADABLE, EngineError) as error:
        if isinstance(error, EngineDeadError):
            raise
        raise _no_worker(address) from error
    if isinstance(answer, EngineRefused):
        refused = answer.to_exception()
        refused.message = f"worker {address} refuses: {_one_line(refused.message)}"
        refused.args = (refused.message,)
        refused.hint = refused.hint and _one_line(refused.hint)
        raise refused
    if not is_proof(answer.proof, token, "worker", challenge.nonce, nonce):
        raise ConfigError(
            f"worker {address} does not know the token", hint="give both the same --token-file"
        )
    return answer


def _no_worker(address: Address) -> ConfigError:
    return ConfigError(
        f"what listens at {address} is no worker of twostroke", hint="check --worker"
    )


def _one_line(text: str) -> str:
    """What of it may stand in a log: the other side has not proven that it is a worker."""
    return "".join(each if each.isprintable() else " " for each in text[:REFUSAL_CHARACTERS])


def _receive(connection: socket.socket, address: Address, max_bytes: int, deadline: float) -> bytes:
    data = receive_frame(connection, max_bytes, deadline)
    if data is None:
        raise EngineDeadError(f"worker {address} does not answer", hint="see its log")
    return data


def unreached(address: Address, facts: EngineFacts) -> StartedEngine:
    """What stands for a worker until it is reached first: the others' facts, and no connection."""
    labels = {**facts.labels, "engine": str(address)}
    return StartedEngine(WorkerLink.ended(address), msgspec.structs.replace(facts, labels=labels))


def first_worker(
    addresses: Sequence[Address], token: bytes, version: str, say: Callable[[str], None]
) -> tuple[Address, WorkerLink, Welcome]:
    """Wait until one of the workers welcomes this front end.

    Args:
        say: Called with what is waited for, when that changes.

    Raises:
        ConfigError: All of them refuse it, and would go on to.
    """
    said = ""
    while True:
        refusals: list[ConfigError] = []
        reasons: list[str] = []
        for address in addresses:
            try:
                return address, *connect_worker(address, token, version)
            except ConfigError as error:
                refusals.append(error)
                reasons.append(str(error))
            except TwostrokeError as error:
                reasons.append(str(error))
        if len(refusals) == len(addresses):
            raise refusals[0]
        text = f"no worker is there yet: {'; '.join(reasons)}"
        if text != said:
            logger.warning("%s", text)
            say(text)
        said = text
        time.sleep(FIRST_PAUSE)
