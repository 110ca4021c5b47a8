"""What is fuzzed: functions of bytes that may refuse them, by an error of ours, and must do nothing else.

Decides what counts as a finding: any other exception, a second that is exceeded, or a result that is not what its
type says. It must not know where the bytes come from.
"""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from coldstart.admission import Claim, Doorkeeper, Hello, Verdict, prove
from coldstart.bus import replies
from coldstart.channels import Channel
from coldstart.errors import BadMessage, BusError, CheckpointError, ConfigError, IntegrityError, TransportError
from coldstart.headers import read_header
from coldstart.identity import UNREADABLE, Truth, decode_truth
from coldstart.keyring import parse
from coldstart.layout import Layout, Span, Tensor
from coldstart.messages import decode, encode
from coldstart.ports import Grant, TransportSettings
from coldstart.proofs import NUMBER_BYTES, Exchange
from coldstart.records import Writer
from coldstart.refusals import Refusals
from coldstart.seals import Key, Keys, Place, opened, seal
from coldstart.signing import FleetSigner
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.transports import tcp_joiner, tcp_source, wire

SECONDS = 1.0
"""No input of 64 KiB may take longer."""

SHARD = "5ac1" * 8
KEYS = Keys((Key("k1", b"1" * 32),))
LAYOUT = layout_of(5000)

Target = Callable[[bytes], bool]
"""Whether the bytes were taken for what they say; raises what is a finding."""


def messages(data: bytes) -> bool:
    with suppress(BadMessage):
        message = decode(data)
        assert decode(encode(message)) == message
        return True
    return False


def seals(data: bytes) -> bool:
    with suppress(BadMessage):
        opened(data, KEYS, Place("cs", SHARD))
        return True
    return False


def truths(data: bytes) -> bool:
    with suppress(IntegrityError):
        truth = decode_truth(data, shard=SHARD)
        assert len(truth.digest(0)) == 16 or not truth.layout.chunks
        return True
    return False


def headers(data: bytes) -> bool:
    """A safetensors file, whole or only its header."""
    with tempfile.TemporaryDirectory(prefix="fuzz") as place:
        path = Path(place) / "model.safetensors"
        path.write_bytes(data)
        with suppress(CheckpointError):
            header = read_header(path)
            assert sum(tensor.nbytes for tensor in header.tensors.values()) <= len(data)
            return True
    return False


def tickets(data: bytes) -> bool:
    with suppress(TransportError):
        wire.decode_ticket(data)
        return True
    return False


def keys(data: bytes) -> bool:
    with suppress(ConfigError):
        return bool(parse(data.decode("latin-1"), Path("keys")).first.secret)
    return False


def store(data: bytes) -> bool:
    """What a store may answer: a reply in JSON, whose strings are blobs."""
    try:
        reply = _blobs(msgspec.json.decode(data))
    except UNREADABLE:
        return False
    taken = False
    for read in (
        lambda: replies.claim_outcome(replies.ShardFields(reply, "claim")),
        lambda: replies.adverts(replies.ShardFields(reply, "adverts")),
        lambda: replies.stated(replies.ShardFields(reply, "stated"), 0),
        lambda: replies.mail(reply, b"in", b"fleet"),
    ):
        with suppress(BusError):
            read()
            taken = True
    return taken


def _blobs(value: object) -> object:
    match value:
        case str():
            return value.encode()
        case list():
            return [_blobs(each) for each in value]
        case dict():
            return {str(name).encode(): _blobs(each) for name, each in value.items()}
        case _:
            return value


def admissions(data: bytes) -> bool:
    """What a caller says after its hello to a source with keys: it is taken for a member's, or it is not one's."""
    with _said(data) as channel:
        verdict = Verdict.TURNED_AWAY
        with suppress(OSError, TransportError):
            doorkeeper = Doorkeeper(CLAIM.transport, SIGNER, lambda size: THEIRS)
            hello = Hello(CLAIM.transfer, OURS, keyed=True)
            verdict = doorkeeper.judge(channel, hello, CLAIM.secret, time.monotonic() + SECONDS)
        assert (verdict is Verdict.ADMITTED) == data.startswith(JOINER_PROOF)
        return verdict is Verdict.ADMITTED and _heard(channel, TOLD_BY_JOINER)


