"""`--message FILE`: the signed item of a command as a message for an agent's command topic, instead of a request to the agent."""

from __future__ import annotations

import sys
from pathlib import Path

from elf.agent.commands.process.streams import say
from elf.agent.control.signed_messages import encode_item, message_id
from elf.errors import ElfError, UsageError
from elf.srt.messages.messages import Item


def write_message(item: Item, to: Path, job: str) -> None:
    """Write the item to a file, or to standard output (-), and say on stderr how its answer will name it. Raises `ElfError`."""
    if not item.signature:
        raise UsageError(
            "--message: only signed commands are taken from a topic; give --keys FILE or ELF_KEYS"
        )
    body = encode_item(item)
    try:
        if str(to) == "-":
            sys.stdout.buffer.write(body)
            sys.stdout.buffer.flush()
        else:
            to.write_bytes(body)
    except OSError as error:
        raise ElfError(f"--message: {to}: {error.strerror}") from error
    where = "" if str(to) == "-" else f" to {to}"
    say(
        f"job {job}: wrote {len(body):,} bytes{where}, and sent nothing; the answer to this message has the id {message_id(body)}"
    )