def admitting(data: bytes) -> bool:
    """What a source says to a joiner with keys, from the beginning."""
    with _said(data) as channel:
        proven = False
        with suppress(OSError, TransportError):
            prove(channel, SIGNER, CLAIM, lambda number: number, "the source", SECONDS, lambda size: OURS)
            proven = True
        assert proven == data.startswith(SOURCE_PROOF)
        return proven and _heard(channel, TOLD_BY_SOURCE)


@contextmanager
def _said(data: bytes) -> Iterator[Channel]:
    """Our end of a connection on which the other side has said ``data``, and says nothing more."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        yield Channel(ours)


def _heard(channel: Channel, told: bytes) -> bool:
    """Whether all that was ``told`` comes out; never anything else."""
    heard = b""
    with suppress(TransportError):
        while more := channel.hear(1 << 16):
            heard += more
    assert told.startswith(heard)
    return heard == told


def tcp_port(data: bytes) -> bool:
    """What a stranger, or the holder of a ticket, says to a source; it ends, and nothing is read for it any more."""
    lender, heard = tcp_source.Lender(TransportSettings(io_seconds=0.2)), b""
    ticket = lender.lend(Grant("t", "joiner", 1, 60.0), BytesMemory(LAYOUT, seed=1))
    with socket.create_connection((ticket.host, ticket.port), timeout=SECONDS) as ours:
        stranger = data.startswith(b"CS")
        with suppress(OSError):
            ours.sendall((b"" if stranger else wire.hello(ticket)) + data)
            ours.shutdown(socket.SHUT_WR)
            while more := ours.recv(1 << 16):
                heard += more
    lender.close(SECONDS)
    assert lender._conversations == 0, "a thread is left behind"
    return len(heard) > LAYOUT.nbytes


def tcp_answers(data: bytes) -> bool:
    """What a source says to a joiner: the pull fails with an error of ours, or all has landed."""
    ours, theirs = socket.socketpair()
    landed: list[Span] = []
    pull = tcp_joiner.Pull(TICKET, [Span(0, LAYOUT.nbytes)], BytesMemory(LAYOUT), landed.append, io_seconds=0.2)
    pull._kept.keep(TICKET)
    pull._kept.give(TICKET, ours)

    def answer() -> None:
        with theirs, suppress(OSError):
            theirs.recv(1 << 16)
            theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)
            while theirs.recv(1 << 16):
                pass

    thread = threading.Thread(target=answer)
    thread.start()
    pull.run()
    pull._kept.close()
    thread.join(SECONDS)
    assert not thread.is_alive()
    if pull.error is None:
        assert sum(span.length for span in landed) == LAYOUT.nbytes
        return True
    assert isinstance(pull.error, TransportError), repr(pull.error)
    return False


TICKET = wire.Ticket("127.0.0.1", 1, bytes(16), "t")

SIGNER = FleetSigner(lambda: KEYS, Refusals())
CLAIM = Claim("fuzzed", b"t" * 16, b"s" * 16)
OURS, THEIRS = b"j" * NUMBER_BYTES, b"k" * NUMBER_BYTES
EXCHANGE = Exchange(*CLAIM, OURS, THEIRS)
JOINER_PROOF = EXCHANGE.proof(SIGNER, "joiner")
SOURCE_PROOF = b"\0" + THEIRS + b"\0" + EXCHANGE.proof(SIGNER, "source")
SESSION = EXCHANGE.session(SIGNER, JOINER_PROOF) or b""
TOLD_BY_JOINER, TOLD_BY_SOURCE = b"ask" * 50, b"answer" * 50

TARGETS: Mapping[str, Target] = {
    each.__name__: each
    for each in (
        *(messages, seals, truths, headers, tickets, keys, store),
        *(admissions, admitting, tcp_port, tcp_answers),
    )
}


def run(name: str, data: bytes) -> None:
    """Try one input; raises whatever it finds."""
    began = time.perf_counter()
    TARGETS[name](data)
    elapsed = time.perf_counter() - began
    assert elapsed < SECONDS + 1.0, f"{name} took {elapsed:.1f} s"


# --------------------------------------------------------------------------------------------- seeds


def seeds(name: str) -> Sequence[bytes]:
    """Inputs that are right, or nearly: what mutation begins with."""
    return _SEEDS[name]


def _safetensors(header: object, body: bytes = b"") -> bytes:
    text = msgspec.json.encode(header)
    return len(text).to_bytes(8, "little") + text + body


def _truth() -> bytes:
    layout = Layout((Tensor("w", "uint8", (600,), (1,), 0, 0),), (600,), 256)
    return Truth(SHARD, layout, "csfp1", bytes(16 * layout.chunks)).encode()


def _message(kind: str, **fields: object) -> bytes:
    return msgspec.msgpack.encode({"type": kind, "transfer": "t", "version": 1, **fields})


_ADVERT = (
    '{\\"worker\\":\\"w\\",\\"inbox\\":\\"w.1\\",\\"incarnation\\":\\"1\\",\\"generation\\":1,\\"layout\\":\\"l\\",'
    '\\"slots\\":2,\\"have\\":1,\\"total\\":1,\\"transports\\":[\\"tcp\\"],\\"host\\":\\"h\\",\\"device\\":\\"cpu\\"}'
)

_SEEDS: Mapping[str, Sequence[bytes]] = {
    "messages": (
        _message("hello", joiner="j", number=1, layout="aa", transports=["tcp"], favours={"h": ["tcp"]}),
        _message("offer", answer=2, number=3, transport="tcp", ticket=b"t", generation=1, have=b"\x01", source="a"),
        _message("refusal", answer=2, reason="busy"),
        _message("doubt", chunk=7),
        _message("done", outcome="ok"),
    ),
    "seals": (
        seal(
            b"body", KEYS.first, Place("cs", SHARD), "letter", to="in", sender="w", at=1e9, life=60, nonce=b"n" * 16
        ),
    ),
    "truths": (_truth(),),
    "headers": (
        _safetensors({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "__metadata__": {}}, bytes(8)),
        _safetensors({"a": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}, bytes(2)),
        _safetensors({}),
    ),
    "tickets": (TICKET.encode(),),
    "keys": (b"sign k1 " + b"ab" * 32 + b"\ndigest d1 " + b"cd" * 32 + b"\n",),
    "store": (
        f'["epoch","granted","root","[]","{_ADVERT}",1,0,5,-1]'.encode(),
        b'["epoch","deferred","root","[[\\"w\\",\\"busy\\",\\"l\\"]]","leader",1,2,1,0,0,"[\\"h\\"]"]',
        b'["epoch","elected","root","[]"]',
        b'["epoch","conflicted","[\\"a\\",\\"b\\"]"]',
        f'["epoch","{_ADVERT}",1,0]'.encode(),
        b'{"in":[["1-1",["body","x","fence","1"]]],"fleet":[["1-2",["what","slot","about","w"]]]}',
    ),
    "admissions": (JOINER_PROOF + Writer(SESSION, "joiner").records(TOLD_BY_JOINER), JOINER_PROOF, bytes(64)),
    "admitting": (SOURCE_PROOF + Writer(SESSION, "source").records(TOLD_BY_SOURCE), SOURCE_PROOF, b"\1", b"\3"),
    "tcp_port": (
        wire.request(Span(0, 4096)) + wire.request(Span(4096, LAYOUT.nbytes - 4096)),
        wire.hello(TICKET) + wire.request(Span(0, 1)),
        wire.keyed_hello(TICKET, bytes(16)),
    ),
    "tcp_answers": (
        wire.answer(wire.Status.OK, Span(0, LAYOUT.nbytes)) + bytes(LAYOUT.nbytes),
        wire.answer(wire.Status.REVOKED),
    ),
}
